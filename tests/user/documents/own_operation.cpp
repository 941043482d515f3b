// the block

void run() {
  const Tensor x = full({2}, 2.0).set_requires_grad();
  sum(cube(x)).backward();
  if (x.grad().to_vector<double>() != std::vector<double>{12, 12}) throw Error("expected 3 x squared");
}
