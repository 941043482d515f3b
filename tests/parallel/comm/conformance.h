// What every communicator must do, written once. A way to make ranks goes in, Catch2 assertions come out:
//
//   TEST_CASE("communicator: over smoke signals") {
//     for (const conformance::Check& check : conformance::checks())
//       DYNAMIC_SECTION(check.name) { check.run(smoke_signals()); }
//   }
#pragma once

#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "support/messages.h"
#include "support/watched.h"

namespace conformance {

using namespace lockstep;
using support::missing;
using support::watched;

// One rank's part of a check: returns what it found wrong, "" for nothing. It may run in a process of its own, so it
// only reads what it captured, and makes no Catch2 assertions.
using Body = std::function<std::string(Communicator&)>;

struct Ranks {
  std::string name;
  // Makes `count` ranks that belong together, with that time-out, and calls `body` for all of them at the same time,
  // each with a stream of its own current for its device. A rank's communicator is destroyed when its body returns or
  // throws, whatever the others do. Returns what the bodies returned, by rank, "threw: " and the message where one
  // threw (nobody is aborted for it).
  std::function<std::vector<std::string>(int count, Milliseconds timeout, const Body& body)> run;
  int most = 5;  // ranks
  // What need not hold everywhere:
  bool rank_order = true;       // floating sums are those of the ranks in their order, to the bit
  bool compares = true;         // calls that differ are an error at once that names both
  bool names_missing = true;    // at the deadline, the error names who has not come
  bool notices_leaving = true;  // a rank that has destroyed its communicator is named at once
  bool hears_in_calls = true;   // of a failure a rank hears in its collectives alone, which its error names
  bool shrinks = true;          // the ranks that are left can go on
  std::vector<DType> dtypes = {DType::f32, DType::f64, DType::f16, DType::bf16,   DType::i32,
                               DType::i64, DType::u8,  DType::i8,  DType::boolean};
};

struct Check {
  const char* name;
  void (*run)(const Ranks&);
};
std::span<const Check> checks();

// ---- for writing checks

// Long enough for a step under a sanitizer on a busy machine: no check waits for it to pass.
inline constexpr Milliseconds kPatience{60'000};

// Every rank must return "".
void expect_all(const Ranks& ranks, int count, const Body& body, Milliseconds timeout = kPatience);
// Number of ranks from `fewest` to ranks.most.
std::vector<int> counts(const Ranks& ranks, int fewest = 1);

// Calls `body`, waits for the current stream, and returns "" when one of the two threw a CommError whose message has
// all the parts, and which names the rank `named` (-1: any).
std::string comm_error(Communicator& comm, std::initializer_list<std::string> parts, const std::function<void()>& body,
                       int named = -1);
// "" when `body` throws an InvalidArgument with all the parts.
std::string refused(std::initializer_list<std::string> parts, const std::function<void()>& body);

Tensor tensor_of(const std::vector<double>& values, DType dtype, Device device);
// "" when the tensor has these elements, else the first that differs.
std::string differs(const Tensor& tensor, const std::vector<double>& expected);

// The groups of checks.
void every_collective(const Ranks& ranks);
void large_messages(const Ranks& ranks);
void order_of_ranks(const Ranks& ranks);
void rounds_once(const Ranks& ranks);
void many_in_a_row(const Ranks& ranks);
void send_and_receive(const Ranks& ranks);
void exchanges(const Ranks& ranks);
void splits(const Ranks& ranks);
void two_at_once(const Ranks& ranks);
void uneven_all_to_all(const Ranks& ranks);
void batches(const Ranks& ranks);
void several_tensors(const Ranks& ranks);
void disagreeing_lists(const Ranks& ranks);
void shrinks(const Ranks& ranks);
void shrinks_without_failure(const Ranks& ranks);
void wrong_arguments(const Ranks& ranks);
void disagreements(const Ranks& ranks);
void disagreeing_pairs(const Ranks& ranks);
void aborts(const Ranks& ranks);
void leaving(const Ranks& ranks);
void deadlines(const Ranks& ranks);
void all_missing(const Ranks& ranks);
void after_a_failure(const Ranks& ranks);

}  // namespace conformance
