struct Net : Module<Net> {
  Linear head{6, 3};
  Tensor forward(const Tensor& x) const { return head(x); }
  void members(Members& m) override { m("head", head); }
};
using Batch = Tensor;

Tensor loss(const Tensor& y) { return mean(square(y)); }

void run() {
  run_ranks(3, [](Communicator& communicator) {
    DistributedDataParallel net(Net{}, communicator);
    SGD optimizer(net.parameters(), {.lr = 0.1});
    const std::vector<Batch> my_batches(static_cast<std::size_t>(communicator.rank()), randn({4, 6}));
    // the block
    const std::vector<std::string> all = communicator.all_gather_bytes(parameters_sha256(net));
    LOCKSTEP_CHECK(all[0] == all[1] && all[1] == all[2], "expected the same parameters on every rank, got ", all[0],
                   ", ", all[1], ", ", all[2]);
  });
}
