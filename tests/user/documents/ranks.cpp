// A data set of images and labels.
struct Net : Module<Net> {
  Linear head{6, 3};
  Tensor forward(const Tensor& x) const { return head(x); }
  void members(Members& m) override { m("head", head); }
};

void run() {
  const TensorDataset data(randn({150, 6}), zeros({150}, {.dtype = DType::i64}));
  // the block
}
