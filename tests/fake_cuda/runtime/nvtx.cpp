// Ranges for a profiler. Each case is alone in its program (ctest: fake_cuda/nvtx*), which has fake_cuda/nvtx for one.
#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "lockstep/runtime/stream/stream.h"
#include "lockstep/runtime/stream/work_scope.h"
#include "support/catch.h"

using namespace lockstep;

namespace {

std::string seen(const char* what) {
  const char* path = std::getenv("NVTX_INJECTION64_PATH");
  REQUIRE(path);
  void* profiler = dlopen(path, RTLD_NOW);
  REQUIRE(profiler);
  const auto function = reinterpret_cast<const char* (*)()>(dlsym(profiler, what));
  REQUIRE(function);
  return function();
}
std::string ranges() { return seen("fake_nvtx_ranges"); }

void work(const Stream& stream) {
  const trace::Scope scope("load");
  {
    const trace::WorkScope named(stream, {.name = "named", .kind = trace::Kind::kernel});
    stream.enqueue([] {});
  }
  unsigned char* const memory = static_cast<unsigned char*>(stream.backend().allocate(0, 64));
  stream.backend().fill_bytes(memory, 1, 32, stream.handle());
  stream.backend().copy({memory + 32, stream.device(), memory, stream.device(), 32}, stream.handle());
  synchronize(stream);
  stream.backend().free(0, memory);
}
const std::string kWork = "+load +named - +fill - +copy - - ";

}  // namespace

TEST_CASE("what a host thread does is a range while it is traced", "[.nvtx]") {
  Stream stream(Device::cuda(0));
  work(stream);
  CHECK(ranges() == "");
  trace::start();
  work(stream);
  auto late = std::make_unique<trace::Scope>("late");
  trace::stop();
  work(stream);
  CHECK(ranges() == kWork + "+late ");
  late.reset();
  CHECK(ranges() == kWork + "+late - ");
  CHECK(seen("fake_nvtx_domains") == "lockstep ");
}

TEST_CASE("LOCKSTEP_NVTX makes ranges without a trace", "[.nvtx_always]") {
  Stream stream(Device::cuda(0));
  work(stream);
  CHECK(ranges() == kWork);
  CHECK(trace::spans().empty());
  trace::start();
  trace::stop();
  work(stream);
  CHECK(ranges() == kWork + kWork);
}
