struct Net : Module<Net> {
  Linear head{6, 3};
  Tensor forward(const Tensor& x) const { return head(x); }
  void members(Members& m) override { m("head", head); }
};

void run() {
  run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel net(Net{}, communicator);
    SGD optimizer(net.parameters(), {.lr = 0.1});
    const Tensor x = randn({4, 6}, {.device = communicator.device()});
    const auto train_step = [&] {
      optimizer.zero_grad();
      mean(square(net(x))).backward();
      optimizer.step();
    };
    const int steps = 4;
    // the block
    LOCKSTEP_CHECK(averager.step() == steps && local.iteration() == steps, "expected ", steps, " steps, got ",
                   averager.step(), " of the averager and ", local.iteration(), " of the hook");
  });
}
