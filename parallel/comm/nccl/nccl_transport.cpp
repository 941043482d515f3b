#include "lockstep/parallel/comm/nccl/nccl_transport.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "lockstep/parallel/comm/nccl/nccl_communicator.h"
#include "lockstep/parallel/comm/nccl/nccl_rank.h"
#include "lockstep/parallel/comm/store/local_store.h"

namespace lockstep::detail {
namespace {

constexpr const char* kDataParallel = "DataParallel";

class NcclTransport final : public ReplicaTransport {
 public:
  NcclTransport(std::vector<Device> devices, Milliseconds timeout) : devices_(std::move(devices)), timeout_(timeout) {
    connect();
  }
  ~NcclTransport() override { close(); }

  const char* name() const override { return "nccl"; }
  std::span<const Device> devices() const override { return devices_; }
  std::uint64_t failures() const override { return failures_->load(std::memory_order_acquire); }

  void broadcast(std::span<const std::vector<Tensor>> ranges) override {
    run([&](std::size_t d, std::vector<Collective>& calls) {
      for (const std::vector<Tensor>& range : ranges) {
        const Tensor& mine = range[d];
        calls.push_back({.kind = Collective::Kind::broadcast,
                         .dtype = mine.dtype(),
                         .count = mine.count(),
                         .peer = 0,
                         .input = d == 0 ? mine.data() : nullptr,
                         .output = d == 0 ? nullptr : const_cast<void*>(static_cast<const void*>(mine.data()))});
        mine.storage()->record_use(current_stream(devices_[d]));
      }
    });
  }

  void sum(const std::vector<Tensor>& parts, const Tensor& sum) override {
    run([&](std::size_t d, std::vector<Collective>& calls) {
      calls.push_back({.kind = Collective::Kind::reduce,
                       .dtype = sum.dtype(),
                       .count = sum.count(),
                       .peer = 0,
                       .input = parts[d].data(),
                       .output = d == 0 ? sum.view().data : nullptr});
      parts[d].storage()->record_use(current_stream(devices_[d]));
    });
  }

 private:
  // NCCL's communicators are made by as many threads: each blocks until the others have come.
  void connect() {
    const std::shared_ptr<Store> store = make_local_store();
    std::vector<std::shared_ptr<nccl::Rank>> made(devices_.size());
    std::vector<std::exception_ptr> errors(devices_.size());
    const auto make = [&](std::size_t r) noexcept {
      try {
        made[r] = std::make_shared<nccl::Rank>(
            nccl::OutOfBand(store, static_cast<int>(r), static_cast<int>(devices_.size())), devices_[r],
            /*blocking=*/false, [failures = failures_](const CommError&) { ++*failures; });
        made[r]->connect(timeout_);
        add_in_flight(made[r]);
      } catch (const CommError& error) {
        if (made[r]) made[r]->fail(error);
        errors[r] = std::current_exception();
      } catch (...) {
        if (made[r]) made[r]->fail(CommError(static_cast<int>(r), kDataParallel, describe(std::current_exception())));
        errors[r] = std::current_exception();
      }
    };
    std::vector<std::thread> threads;
    threads.reserve(devices_.size());
    for (std::size_t r = 0; r < devices_.size(); ++r) threads.emplace_back(make, r);
    for (std::thread& thread : threads) thread.join();
    ranks_ = std::move(made);
    const auto failed = std::find_if(errors.begin(), errors.end(), [](const auto& error) { return error != nullptr; });
    if (failed == errors.end()) return;
    close();
    std::rethrow_exception(*failed);
  }
  void close() noexcept {
    for (const auto& rank : ranks_)
      if (rank) rank->close();
    ranks_.clear();
  }

  template <class Fill>
  void run(Fill&& fill) {
    const std::lock_guard lock(mutex_);
    const auto has_failed = [](const auto& rank) { return rank->failure().has_value(); };
    if (ranks_.empty() || std::any_of(ranks_.begin(), ranks_.end(), has_failed)) {
      close();
      connect();
    }
    std::vector<std::vector<Collective>> calls(ranks_.size());
    std::vector<Stream> streams;
    for (std::size_t d = 0; d < ranks_.size(); ++d) {
      fill(d, calls[d]);
      streams.push_back(current_stream(devices_[d]));
      for (std::size_t i = 0; i < calls[d].size(); ++i) {
        calls[d][i].sequence = sequence_ + i + 1;
        calls[d][i].timeout = timeout_;
      }
    }
    if (calls[0].empty()) return;
    sequence_ += calls[0].size();
    nccl::Rank::launch_together(ranks_, calls, streams);
  }

  const std::vector<Device> devices_;
  const Milliseconds timeout_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<nccl::Rank>> ranks_;
  std::uint64_t sequence_ = 0;
  const std::shared_ptr<std::atomic<std::uint64_t>> failures_ = std::make_shared<std::atomic<std::uint64_t>>(0);
};

}  // namespace

std::shared_ptr<ReplicaTransport> make_nccl_transport(const std::vector<Device>& devices, Milliseconds timeout) {
  for (const Device device : devices)
    LOCKSTEP_CHECK(device.type() == DeviceType::cuda, "[", kDataParallel,
                   "] expected CUDA devices for the transport nccl, got ", device);
  if (std::string why = why_no_nccl(); !why.empty()) throw NotSupported(std::move(why));
  static std::mutex mutex;
  static auto* const known =
      new std::map<std::pair<std::vector<Device>, Milliseconds>, std::weak_ptr<ReplicaTransport>>;
  const std::lock_guard lock(mutex);
  std::weak_ptr<ReplicaTransport>& place = (*known)[{devices, timeout}];
  std::shared_ptr<ReplicaTransport> transport = place.lock();
  if (!transport) place = transport = std::make_shared<NcclTransport>(devices, timeout);
  return transport;
}

}  // namespace lockstep::detail
