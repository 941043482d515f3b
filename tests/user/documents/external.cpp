#include <memory>
#include <vector>

void run() {
  const std::int64_t rows = 2, columns = 3;
  auto owner = std::make_shared<std::vector<float>>(6, 1.0f);
  void* pointer = owner->data();
  const std::size_t bytes = owner->size() * sizeof(float);
  // the block
  if (sum(tensor).item<float>() != 6) throw Error("expected the vector's elements");
}
