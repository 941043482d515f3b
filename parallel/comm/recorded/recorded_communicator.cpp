#include "lockstep/parallel/comm/recorded/recorded_communicator.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/order/order.h"
#include "lockstep/runtime/record/recorded_device.h"
#include "lockstep/runtime/record/waiting.h"

namespace lockstep::detail {
namespace {

using Kind = Collective::Kind;

// What ranks of this process have brought to an exchange, by its number.
struct Exchanges {
  struct Entry {
    std::vector<std::string> brought;
    int missing, unread;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::uint64_t, Entry> all;
  std::string broken;
  int broken_by = -1;
  std::map<std::string, std::shared_ptr<Exchanges>> parts;  // by the id of a split
};

// Bytes as nccl-tests counts them: all that the larger side holds.
std::uint64_t bytes_of(const Collective& collective, int size) {
  const auto one = static_cast<std::uint64_t>(collective.count) * size_of(collective.dtype);
  switch (collective.kind) {
    case Kind::all_gather:
    case Kind::gather:
    case Kind::scatter:
    case Kind::reduce_scatter:
    case Kind::all_to_all:
      return one * static_cast<std::uint64_t>(size);
    case Kind::all_reduce:
    case Kind::broadcast:
    case Kind::reduce:
    case Kind::send:
    case Kind::recv:
    case Kind::exchange:
      break;
  }
  return one;
}

class RecordedCommunicator final : public Communicator {
 public:
  RecordedCommunicator(int rank, int size, Device device, Milliseconds timeout, std::string group,
                       std::shared_ptr<Exchanges> exchanges, int hosts = 0)
      : Communicator(rank, size, device, timeout),
        group_(std::move(group)),
        exchanges_(std::move(exchanges)),
        hosts_(hosts) {}
  const char* backend() const override { return "recorded"; }
  int host_count() const override { return hosts_; }

 private:
  void enqueue(const Collective& collective, const Stream& stream) override {
    const RecordedDevice on(device().index());
    Recorder::active()->collective(lockstep::detail::number_of(stream.handle()), {.name = to_string(collective.kind),
                                                                                  .dtype = to_string(collective.dtype),
                                                                                  .bytes = bytes_of(collective, size()),
                                                                                  .group = group_,
                                                                                  .rank = rank(),
                                                                                  .size = size(),
                                                                                  .root = collective.peer});
  }
  void enqueue_batch(std::vector<Collective> transfers, const Stream& stream) override {
    for (const Collective& each : transfers) enqueue(each, stream);
  }

  std::vector<std::string> exchange(const Collective& collective, const std::string& mine) override {
    const auto count = static_cast<std::size_t>(size());
    if (!exchanges_) return std::vector<std::string>(count, mine);
    Exchanges& all = *exchanges_;
    std::unique_lock lock(all.mutex);
    const std::uint64_t number = collective.sequence;
    const auto [at, first] =
        all.all.try_emplace(number, Exchanges::Entry{std::vector<std::string>(count), size(), size()});
    Exchanges::Entry& entry = at->second;  // stays until all have read it
    if (first) forget_hand_overs(&entry);
    entry.brought[static_cast<std::size_t>(rank())] = mine;
    hand_over(&entry);
    --entry.missing;
    const auto over = [&] { return entry.missing == 0 || !all.broken.empty(); };
    all.changed.notify_all();
    const bool in_time = wait_until(all.changed, lock, Deadline::after(collective.timeout), over);
    if (entry.missing > 0) {
      lock.unlock();
      throw break_with(in_time ? CommError(all.broken_by, "exchange", all.broken)
                               : CommError(-1, "exchange", "not all ranks came before the deadline"));
    }
    take_over(&entry);
    std::vector<std::string> brought = entry.brought;
    if (--entry.unread == 0) all.all.erase(at);
    return brought;
  }

  std::unique_ptr<Communicator> make_split(const std::vector<int>& members, int index, const std::string& id) override {
    if (!exchanges_)
      throw NotSupported("[split] expected ranks that are recorded together, as run_ranks makes them, got one alone");
    const std::lock_guard lock(exchanges_->mutex);
    std::shared_ptr<Exchanges>& part = exchanges_->parts[id];
    if (!part) part = std::make_shared<Exchanges>();
    return std::make_unique<RecordedCommunicator>(index, static_cast<int>(members.size()), device(), timeout(),
                                                  cat(group_, '/', id), part);
  }

  void on_broken(const CommError& error) override {
    if (!exchanges_) return;
    {
      const std::lock_guard lock(exchanges_->mutex);
      if (!exchanges_->broken.empty()) return;
      exchanges_->broken = error.what();
      exchanges_->broken_by = error.rank;
    }
    exchanges_->changed.notify_all();
  }

  const std::string group_;
  const std::shared_ptr<Exchanges> exchanges_;  // null: of a rank alone
  const int hosts_;
};

// The communicators that a process makes are numbered; ranks alone make them in the same order on every rank.
std::string new_group(const char* kind) {
  static std::atomic<int> made{0};
  return cat(kind, made.fetch_add(1));
}

}  // namespace

bool is_recorded(Device device) { return device.type() == DeviceType::host && Recorder::active(); }

std::unique_ptr<Communicator> make_recorded_rank(int rank, int size, int local_size, Device device,
                                                 Milliseconds timeout) {
  const int hosts = local_size < 1 ? 1 : (size + local_size - 1) / local_size;
  return std::make_unique<RecordedCommunicator>(rank, size, device, timeout, new_group("ranks"), nullptr, hosts);
}

std::vector<std::unique_ptr<Communicator>> make_recorded_group(std::span<const Device> devices, Milliseconds timeout) {
  const std::string group = new_group("threads");
  const auto exchanges = std::make_shared<Exchanges>();
  std::vector<std::unique_ptr<Communicator>> made;
  for (const Device device : devices)
    made.push_back(std::make_unique<RecordedCommunicator>(
        static_cast<int>(made.size()), static_cast<int>(devices.size()), device, timeout, group, exchanges));
  return made;
}

}  // namespace lockstep::detail
