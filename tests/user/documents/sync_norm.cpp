struct Net : Module<Net> {
  Linear body{6, 4};
  BatchNorm1d norm{4};
  Linear head{4, 3};
  Tensor forward(const Tensor& x) const { return head(relu(norm(body(x)))); }
  void members(Members& m) override { m("body", body), m("norm", norm), m("head", head); }
};

void run() {
  run_ranks(2, [](Communicator& communicator) {
    // the block
    sum(net(randn({3, 6}, {.device = communicator.device()}))).backward();
    if (norms != 1) std::abort();
  });
}
