struct Net : Module<Net> {
  Linear head{6, 3};
  Tensor forward(const Tensor& x) const { return head(x); }
  void members(Members& m) override { m("head", head); }
};

void run() {
  save_model(Net(), "model.safetensors");
  const Tensor images = randn({7, 6});
  // the block
}
