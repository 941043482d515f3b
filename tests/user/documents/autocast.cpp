struct Net : Module<Net> {
  Linear head{6, 3};
  Tensor forward(const Tensor& x) const { return head(x); }
  void members(Members& m) override { m("head", head); }
};

void run() {
  Net net;
  GradScaler scaler;
  const Tensor images = randn({7, 6}), labels = zeros({7}, {.dtype = DType::i64});
  // the block
}
