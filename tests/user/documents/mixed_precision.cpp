struct Net : Module<Net> {
  Linear head{6, 3};
  Tensor forward(const Tensor& x) const { return head(x); }
  void members(Members& m) override { m("head", head); }
};

void run() {
  run_ranks(2, [](Communicator& communicator) {
    // the block
    const Tensor y = net(randn({4, 6}));
    y.to(DType::f32).sum().backward();
    const Tensor grad = net.module().head.weight.grad();
    LOCKSTEP_CHECK(y.dtype() == DType::bf16 && grad.dtype() == DType::f32,
                   "expected an output of bf16 and gradients of f32, ", "got ", y, " and ", grad);
  });
}
