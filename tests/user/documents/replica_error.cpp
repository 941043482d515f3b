#include <exception>

struct Net : Module<Net> {
  Tensor forward(const Tensor& x) const { throw OutOfMemory(x.device(), 1000, 0, 0); }
  void members(Members&) override {}
};

void run() {
  auto net = DataParallel(Net{}, {.devices = {Device::host(0), Device::cpu()}});
  const Tensor images = randn({7, 6}), labels = zeros({7}, {.dtype = DType::i64});
  Tensor loss;
  std::size_t retried = 0, halved = 0;
  const auto retry_without = [&](Device) { ++retried; };
  const auto halve_the_batch = [&](std::size_t bytes) { halved += bytes; };
  // the block
  if (retried != 2 || halved != 1000) throw Error("expected both replicas' failures and the memory's");
}
