// What tests may do on a machine that nobody has tried yet. TROUBLE names what happens, of
// "hang crash exit fail spoil noise leave".
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

#include "support/catch.h"

namespace {

bool wanted(const char* trouble) {
  const char* all = std::getenv("TROUBLE");
  return all != nullptr && std::string(all).find(trouble) != std::string::npos;
}

bool spoiled = false;  // what is wrong with the process from then on, as with a device that is lost

// What a program is told by its environment.
std::string told() {
  std::string text;
  for (const char* name : {"LOCKSTEP_CUBLASLT_LIBRARY", "LOCKSTEP_CUDNN_LIBRARY", "LOCKSTEP_NCCL_LIBRARY",
                           "LOCKSTEP_CUDA_DEVICES", "LOCKSTEP_CACHE", "LOCKSTEP_GOLDEN_FOLDER", "TMPDIR"}) {
    const char* value = std::getenv(name);
    text += std::string(" ") + name + "=" + (value != nullptr ? value : "");
  }
  return text;
}

// Behind everything else, where a case was run.
struct Leaves {
  bool wanted = false;
  ~Leaves() {
    if (wanted) std::_Exit(7);
  }
} leaves;

}  // namespace

TEST_CASE("a case that passes", "[cuda]") {
  leaves.wanted = wanted("leave");
  CHECK(1 + 1 == 2);
}

TEST_CASE("a case that hangs", "[cuda]") {
  std::puts("words of the case that hangs");
  std::fflush(stdout);
  while (wanted("hang")) std::this_thread::sleep_for(std::chrono::seconds(1));
}

TEST_CASE("a case that crashes", "[cuda]") {
  if (wanted("crash")) std::abort();
}

TEST_CASE("a case that ends the program", "[cuda]") {
  if (wanted("exit")) std::_Exit(3);
}

TEST_CASE("a case that fails, with [brackets], commas and a \\", "[cuda]") {
  std::cout << "words of the case that fails" << std::endl;
  const int got = wanted("fail") ? 3 : 2;
  for (int i = 0; i < 500; ++i) CHECK(got == 2);
}

TEST_CASE("a case that spoils the device", "[cuda]") {
  spoiled = wanted("spoil");
  CHECK_FALSE(spoiled);
}

TEST_CASE("a case that needs a sound device", "[cuda]") { CHECK_FALSE(spoiled); }

TEST_CASE("a case that prints without end", "[cuda]") {
  const std::string line(4096, 'x');
  while (wanted("noise")) std::puts(line.c_str());
}

TEST_CASE("a case that is skipped", "[cuda]") { WARN("skipped: more than 1 devices expected, 1 found"); }

TEST_CASE("a case that cannot tell", "[cuda]") { WARN("unverified: peers (2 GPUs expected, 1 found)"); }

TEST_CASE("NCCL alone: a case", "[cuda]") { WARN("found:" << told()); }

TEST_CASE("a small case", "[.sanitize][shared]") { WARN("found:" << told()); }

TEST_CASE("another small case", "[.sanitize][shared]") { CHECK(true); }
