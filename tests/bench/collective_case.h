// One collective of the benchmarks: its tensors, with inputs whose results are exactly known, and the call.
#pragma once

#include <cstdint>

#include "lockstep/parallel/comm/communicator.h"

namespace lockstep::bench {

// Beside Collective's kinds: sendrecv, each rank to the next one, is Kind::send here.
class CollectiveCase {
 public:
  using Kind = lockstep::Collective::Kind;

  // `bytes`: of the whole message, as nccl-tests counts (of all ranks' parts for all_gather and its like); rounded down
  // to whole elements for each rank.
  CollectiveCase(lockstep::Communicator& comm, Kind kind, lockstep::DType dtype, lockstep::RedOp reduction, int root,
                 std::size_t bytes, bool in_place);

  void fill();  // the inputs anew, and zeros where the results come
  void perform();
  std::int64_t count_wrong() const;  // elements of the output; waits for the stream
  // Makes an element of the output wrong, where there is one that is looked at: so that it can be seen to be noticed.
  void spoil();

  static std::int64_t count_of(Kind kind, lockstep::DType dtype, std::size_t bytes, int ranks);  // of one rank's part
  static std::size_t bytes_of(Kind kind, lockstep::DType dtype, std::int64_t count, int ranks);  // of the message
  static bool has_many_parts(Kind kind);
  // Of the bandwidth of the message to that which each rank's link must have.
  static double bus_factor(Kind kind, int ranks);

 private:
  int input_parts() const;
  int output_parts() const;
  double element(int rank, int part, std::int64_t i) const;
  double expected(int part, std::int64_t i) const;
  bool is_checked() const;  // the output, on this rank

  lockstep::Communicator& comm_;
  Kind kind_;
  lockstep::DType dtype_;
  lockstep::RedOp reduction_;
  int root_;
  std::int64_t count_;
  bool in_place_;
  lockstep::Tensor input_, output_;
};

}  // namespace lockstep::bench
