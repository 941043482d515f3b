#include <utility>
#include <vector>

struct Net : Module<Net> {
  Linear head{6, 3};
  Tensor forward(const Tensor& x) const { return head(x); }
  void members(Members& m) override { m("head", head); }
};

void run() {
  Net net;
  const std::vector<std::pair<Tensor, Tensor>> batches(1, {randn({7, 6}), zeros({7}, {.dtype = DType::i64})});
  // the block
}
