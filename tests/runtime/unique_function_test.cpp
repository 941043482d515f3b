#include "lockstep/runtime/unique_function.h"

#include <array>
#include <memory>

#include "support/catch.h"

using namespace lockstep;

namespace {

// Counts how many of it are alive.
struct Counted {
  explicit Counted(int& number) : alive(&number) { ++*alive; }
  Counted(const Counted& other) : alive(other.alive) { ++*alive; }
  Counted(Counted&& other) noexcept : alive(other.alive) { ++*alive; }
  ~Counted() { --*alive; }
  int* alive;
};

template <class Payload>
void check_life(Payload payload) {
  int alive = 0, calls = 0;
  {
    UniqueFunction first([counted = Counted(alive), payload, &calls]() mutable { ++calls, (void)payload; });
    CHECK(alive == 1);
    UniqueFunction second(std::move(first));
    CHECK(alive == 1);
    CHECK_FALSE(first);
    REQUIRE(second);
    second();
    UniqueFunction third;
    third = std::move(second);
    third();
    CHECK(alive == 1);
    third = UniqueFunction([] {});
    CHECK(alive == 0);
  }
  CHECK(alive == 0);
  CHECK(calls == 2);
}

}  // namespace

TEST_CASE("a function owns its callable, small or large") {
  check_life(0);
  check_life(std::array<char, 400>{});
}

TEST_CASE("a function takes what can only be moved") {
  int seen = 0;
  UniqueFunction function([value = std::make_unique<int>(7), &seen] { seen = *value; });
  UniqueFunction moved = std::move(function);
  moved();
  CHECK(seen == 7);
  moved.reset();
  CHECK_FALSE(moved);
}
