// A small network, and batches of images and labels.
#include <utility>
#include <vector>

struct Net : Module<Net> {
  Linear hidden{6, 5}, head{5, 3};
  Tensor forward(const Tensor& x) const { return head(relu(hidden(x.flatten(1)))); }
  void members(Members& m) override { m("hidden", hidden), m("head", head); }
};

void run() {
  const std::vector<std::pair<Tensor, Tensor>> batches(3, {randn({7, 2, 3}), zeros({7}, {.dtype = DType::i64})});
  // the block
}
