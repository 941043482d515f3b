struct Net : Module<Net> {
  Linear head{6, 3};
  Tensor forward(const Tensor& x) const { return head(x); }
  void members(Members& m) override { m("head", head); }
};

Tensor loss(const Tensor& y) { return mean(square(y)); }

void run() {
  run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel net(Net{}, communicator);
    const Tensor first = randn({4, 6}, {.device = communicator.device()}), second = first * 2;
    // the block
  });
}
