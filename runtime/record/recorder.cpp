#include "lockstep/runtime/record/recorder.h"

#include <algorithm>

#include "lockstep/runtime/error.h"

namespace lockstep::detail {
namespace {
thread_local std::uint32_t own_number = 0;  // plus one; 0: not known yet
}  // namespace

constinit std::atomic<Recorder*> Recorder::active_{nullptr};

Recorder& Recorder::start() {
  static Recorder* const made = new Recorder;
  (void)made->this_thread();  // whoever uses the first device is the first
  active_.store(made, std::memory_order_release);
  return *made;
}

// ---- threads

struct Recorder::Leave {
  ~Leave() {
    if (own_number > 0 && active()) active()->go(own_number - 1);
  }
};

std::uint32_t Recorder::announce(std::string name) {
  const std::lock_guard lock(mutex_);
  Turns::Thread& turn = turns_.expect();
  const auto number = turn.number();
  if (logs_.size() <= number) logs_.resize(number + 1);
  logs_[number] = std::make_unique<Log>(std::move(name), turn);
  return number;
}

void Recorder::come(std::uint32_t number) {
  own_number = number + 1;
  turns_.join(log_of(number).turn);
}

void Recorder::go(std::uint32_t number) noexcept {
  own_number = 0;
  turns_.leave(log_of(number).turn);
}

Recorder::Log& Recorder::log_of(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  return *logs_[number];
}

Recorder::Log& Recorder::this_thread() {
  if (own_number == 0) [[unlikely]] {
    int others = 0;
    {
      const std::lock_guard lock(mutex_);
      others = unannounced_++;
    }
    static thread_local Leave leave;
    (void)leave;
    come(announce(others == 0 ? "main" : cat("thread-", others)));
  }
  Log& log = log_of(own_number - 1);
  turns_.need(log.turn);
  return log;
}

bool Recorder::wait_until(const std::function<bool()>& ready, Deadline deadline) {
  return turns_.yield_until(this_thread().turn, ready, deadline);
}

// ---- entries

template <class... Parts>
Mark Recorder::add(const Parts&... parts) {
  Log& log = this_thread();
  const std::string line = cat(parts..., '\n');
  const std::lock_guard lock(log.mutex);
  log.text += line;
  return {log.turn.number(), log.entries++, epoch_.load(std::memory_order_relaxed)};
}

int Recorder::add_stream(Device device) {
  call("create_stream");
  const std::lock_guard lock(mutex_);
  streams_.push_back({device, "stream"});
  return static_cast<int>(streams_.size()) - 1;
}

void Recorder::name_stream(StreamHandle handle, const char* label) {
  const std::lock_guard lock(mutex_);
  std::string& name = streams_[static_cast<std::size_t>(number_of(handle))].label = label;
  std::replace(name.begin(), name.end(), ' ', '-');
}

void Recorder::kernel(int stream, const KernelRecord& k) {
  add("kernel ", stream, ' ', k.name, ' ', k.dtype, ' ', k.bytes_read, ' ', k.bytes_written, ' ', k.flops, ' ',
      k.shapes.empty() ? "-" : k.shapes);
}

void Recorder::copy(int stream, Device source, Device destination, std::size_t bytes) {
  add("copy ", stream, ' ', source, ' ', destination, ' ', bytes);
}

void Recorder::fill(int stream, std::size_t bytes) { add("fill ", stream, ' ', bytes); }

Mark Recorder::record(int stream) { return add("record ", stream); }

void Recorder::wait(int stream, const Mark& event) {
  if (event.epoch == epoch_.load(std::memory_order_relaxed))
    add("wait ", stream, ' ', event.thread, ':', event.entry);
  else
    call("wait");  // for what was before the recording
}

void Recorder::host_wait(const Mark& event) {
  if (event.epoch == epoch_.load(std::memory_order_relaxed)) add("host_wait ", event.thread, ':', event.entry);
}

void Recorder::collective(int stream, const CollectiveRecord& c) {
  add("collective ", stream, ' ', c.name, ' ', c.dtype, ' ', c.bytes, ' ', c.group, ' ', c.rank, ' ', c.size, ' ',
      c.root);
}

void Recorder::task(int stream) { add("task ", stream, " host_function"); }

void Recorder::call(const char* name) { add("call ", name); }

void Recorder::item(std::size_t bytes) { add("item ", bytes); }

void Recorder::mark(std::string_view name) {
  LOCKSTEP_CHECK(!name.empty() && name.find_first_of(" \n") == std::string_view::npos,
                 "[record::mark] expected a name without spaces, got \"", name, '"');
  add("mark ", name);
}

// ---- between host threads

Mark Recorder::here() {
  Log& log = this_thread();
  {
    const std::lock_guard lock(log.mutex);
    if (log.entries > 0) return {log.turn.number(), log.entries - 1, epoch_.load(std::memory_order_relaxed)};
  }
  return add("point");
}

void Recorder::after(const Mark& mark) {
  Log& log = this_thread();
  if (mark.thread == log.turn.number() || mark.epoch != epoch_.load(std::memory_order_relaxed)) return;
  {
    const std::lock_guard lock(log.mutex);
    if (log.known.size() <= mark.thread) log.known.resize(mark.thread + 1);
    if (log.known[mark.thread] > mark.entry) return;
    log.known[mark.thread] = mark.entry + 1;
  }
  add("after ", mark.thread, ':', mark.entry);
}

void Recorder::hand_over(const void* address) {
  if (own_number == 0) return;  // it has enqueued nothing
  const Mark mine = here();
  const std::lock_guard lock(mutex_);
  std::vector<Mark>& all = handed_over_[address];
  const auto same = std::find_if(all.begin(), all.end(), [&](const Mark& mark) { return mark.thread == mine.thread; });
  if (same == all.end())
    all.push_back(mine);
  else
    *same = mine;
}

void Recorder::take_over(const void* address) {
  if (own_number == 0) return;
  (void)this_thread();  // with its turn
  std::vector<Mark> all;
  {
    const std::lock_guard lock(mutex_);
    const auto found = handed_over_.find(address);
    if (found == handed_over_.end()) return;
    all = found->second;
  }
  for (const Mark& mark : all) after(mark);
}

void Recorder::forget_hand_overs(const void* address) {
  const std::lock_guard lock(mutex_);
  handed_over_.erase(address);
}

// ---- the text

void Recorder::set_links(std::vector<DeviceLink> links, int devices) {
  const std::lock_guard lock(mutex_);
  links_ = std::move(links);
  linked_ = static_cast<std::size_t>(devices);
}

DeviceLink Recorder::link(int from, int to) {
  const std::lock_guard lock(mutex_);
  if (links_.empty()) return {};
  return links_[static_cast<std::size_t>(from) * linked_ + static_cast<std::size_t>(to)];
}

std::string Recorder::text() {
  const std::lock_guard lock(mutex_);
  std::string all = "lockstep-recording 1\n";
  for (std::size_t i = 0; i < streams_.size(); ++i)
    all += cat("stream ", i, ' ', streams_[i].device, ' ', streams_[i].label, '\n');
  for (const auto& log : logs_) {
    const std::lock_guard own(log->mutex);
    all += cat("thread ", log->turn.number(), ' ', log->name, '\n', log->text);
  }
  return all + "end\n";
}

void Recorder::restart() {
  (void)this_thread();
  const std::lock_guard lock(mutex_);
  epoch_.fetch_add(1, std::memory_order_relaxed);
  handed_over_.clear();
  for (const auto& log : logs_) {
    const std::lock_guard own(log->mutex);
    log->text.clear();
    log->entries = 0;
    log->known.clear();
  }
}

}  // namespace lockstep::detail
