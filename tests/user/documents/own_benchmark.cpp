// the block

void run() {
  char name[] = "my-bench", filter[] = "--filter=side 64", repetitions[] = "--repetitions=1",
       time[] = "--min-time=1e-5";
  char* arguments[] = {name, filter, repetitions, time, nullptr};
  if (main(4, arguments) != 0) throw std::runtime_error("main returned another number than 0");
}
