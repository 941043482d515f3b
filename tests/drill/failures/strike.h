// How a rank's fault strikes.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/comm/store/store.h"

namespace failures {

using namespace lockstep;

// What a rank throws that fails by an exception.
struct NoSuchRow : std::out_of_range {
  NoSuchRow() : std::out_of_range("no such row") {}
};

// Nanoseconds of the clock that all processes share.
std::int64_t shared_clock();

// A store whose `nth` call strikes before it is made.
std::shared_ptr<Store> make_striking_store(std::shared_ptr<Store> store, int nth, std::function<void()> strike);

// While it lives, the `nth` write of this thread to a file strikes before any of its bytes are written.
class StrikesInWrite {
 public:
  StrikesInWrite(int nth, std::function<void()> strike);
  StrikesInWrite(const StrikesInWrite&) = delete;
  StrikesInWrite& operator=(const StrikesInWrite&) = delete;
  ~StrikesInWrite();
};

// Calls `wait` in this thread, and `strike` in another once this one sleeps in it. Says whether it struck while `wait`
// went on; throws what `wait` throws.
bool strike_inside(const std::function<void()>& wait, const std::function<void()>& strike);

}  // namespace failures
