void run() {
  try {
    run_ranks(3, [](Communicator& communicator) {
      if (communicator.rank() == 1) throw std::runtime_error("out of ideas");
      const Tensor x = ones({2}, {.device = communicator.device()}), y = ones({2}, {.device = communicator.device()});
      // the block
      if (y.to_vector<float>()[0] != 2) std::abort();
    });
  } catch (const CommError& error) {
    if (error.rank != 1) throw;
  }
}
