// A program outside the project that uses what the project installs: a module on two devices, a step, an error caught,
// one that is prepared for inference, in either memory format, one in a pool of replicas, a language model's text,
// what ranks do with a model in parts, and memory of the program's own.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "lockstep/lockstep.h"
#include "lockstep/models.h"
#include "lockstep/runtime/memory/memory_resource.h"
#include "lockstep/version.h"
#include "ranks.h"

static_assert(LOCKSTEP_VERSION ==
              LOCKSTEP_VERSION_MAJOR * 10000 + LOCKSTEP_VERSION_MINOR * 100 + LOCKSTEP_VERSION_PATCH);

using namespace lockstep;

struct Net : Module<Net> {
  Linear first{4, 8}, second{8, 2};
  Tensor forward(const Tensor& x) const { return second(relu(first(x))); }
  void members(Members& m) override { m("first", first), m("second", second); }
};

// Raw memory of a device comes from the functions that the program sets, and goes back to them.
bool own_memory() {
  const Device device = Device::host(1);
  std::size_t taken = 0, returned = 0;
  const auto allocate = [&](Device, std::size_t bytes) {
    taken += bytes;
    return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  };
  const auto free = [&](Device, void* memory, std::size_t bytes) {
    returned += bytes;
    std::free(memory);
  };
  set_memory_resource(device, {.allocate = allocate, .free = free});
  const bool computes = ones({1000, 1000}, {.device = device}).sum().item<float>() == 1e6f;
  const bool kept = returned == 0;  // in the cache
  set_memory_resource(device, {});  // they refer to what is on the stack here
  empty_cache(device);
  return computes && kept && taken >= 4'000'000 && returned == taken;
}

int main() {
  configure_host({.devices = 2});
  auto net = DataParallel(Net{}, {.devices = {Device::host(0), Device::host(1)}});
  SGD optimizer(net.parameters(), {.lr = 0.1});
  Tensor loss = mean(square(net(ones({6, 4}))));
  loss.backward();
  optimizer.step();
  bool caught = false;
  try {
    net(ones({6, 5}));
  } catch (const ReplicaError& error) {  // its type must be the library's, also across a shared library's border
    caught = error.replica() == 0;
  }
  Sequential images(Conv2d(1, 2, 3), BatchNorm2d(2));
  images.eval();
  const auto prepared = prepare(images);  // the first call looks, the second has the norm in the layer's weights
  const Tensor image = randn({1, 1, 5, 5});
  bool same = true;
  for (int call = 0; call < 2; ++call)
    same = same && amax(abs(prepared(image) - images(image)).flatten(), {0}).item<double>() < 1e-5;
  Sequential pixels = deep_copy(images);
  pixels.to(MemoryFormat::channels_last);
  const Tensor scores = prepare(pixels)(image);
  same = same && scores.memory_format() == MemoryFormat::channels_last && allclose(scores, images(image), 1e-4, 1e-5);
  ReplicaPool pool(Net{}, {.devices = accelerators()});
  same = same && pool.submit(ones({3, 4})).get().shape() == Shape{3, 2};
  Gpt2 writer({.vocab_size = 50, .n_positions = 32, .n_embd = 16, .n_layer = 2, .n_head = 2});
  writer.eval();
  Generator generator(std::shared_ptr<const LanguageModel>(&writer, [](const LanguageModel*) {}),
                      {.batch = {.cache = {.pages = 4}}});
  same = same && generator.submit({1, 2, 3}, {.max_new_tokens = 9}).get().tokens ==
                     generate(writer, {1, 2, 3}, {.max_new_tokens = 9}).tokens;
  same = same && sharded_training() && divided_model() && fewer_bits() && own_memory();
  std::printf("%zu devices, loss %.3f\n", accelerators().size(), loss.item<double>());
  const BuildInfo info = build_info();
  std::printf("%s\n", to_string(info).c_str());
  const bool told = std::strcmp(version(), LOCKSTEP_VERSION_STRING) == 0 && info.version == version() &&
                    !info.build_type.empty() && !info.compiler.empty() && info.parts.size() == 5;
  return told && caught && same && net.module().first.weight.grad().defined() ? 0 : 1;
}
