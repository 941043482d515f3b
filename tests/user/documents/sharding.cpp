struct Net : Module<Net> {
  Linear head{6, 3};
  Tensor forward(const Tensor& x) const { return head(x); }
  void members(Members& m) override { m("head", head); }
};

Tensor loss(const Tensor& y) { return mean(square(y)); }

void run() {
  run_ranks(2, [](Communicator& communicator) {
    const std::vector<Tensor> batches(1 + static_cast<std::size_t>(communicator.rank()),
                                      randn({4, 6}, {.device = communicator.device()}));
    // the block
  });
}
