// How GPUs are linked, by what the CUDA runtime says.
#include "lockstep/runtime/cuda/gpu_links.h"

#include "fake_cuda/fake_cuda.h"
#include "lockstep/runtime/topology.h"
#include "support/catch.h"

using namespace lockstep;
using cuda::PeerAnswer;

namespace {

constexpr PeerAnswer kPair{.access = true, .rank = 0, .atomics = true},
    kLine{.access = true, .rank = 1, .atomics = true}, kPcie{.access = true, .rank = 2},
    kNone{.access = false, .rank = 3};

// Both ways alike; what stands on the diagonal must not matter.
std::vector<DeviceLink> links_of(const std::vector<PeerAnswer>& answers, std::size_t gpus, int copy_engines = 6) {
  std::vector<PeerAnswer> whole = answers;
  for (std::size_t i = 0; i < gpus; ++i) whole[i * gpus + i] = {.access = false, .rank = 77, .atomics = true};
  return cuda::gpu_links(whole, gpus, copy_engines);
}

}  // namespace

TEST_CASE("GPUs that are all linked alike are taken for a switch") {
  for (const PeerAnswer& answer : {kPair, kPcie}) {
    const std::vector<DeviceLink> links = links_of(std::vector<PeerAnswer>(9, answer), 3);
    for (std::size_t i = 0; i < 3; ++i)
      for (std::size_t j = 0; j < 3; ++j)
        if (i != j) CHECK(links[i * 3 + j] == DeviceLink{.speed = 1.0 / (1 + answer.rank), .shared = !answer.atomics});
  }
}

TEST_CASE("GPUs of a mesh have lines of their own, and others go over PCIe or the host's memory") {
  const std::vector<DeviceLink> links = links_of({kNone, kPair, kLine, kPcie,   //
                                                  kPair, kNone, kPcie, kLine,   //
                                                  kLine, kPcie, kNone, kNone,   //
                                                  kPcie, kLine, kNone, kNone},  //
                                                 4);
  CHECK(links[0 * 4 + 1] == DeviceLink{.speed = 1, .own = true});
  CHECK(links[0 * 4 + 2] == DeviceLink{.speed = 0.5, .own = true});
  CHECK(links[0 * 4 + 3] == DeviceLink{.speed = 1.0 / 3, .shared = true});
  CHECK(links[2 * 4 + 3] == DeviceLink{.speed = 0});
  CHECK(links[2 * 4 + 2] == DeviceLink{.speed = 1, .distance = 0});  // logical devices of one GPU
}

TEST_CASE("lines are none of their own where a GPU carries one copy between peers at a time") {
  const std::vector<PeerAnswer> answers{kNone, kPair, kLine, kPair, kNone, kLine, kLine, kLine, kNone};
  CHECK(links_of(answers, 3, 4)[1] == DeviceLink{.speed = 1, .own = true});
  CHECK(links_of(answers, 3, 3)[1] == DeviceLink{.speed = 1, .own = false});
}

// With LOCKSTEP_FAKE_CUDA=devices=4,nvlink=0-3-0,nvlink=3-1-1,nvlink=1-2-0,deny=0-2 (ctest: fake_cuda/links).
TEST_CASE("a chain over GPUs takes NVLink where there is some", "[.links]") {
  const std::vector<Device> all{Device::cuda(0), Device::cuda(1), Device::cuda(2), Device::cuda(3)};
  const auto found = topology(all);
  CHECK(found->links.at(0, 3) == DeviceLink{.speed = 1, .own = true});
  CHECK(found->links.at(1, 3) == DeviceLink{.speed = 0.5, .own = true});
  CHECK(found->links.at(0, 2) == DeviceLink{.speed = 1.0 / 3, .shared = true});
  CHECK(found->links.at(2, 0) == DeviceLink{.speed = 0});  // 0 fetches what goes there, and does not reach it
  CHECK_FALSE(found->alike);
  CHECK(found->lanes[0].order == std::vector<std::size_t>{0, 3, 1, 2});
  CHECK(fake_cuda::devices_with_context().empty());  // asking makes none
}

// With LOCKSTEP_CUDA_DEVICES=5 on 2 GPUs (ctest: fake_cuda/logical).
TEST_CASE("a chain visits the logical devices of one GPU one after the other", "[.logical]") {
  const std::vector<Device> all{Device::cuda(0), Device::cuda(1), Device::cuda(2), Device::cuda(3), Device::cuda(4)};
  CHECK(chain_order(links_between(all)) == std::vector<std::size_t>{0, 2, 4, 1, 3});
}
