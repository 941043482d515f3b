#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

Tensor flipped(const Tensor& picture) { return -picture; }
void step(const Tensor& images, const Tensor& labels);

// the block

void step(const Tensor&, const Tensor&) {}

void run() {
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }";
  header.resize(117, ' ');
  const std::string file = std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + '\n' + std::string(16, '\0');
  std::FILE* out = std::fopen("picture.npy", "wb");
  std::fwrite(file.data(), 1, file.size(), out);
  std::fclose(out);
  train({std::vector<std::string>(70, "picture.npy"), std::vector<std::int64_t>(70, 1)}, accelerators().at(0));
}
