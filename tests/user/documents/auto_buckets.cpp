struct Net : Module<Net> {
  Linear head{6, 3};
  Tensor forward(const Tensor& x) const { return head(x); }
  void members(Members& m) override { m("head", head); }
};

void run() {
  run_ranks(2, [](Communicator& communicator) {
    // the block
    LOCKSTEP_CHECK(bytes == 1 << 20, "expected buckets of 1 MiB for so small a module, got ", bytes);
  });
}
