// What a norm tells those that it shares statistics with. How they are shared is in tests/parallel/sync_norm.
#include "lockstep/tensor/nn/norm.h"
#include "lockstep/tensor/ops/factory.h"
#include "support/catch.h"

using namespace lockstep;
using Catch::Matchers::Contains;

namespace {

class FailingStatistics final : public SharedStatistics {
 public:
  explicit FailingStatistics(bool gathers) : gathers_(gathers) {}
  bool shares(Device) const override { return true; }
  Tensor gather(const Tensor& mine) const override {
    if (!gathers_) throw OutOfMemory(mine.device(), 1, 2, 3);
    return zeros({2, 5}, {.dtype = DType::f64});  // nothing that a norm can use
  }
  void abandon(const char* reason) const noexcept override { reasons.emplace_back(reason); }
  mutable std::vector<std::string> reasons;

 private:
  const bool gathers_;
};

}  // namespace

TEST_CASE("a norm that fails tells those that it shares statistics with") {
  BatchNorm1d norm(3);
  for (const bool gathers : {false, true}) {
    const auto statistics = std::make_shared<const FailingStatistics>(gathers);
    norm.share(statistics);
    CHECK_THROWS_AS(norm(zeros({2, 3})), Error);
    REQUIRE(statistics->reasons.size() == 1);
    CHECK_THAT(statistics->reasons[0], Contains(gathers ? "expected the moments of all members" : "[allocate]"));
    CHECK_THROWS_WITH(norm(zeros({2, 4})), Contains("3 channels"));
    CHECK(statistics->reasons.size() == 2);
  }
}
