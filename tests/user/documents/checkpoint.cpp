#include <memory>
#include <vector>

struct Block {
  std::shared_ptr<Linear> layer = std::make_shared<Linear>(3, 3);
  Tensor operator()(const Tensor& x) const { return relu((*layer)(x)); }
};

void run() {
  const std::vector<Block> blocks(2);
  Tensor x = randn({2, 3});
  // the block
  sum(x).backward();
}
