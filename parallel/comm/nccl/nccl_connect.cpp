// How the ranks of an NCCL communicator come together.
#include <algorithm>
#include <cstdlib>
#include <map>

#include "lockstep/kernels/api.h"
#include "lockstep/parallel/comm/nccl/nccl_rank.h"
#include "lockstep/parallel/comm/nccl/patience.h"
#include "lockstep/parallel/comm/odd_one_out.h"
#include "lockstep/parallel/comm/shared_by_name.h"
#include "lockstep/runtime/cuda/current_device.h"
#include "lockstep/runtime/cuda/native_stream.h"
#include "lockstep/runtime/service_thread.h"

namespace lockstep::nccl {
namespace {

// How long ranks that do not agree on their number wait for what the others say of it.
constexpr Milliseconds kSizeTime{1'000};

}  // namespace

void Rank::connect(Milliseconds timeout) {
  constexpr const char* kName = "make_nccl_communicator";
  const Deadline deadline = Deadline::after(timeout);
  default_stream(device_);    // starts the device
  kernels::prepare(device_);  // nothing is loaded while a collective spins
  const int rank = oob_.rank(), size = oob_.size();
  const auto check_health = [&] {
    if (const std::optional<CommError> error = failure_of_others()) throw *error;
    publish_state_if_asked();
  };
  agree_on_size(timeout, deadline, check_health);

  // Who else is in this process?
  const int gpu = native_ordinal(device_);
  const std::vector<std::string> places =
      oob_.exchange("process", cat(detail::process_token(), ' ', gpu), kName, timeout, check_health, deadline);
  std::vector<int> locals;
  member_of_rank_.assign(static_cast<std::size_t>(size), -1);
  for (int r = 0; r < size; ++r) {
    const std::string& place = places[static_cast<std::size_t>(r)];
    if (!place.starts_with(detail::process_token() + ' ')) continue;
    LOCKSTEP_CHECK(r == rank || place != places[static_cast<std::size_t>(rank)], "[", kName,
                   "] expected a GPU for every rank, got GPU ", gpu, " for ranks ", std::min(r, rank), " and ",
                   std::max(r, rank), " (logical devices that share one need a PeerCommunicator)");
    member_of_rank_[static_cast<std::size_t>(r)] = static_cast<int>(locals.size());
    locals.push_back(r);
  }

  UniqueId id{};
  if (rank == 0) {
    const Result result = nccl_.get_unique_id(&id);
    if (result != kSuccess) throw CommError(0, kName, cat("ncclGetUniqueId: ", explain(result)));
    oob_.publish("id", std::string(id.internal, sizeof id.internal));
  }
  id_ = oob_.wait_for("id", 0, kName, timeout, deadline, check_health);
  if (id_.size() != sizeof id.internal) throw CommError(0, kName, "expected a unique id of NCCL, got something else");
  std::copy(id_.begin(), id_.end(), id.internal);

  static auto* const places_of_process = new detail::SharedByName<detail::MeetingPlace>;
  enter_process();
  place_ = places_of_process->get(id_, locals.size(), [&] { return std::make_shared<detail::MeetingPlace>(locals); });

  const auto init = [this, size, rank, id](Comm& made) {
    const cuda::CurrentDevice current(device_);
    Config config;
    config.blocking = blocking_;
    return nccl_.comm_init_rank_config(&made, size, id, rank, &config);
  };
  const auto check_result = [&](Result result) {
    if (result != kSuccess && result != kInProgress)
      throw CommError(rank, kName, cat("ncclCommInitRankConfig: ", explain(result)));
  };
  if (blocking_) return check_result(init_in_a_thread(init, kName, deadline, timeout));
  std::unique_lock lock(use_);
  check_result(init(comm_));
  wait_until_ready(lock, kName, deadline, timeout);
}

// Nobody has a communicator to abort before NCCL returns it, and NCCL may wait for ever for a rank that is gone: this
// thread goes on at the deadline, and the other one aborts what it may still get.
Result Rank::init_in_a_thread(const std::function<Result(Comm&)>& init, const char* what, Deadline deadline,
                              Milliseconds timeout) {
  struct Made {
    std::mutex mutex;
    std::optional<Result> result;
    Comm comm = nullptr;
    bool given_up = false;
  };
  const auto made = std::make_shared<Made>();
  detail::start_service_thread("lockstep-nccl", [self = shared_from_this(), made, init] {
    Comm comm = nullptr;
    Result result = kInternalError;
    try {
      result = init(comm);
    } catch (...) {  // the device is lost
    }
    const std::lock_guard lock(made->mutex);
    made->result = result;
    made->comm = comm;
    if (made->given_up) self->abort_unowned(comm);
  });
  try {
    Clock::time_point next_check = Clock::now() + kStoreInterval;
    for (Patience patience(kSpinTime);; patience.pass()) {
      {
        const std::lock_guard lock(made->mutex);
        if (made->result) {
          const std::lock_guard use(use_);
          comm_ = std::exchange(made->comm, nullptr);
          return *made->result;
        }
      }
      check_while_waiting(what, deadline, timeout, next_check);
    }
  } catch (...) {
    const std::lock_guard lock(made->mutex);
    made->given_up = true;
    abort_unowned(made->comm);
    throw;
  }
}

void Rank::abort_unowned(Comm comm) noexcept try {
  const cuda::CurrentDevice current(device_);
  if (comm) (void)nccl_.comm_abort(comm);
} catch (...) {  // the device is lost, and the communicator with it
}

// NCCL would wait for ranks that there are not.
void Rank::agree_on_size(Milliseconds timeout, Deadline deadline, const std::function<void()>& check_health) {
  constexpr const char* kName = "make_nccl_communicator";
  oob_.publish("size", std::to_string(oob_.size()));
  std::map<int, int> sizes{{oob_.rank(), oob_.size()}};  // by rank, as far as they have said
  int most = oob_.size();
  bool agreed = true;
  for (int r = 0; r < oob_.size() && agreed; ++r) {
    if (r == oob_.rank()) continue;
    const int its = std::atoi(oob_.wait_for("size", r, kName, timeout, deadline, check_health).c_str());
    sizes[r] = its;
    most = std::max(most, its);
    agreed = its == oob_.size();
  }
  if (agreed) return;
  // Whoever says what most say is right, so the others are heard, if they come soon: not all of them need exist.
  const Deadline soon = Deadline::after(std::min(kSizeTime, deadline.left()));
  for (Patience patience(std::chrono::microseconds(0));; patience.pass()) {
    const bool last = soon.passed();
    for (int r = 0; r < most; ++r)
      if (!sizes.contains(r))
        if (const std::optional<std::string> its = oob_.peek("size", r)) sizes[r] = std::atoi(its->c_str());
    if (last || std::ssize(sizes) >= most) break;
    check_health();
  }
  const std::vector<std::pair<int, int>> said(sizes.begin(), sizes.end());
  const auto of = [&](int i) { return said[static_cast<std::size_t>(i)]; };
  const auto [odd, usual] =
      *detail::odd_one_out(static_cast<int>(said.size()), [&](int a, int b) { return of(a).second == of(b).second; });
  throw CommError(of(odd).first, kName,
                  cat("expected all ranks to be of as many, got rank ", of(odd).first, " of ", of(odd).second,
                      " and rank ", of(usual).first, " of ", of(usual).second));
}

}  // namespace lockstep::nccl
