struct Layer : Module<Layer> {
  Linear linear{4, 4};
  Tensor forward(const Tensor& x) const { return linear(x); }
  void members(Members& m) override { m("linear", linear); }
};

void run() {
  run_ranks(4, [](Communicator& communicator) {
    const Tensor x = randn({2, 4}, {.device = communicator.device()});
    // the block
  });
}
