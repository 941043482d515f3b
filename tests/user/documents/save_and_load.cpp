struct Net : Module<Net> {
  Linear head{6, 3};
  Tensor forward(const Tensor& x) const { return head(x); }
  void members(Members& m) override { m("head", head); }
};

void run() {
  Net net;
  AdamW optimizer(net.parameters(), {.lr = 1e-3});
  LrScheduler scheduler(optimizer, StepLR{.step_size = 2});
  GradScaler scaler;
  mean(square(net(randn({2, 6})))).backward();
  optimizer.step();
  // the block
}
