#include "lockstep/parallel/comm/communicator.h"

#include <algorithm>
#include <charconv>
#include <tuple>

#include "lockstep/parallel/comm/ended_fellows.h"
#include "lockstep/parallel/comm/tensor_checks.h"
#include "lockstep/parallel/comm/thrown_failure.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/library_threads.h"
#include "lockstep/runtime/stream/capture.h"
#include "lockstep/runtime/stream/declare.h"
#include "lockstep/runtime/stream/work_scope.h"
#include "lockstep/tensor/captured_storages.h"

namespace lockstep {
namespace {

using Kind = Collective::Kind;
using detail::check_overlap;
using detail::check_pair;
using detail::check_tensor;

}  // namespace

Communicator::Communicator(int rank, int size, Device device, Milliseconds timeout)
    : rank_(rank),
      size_(size),
      device_(device),
      timeout_(timeout),
      generation_(detail::fork_generation()),
      sent_(static_cast<std::size_t>(std::max(size, 0))),
      received_(sent_.size()) {
  LOCKSTEP_CHECK(size > 0 && rank >= 0 && rank < size,
                 "[Communicator] expected a rank below the number of ranks, got rank ", rank, " of ", size);
  LOCKSTEP_CHECK(device.type() != DeviceType::cpu, "[Communicator] expected a host or CUDA device, got cpu");
  LOCKSTEP_CHECK(timeout.count() > 0, "[Communicator] expected a positive timeout, got ", timeout.count(), " ms");
}

// ---- failures

const Communicator*& detail::last_thrown_failure() {
  static thread_local const Communicator* communicator = nullptr;
  return communicator;
}

std::optional<CommError> Communicator::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Communicator::check() const {
  detail::check_generation("communicator", generation_);
  if (!broken()) [[likely]]
    return;
  detail::last_thrown_failure() = this;
  throw *failure();
}

CommError Communicator::break_with(const CommError& error) {
  detail::last_thrown_failure() = this;  // by a rank's own thread when a call of its fails; streams have theirs
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return *failure_;
    failure_ = error;
    broken_.store(true, std::memory_order_release);
  }
  failure_report_(error);
  on_broken(error);
  return error;
}

void Communicator::abort(const std::string& reason) {
  break_with(CommError(rank_, "abort", cat("rank ", rank_, " aborted: ", reason)));
}

// ---- collectives

std::uint64_t& Communicator::number_of(const Collective& collective) {
  if (collective.kind == Kind::send) return sent_[static_cast<std::size_t>(collective.peer)];
  if (collective.kind == Kind::recv) return received_[static_cast<std::size_t>(collective.peer)];
  return sequence_;
}

// What is about to be enqueued reads and writes these.
void Communicator::use_on(const Stream& stream, const char* name, std::span<const Tensor> inputs,
                          std::span<const Tensor> outputs) {
  std::vector<MemoryUse> uses;
  const auto note = [](const Tensor& tensor, bool writes) {
    if (lockstep::detail::current_capture) [[unlikely]]
      lockstep::detail::note_use(tensor.storage(), writes);
  };
  for (const Tensor& input : inputs) {
    if (!input.defined()) continue;
    note(input, false);
    LOCKSTEP_EDGE(input.storage()->record_use(stream));
    if (stream.checked()) uses.push_back(MemoryUse::read(input.data(), input.bytes(), device_));
  }
  for (const Tensor& output : outputs) {
    if (!output.defined()) continue;
    note(output, true);
    LOCKSTEP_EDGE(output.storage()->record_use(stream));
    LOCKSTEP_EDGE(output.storage()->before_write(stream));
    if (stream.checked()) uses.push_back(MemoryUse::write(output.data(), output.bytes(), device_));
    output.mark_changed();
  }
  if (stream.checked()) declare(stream, name, uses);
}

std::string Communicator::why_not_captured() {
  return cat("a collective over ", backend(), ", which no replay would make; those over nccl can be recorded");
}

void Communicator::check_capture(const char* name, const Stream& stream) {
  lockstep::detail::Capture* const capture = lockstep::detail::current_capture;
  if (!capture) [[likely]]
    return;
  if (const std::string why = why_not_captured(); !why.empty()) capture->refuse(name, why);
  if (!capture->records(stream))
    capture->refuse(name, cat("a collective on a stream of ", device_, " that is not captured"));
}

void Communicator::submit(Collective collective, const Tensor& input, const Tensor& output) {
  check();
  const char* name = to_string(collective.kind);
  const Stream stream = current_stream(device_);
  check_capture(name, stream);
  if (collective.has_root() || collective.pairwise())
    LOCKSTEP_CHECK(collective.peer >= 0 && collective.peer < size_, "[", name, "] expected a rank from 0 to ",
                   size_ - 1, ", got ", collective.peer);
  const Tensor& any = input.defined() ? input : output;
  collective.dtype = any.dtype();
  LOCKSTEP_CHECK(!collective.reduces() || collective.reduction != RedOp::avg || is_floating(collective.dtype), "[",
                 name, "] expected a floating dtype for avg, got ", collective.dtype);
  collective.input = input.defined() ? input.data() : nullptr;
  collective.output = output.defined() ? const_cast<void*>(output.data()) : nullptr;
  collective.timeout = timeout_;
  collective.unit = lockstep::detail::CollectivesOfUnit::current();

  use_on(stream, name, {&input, 1}, {&output, 1});
  if (!lockstep::detail::current_capture) [[likely]]
    collective.sequence = ++number_of(collective);
  if (trace::active()) [[unlikely]] {
    const trace::WorkScope scope(stream, {.name = name, .kind = trace::Kind::kernel});
    enqueue(collective, stream);
  } else {
    enqueue(collective, stream);
  }
}

void Communicator::all_reduce(const Tensor& input, const Tensor& output, RedOp reduction) {
  check_tensor("all_reduce", "input", input, device_);
  check_tensor("all_reduce", "output", output, device_);
  check_pair("all_reduce", input, output, 1, true);
  check_overlap("all_reduce", input, output, 0);
  submit({.kind = Kind::all_reduce, .reduction = reduction, .count = input.count()}, input, output);
}

void Communicator::broadcast(const Tensor& tensor, int root) {
  check_tensor("broadcast", "the tensor", tensor, device_);
  const bool sends = rank_ == root;
  submit({.kind = Kind::broadcast, .count = tensor.count(), .peer = root}, sends ? tensor : Tensor(),
         sends ? Tensor() : tensor);
}

void Communicator::reduce(const Tensor& input, const Tensor& output, int root, RedOp reduction) {
  check_tensor("reduce", "input", input, device_);
  if (rank_ == root) {
    check_tensor("reduce", "output", output, device_);
    check_pair("reduce", input, output, 1, true);
    check_overlap("reduce", input, output, 0);
  }
  submit({.kind = Kind::reduce, .reduction = reduction, .count = input.count(), .peer = root}, input,
         rank_ == root ? output : Tensor());
}

void Communicator::all_gather(const Tensor& input, const Tensor& output) {
  check_tensor("all_gather", "input", input, device_);
  check_tensor("all_gather", "output", output, device_);
  check_pair("all_gather", input, output, size_, true);
  check_overlap("all_gather", input, output, rank_ * input.count());
  submit({.kind = Kind::all_gather, .count = input.count()}, input, output);
}

void Communicator::gather(const Tensor& input, const Tensor& output, int root) {
  check_tensor("gather", "input", input, device_);
  if (rank_ == root) {
    check_tensor("gather", "output", output, device_);
    check_pair("gather", input, output, size_, true);
    check_overlap("gather", input, output, rank_ * input.count());
  }
  submit({.kind = Kind::gather, .count = input.count(), .peer = root}, input, rank_ == root ? output : Tensor());
}

void Communicator::scatter(const Tensor& input, const Tensor& output, int root) {
  check_tensor("scatter", "output", output, device_);
  if (rank_ == root) {
    check_tensor("scatter", "input", input, device_);
    check_pair("scatter", input, output, size_, false);
    check_overlap("scatter", input, output, rank_ * output.count());
  }
  submit({.kind = Kind::scatter, .count = output.count(), .peer = root}, rank_ == root ? input : Tensor(), output);
}

void Communicator::reduce_scatter(const Tensor& input, const Tensor& output, RedOp reduction) {
  check_tensor("reduce_scatter", "input", input, device_);
  check_tensor("reduce_scatter", "output", output, device_);
  check_pair("reduce_scatter", input, output, size_, false);
  check_overlap("reduce_scatter", input, output, rank_ * output.count());
  submit({.kind = Kind::reduce_scatter, .reduction = reduction, .count = output.count()}, input, output);
}

void Communicator::all_to_all(const Tensor& input, const Tensor& output) {
  check_tensor("all_to_all", "input", input, device_);
  check_tensor("all_to_all", "output", output, device_);
  check_pair("all_to_all", input, output, 1, true);
  LOCKSTEP_CHECK(input.count() % size_ == 0, "[all_to_all] expected a number of elements that ", size_,
                 " ranks can share, got ", input.describe());
  check_overlap("all_to_all", input, output, -1);
  submit({.kind = Kind::all_to_all, .count = input.count() / size_}, input, output);
}

void Communicator::send(const Tensor& tensor, int destination) {
  check_tensor("send", "the tensor", tensor, device_);
  LOCKSTEP_CHECK(destination != rank_, "[send] expected another rank than this one, got ", destination);
  submit({.kind = Kind::send, .count = tensor.count(), .peer = destination}, tensor, Tensor());
}

void Communicator::recv(const Tensor& tensor, int source) {
  check_tensor("recv", "the tensor", tensor, device_);
  LOCKSTEP_CHECK(source != rank_, "[recv] expected another rank than this one, got ", source);
  submit({.kind = Kind::recv, .count = tensor.count(), .peer = source}, Tensor(), tensor);
}

// ---- between the hosts

std::vector<std::string> Communicator::exchange_bytes(const std::string& mine) {
  check();
  const trace::Scope scope("exchange");
  return exchange({.kind = Kind::exchange, .sequence = ++exchanges_, .timeout = timeout_}, mine);
}

void Communicator::barrier() { exchange_bytes(""); }

std::vector<std::string> Communicator::all_gather_bytes(const std::string& mine) { return exchange_bytes(mine); }

std::string Communicator::broadcast_bytes(const std::string& mine, int root) {
  LOCKSTEP_CHECK(root >= 0 && root < size_, "[broadcast_bytes] expected a rank from 0 to ", size_ - 1, ", got ", root);
  return exchange_bytes(rank_ == root ? mine : "").at(static_cast<std::size_t>(root));
}

std::unique_ptr<Communicator> Communicator::split(int color, int key) {
  const std::vector<std::string> answers = exchange_bytes(cat(color, ' ', key));
  std::vector<std::tuple<int, int>> members;  // key, rank
  for (int r = 0; r < size_; ++r) {
    const std::string& answer = answers[static_cast<std::size_t>(r)];
    int its_color = 0, its_key = 0;
    const char* end = answer.data() + answer.size();
    const auto [space, error] = std::from_chars(answer.data(), end, its_color);
    if (error == std::errc() && space != end) std::from_chars(space + 1, end, its_key);
    if (its_color == color) members.emplace_back(its_key, r);
  }
  const std::uint64_t number = ++splits_;
  if (color < 0) return nullptr;
  std::sort(members.begin(), members.end());
  std::vector<int> ranks;
  for (const auto& [its_key, r] : members) ranks.push_back(r);
  return make_part(ranks, cat(number, '.', color));
}

std::unique_ptr<Communicator> Communicator::make_part(const std::vector<int>& members, const std::string& id) {
  const auto index = std::find(members.begin(), members.end(), rank_) - members.begin();
  detail::FailureReport report = failure_report_;
  report.ranks.clear();
  if (!failure_report_.ranks.empty())
    for (const int r : members) report.ranks.push_back(failure_report_.ranks[static_cast<std::size_t>(r)]);
  try {
    auto made = make_split(members, static_cast<int>(index), id);
    made->set_failure_report(std::move(report));
    return made;
  } catch (const CommError& error) {
    report(error);
    throw;
  }
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): those that override it keep them
void Communicator::enqueue_batch(std::vector<Collective>, const Stream&) {
  throw NotSupported(
      cat("[transfer] expected a communicator that sends and receives at the same time, got ", backend()));
}
detail::RollCall Communicator::roll_call() {
  throw NotSupported(cat("[shrink] expected a communicator whose ranks can meet without it, got ", backend()));
}

std::unique_ptr<Communicator> Communicator::shrink(const ShrinkOptions& options) {
  detail::check_generation("communicator", generation_);
  const Milliseconds timeout = options.timeout.value_or(timeout_);
  LOCKSTEP_CHECK(timeout.count() > 0, "[shrink] expected a positive timeout, got ", timeout.count(), " ms");
  for (const int r : options.exclude)
    LOCKSTEP_CHECK(r >= 0 && r < size_, "[shrink] expected ranks from 0 to ", size_ - 1, " to exclude, got ", r);
  const trace::Scope scope("shrink");
  const detail::RollCall call = detail::with_ended_ranks(roll_call(), failure_report_.ranks);
  const std::uint64_t number = ++shrinks_;
  const std::vector<int> members = detail::agree_on_survivors(call, number, rank_, size_, options.exclude, timeout);
  std::unique_ptr<Communicator> made = make_part(members, cat("shrink.", number));
  made->barrier();  // all members have theirs, or all hear who has not
  if (failure_report_.send_recovery) failure_report_.send_recovery(made->failure_report_.ranks);
  return made;
}

}  // namespace lockstep
