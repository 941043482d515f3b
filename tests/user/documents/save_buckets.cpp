struct Net : Module<Net> {
  Linear head{6, 3};
  Tensor forward(const Tensor& x) const { return head(x); }
  void members(Members& m) override { m("head", head); }
};

void run() {
  run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel net(Net{}, communicator, {.bucket_cap_mb = 2});
    const DdpBucketState before = net.bucket_state();
    // the block
    LOCKSTEP_CHECK(net.bucket_state() == before && before.bucket_cap_bytes == 2 << 20,
                   "expected the buckets of before, ", to_string(before), ", got ", to_string(net.bucket_state()));
  });
}
