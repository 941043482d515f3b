struct Net : Module<Net> {
  Linear head{6, 3};
  Tensor forward(const Tensor& x) const { return head(x); }
  void members(Members& m) override { m("head", head); }
};

void run() {
  run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel net(Net{}, communicator);
    // the block
    mean(square(net(randn({4, 6}, {.device = communicator.device()})))).backward();
    LOCKSTEP_CHECK(compression.iteration() == 1, "expected one iteration of the hook, got ", compression.iteration());
  });
}
