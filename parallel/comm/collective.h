// What a collective is, for those who carry it out: arguments are checked, numbers are given.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "lockstep/kernels/dtype.h"
#include "lockstep/runtime/api.h"
#include "lockstep/runtime/deadline.h"

namespace lockstep {

// How the elements of several ranks become one (what NCCL calls a RedOp). They are combined in the order of the ranks,
// so all ranks get the same bits, and the same for every implementation but NCCL's; f16 and bf16 are combined in f32
// and rounded once. Of bool, sum and max are "or", product and min "and". `avg` is the sum divided by the number of
// ranks, for floating dtypes.
enum class RedOp : std::uint8_t { sum, avg, max, min, product };

struct Collective {
  enum class Kind : std::uint8_t {
    all_reduce,
    broadcast,
    reduce,
    all_gather,
    gather,
    scatter,
    reduce_scatter,
    all_to_all,
    send,
    recv,
    exchange,  // of short messages between hosts: see Communicator::all_gather_bytes
  };
  Kind kind = Kind::all_reduce;
  RedOp reduction = RedOp::sum;
  DType dtype = DType::f32;
  // Elements of one rank's part: of the whole message for all_reduce, broadcast, reduce, send and recv; of an n-th of
  // the larger side for all_gather, gather, scatter, reduce_scatter and all_to_all. May be 0.
  std::int64_t count = 0;
  int peer = -1;  // the root, or the other side of send and recv; -1 where there is none
  // Device memory, contiguous; null on ranks that have none (the input of a scatter away from the root). The same
  // address (all_gather: output + rank * count elements; reduce_scatter, scatter: input + rank * count; gather: as
  // all_gather) for work in place; otherwise the two do not overlap.
  const void* input = nullptr;
  void* output = nullptr;
  // Of a list of tensors in one call: which one, of how many.
  std::int32_t item = 0, items = 1;
  std::int32_t unit = -1;  // of sharded parameters, that it is for; -1: none
  // The how-manieth collective of the communicator this is; sends and receives count by themselves, per pair and
  // direction.
  std::uint64_t sequence = 0;
  Milliseconds timeout{};

  bool reduces() const { return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter; }
  bool pairwise() const { return kind == Kind::send || kind == Kind::recv; }
  bool has_root() const {
    return kind == Kind::broadcast || kind == Kind::reduce || kind == Kind::gather || kind == Kind::scatter;
  }
};

LOCKSTEP_API const char* to_string(RedOp reduction);
LOCKSTEP_API const char* to_string(Collective::Kind kind);

// What all ranks must agree on, as plain data that can lie in shared memory or travel.
struct Fingerprint {
  std::uint64_t sequence = 0;
  std::int64_t count = 0;
  Collective::Kind kind = Collective::Kind::all_reduce;
  RedOp reduction = RedOp::sum;
  DType dtype = DType::f32;
  std::int32_t root = -1, item = 0, items = 1, unit = -1;
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};
LOCKSTEP_API Fingerprint fingerprint(const Collective& collective);
// Equal, where a send and its recv are the same call.
LOCKSTEP_API bool same_call(Fingerprint a, Fingerprint b);
LOCKSTEP_API std::string to_string(const Fingerprint& fingerprint);  // "all_reduce(sum, f32, 100 elements), number 7";
                                                                     // of a list: ", tensor 1 of 3" (from 0) after it,
                                                                     // of a unit: ", for unit 2" (from 0)

namespace detail {

// While it lives, the collectives that this thread begins are for that unit. Ranks whose units have the same size, and
// that come to them in different orders, would mix them up. Private to the library.
class CollectivesOfUnit {
 public:
  explicit CollectivesOfUnit(std::int32_t unit) : outer_(std::exchange(current_, unit)) {}
  ~CollectivesOfUnit() { current_ = outer_; }
  CollectivesOfUnit(const CollectivesOfUnit&) = delete;
  CollectivesOfUnit& operator=(const CollectivesOfUnit&) = delete;
  static std::int32_t current() { return current_; }

 private:
  static thread_local std::int32_t current_;
  const std::int32_t outer_;
};

}  // namespace detail
}  // namespace lockstep
