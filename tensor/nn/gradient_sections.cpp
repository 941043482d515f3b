#include "lockstep/tensor/nn/gradient_sections.h"

#include <algorithm>
#include <utility>

#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/keep_device.h"
#include "lockstep/runtime/order/order.h"
#include "lockstep/runtime/record/waiting.h"
#include "lockstep/runtime/stream/capture.h"
#include "lockstep/runtime/thread/device_thread.h"
#include "lockstep/runtime/trace/trace.h"

namespace lockstep {

struct Wanted {
  struct From {
    int replica = 0;
    detail::StreamBody* stream = nullptr;
    std::uint64_t first_use = 0;
    bool same_source(const From& other) const { return replica == other.replica && stream == other.stream; }
  };
  bool same_sources(const Wanted& other) const {
    return std::ranges::equal(from, other.from, [](const From& a, const From& b) { return a.same_source(b); });
  }
  ParameterBody* body = nullptr;
  std::vector<From> from;  // in replica order
};

namespace {

// After the backward the last section is still to be summed: the first one listed, half as long as the others.
constexpr std::size_t kMostSections = 5;
// What a device receives of a section waits in its memory.
constexpr std::size_t kLongestSection = 128 << 20;
// The host enqueues copies by the square of the devices, some 7 us each, which shorter sections would not be worth.
constexpr std::size_t kSectionBytes = 384 << 10;

// Into how many sections `bytes` on so many devices are divided; 1 where it is not worth it.
std::size_t section_count(std::size_t bytes, std::size_t devices) {
  const std::size_t most = std::max(kMostSections, (bytes + kLongestSection - 1) / kLongestSection);
  return std::clamp<std::size_t>(bytes / (devices * devices * kSectionBytes), 1, most);
}

// Streams made current, the last one first to end.
class SumScopes {
 public:
  SumScopes() = default;
  SumScopes(const SumScopes&) = delete;
  SumScopes& operator=(const SumScopes&) = delete;
  ~SumScopes() {
    while (!scopes_.empty()) scopes_.pop_back();
  }
  void add(const Stream& stream) { scopes_.push_back(std::make_unique<StreamScope>(stream)); }

 private:
  std::vector<std::unique_ptr<StreamScope>> scopes_;
};

struct WantedOfSet {
  explicit WantedOfSet(const ParameterBody& body) : set(slabs_of(body)), entries(set->entries.size()) {}
  std::shared_ptr<SlabSet> set;
  std::vector<Wanted> entries;
};

std::vector<WantedOfSet> sort_by_set(std::span<const ExpectedGradient> expected) {
  std::vector<WantedOfSet> sets;
  for (const ExpectedGradient& each : expected) {
    ParameterBody* const body = body_of(*each.leaf);
    if (!body->slabs) continue;  // it has moved: an error, should a gradient come
    auto of_set = std::find_if(sets.begin(), sets.end(), [&](const WantedOfSet& s) { return s.set == body->slabs; });
    if (of_set == sets.end()) of_set = sets.emplace(sets.end(), *body);
    Wanted& wanted = of_set->entries[static_cast<std::size_t>(body->slab_entry)];
    wanted.body = body;
    wanted.from.push_back({replica_of(*body, each.stream->device), each.stream, each.first_use});
  }
  for (WantedOfSet& of_set : sets)
    for (Wanted& wanted : of_set.entries)
      std::sort(wanted.from.begin(), wanted.from.end(),
                [](const Wanted::From& a, const Wanted::From& b) { return a.replica < b.replica; });
  return sets;
}

// Only what is one gradient of each of several devices that can pass it on while they compute.
bool fits(const Wanted& wanted, Device home) {
  if (wanted.from.size() < 2) return false;
  const auto passes_on = [&](Device device) { return device.type() == home.type() && !device.is_cpu(); };
  for (std::size_t i = 0; i < wanted.from.size(); ++i) {
    if (!passes_on(wanted.from[i].stream->device)) return false;
    if (i > 0 && wanted.from[i].replica == wanted.from[i - 1].replica) return false;
  }
  return true;
}

}  // namespace

GradientSections::GradientSections() { forget_hand_overs(this); }

std::shared_ptr<GradientSections> GradientSections::make(std::span<const ExpectedGradient> expected) {
  if (detail::current_capture) return nullptr;
  std::size_t bytes = 0;
  for (const ExpectedGradient& each : expected) {
    if (each.stream->synchronous) return nullptr;
    bytes += body_of(*each.leaf)->home.bytes();
  }
  if (section_count(bytes / 2, 2) == 1) return nullptr;
  std::shared_ptr<GradientSections> made(new GradientSections);
  for (const WantedOfSet& of_set : sort_by_set(expected)) made->divide(of_set.set, of_set.entries);
  if (made->sections_.empty()) return nullptr;
  if (!made->take_streams()) return nullptr;
  std::stable_sort(made->sections_.begin(), made->sections_.end(),
                   [](const auto& a, const auto& b) { return a->first_use > b->first_use; });
  for (const auto& section : made->sections_) forget_hand_overs(section.get());
  return made;
}

// Adds the sections of a set.
void GradientSections::divide(const std::shared_ptr<SlabSet>& set, const std::vector<Wanted>& wanted) {
  {
    const std::lock_guard lock(set->reduce_mutex);
    if (set->transport) return;
  }
  for (std::size_t s = 0; s < set->slabs.size(); ++s) {
    if (set->slabs[s].sparse) continue;
    const std::vector<int>& order = set->slabs[s].entries;
    const auto at = [&](std::size_t position) -> const Wanted& {
      return wanted[static_cast<std::size_t>(order[position])];
    };
    for (std::size_t begin = 0, end = 0; begin < order.size(); begin = std::max(end, begin + 1)) {
      std::size_t bytes = 0;
      for (end = begin; end < order.size(); ++end) {
        if (!fits(at(end), set->home()) || !at(end).same_sources(at(begin))) break;
        bytes += set->entries[static_cast<std::size_t>(order[end])].bytes;
      }
      const std::size_t count = end > begin ? section_count(bytes, at(begin).from.size()) : 1;
      if (count == 1) continue;
      Group& group = groups_.emplace_back();
      group.set = set;
      std::size_t length = 0, boundary = 1;  // of 2 x count - 1
      for (std::size_t next = begin; next < end; boundary += 2) {
        auto section = std::make_unique<Section>();
        section->group = &group;
        section->run = {s, next, next, {}, {}};
        for (; next < end && length * (2 * count - 1) < boundary * bytes; ++next) {
          section->run.bodies.push_back(at(next).body);
          section->held.push_back(at(next).body->hold());
          section->first_use = std::min(section->first_use, at(next).from[0].first_use);
          length += set->entries[static_cast<std::size_t>(order[next])].bytes;
          of_leaf_.emplace(static_cast<const LeafNode*>(at(next).body->leaf.get()), section.get());
        }
        if (next == section->run.begin) continue;  // the one before was as long as two
        section->run.end = next;
        const SlabSet::Entry& first = set->entries[static_cast<std::size_t>(order[section->run.begin])];
        const SlabSet::Entry& last = set->entries[static_cast<std::size_t>(order[next - 1])];
        const auto elements = static_cast<std::int64_t>((last.offset_bytes + last.bytes - first.offset_bytes) /
                                                        size_of(set->slabs[s].dtype));
        group.longest = std::max(group.longest, elements);
        group.count += elements;
        for (const Wanted::From& from : at(begin).from) {
          section->run.devices.push_back(from.stream->device);
          Source& source = section->sources.emplace_back();
          source.stream = from.stream;
          source.left = section->run.bodies.size();
        }
        section->left = section->sources.size();
        sections_.push_back(std::move(section));
      }
    }
  }
}

// The streams of the sets for as long as this lives. What is written at home while the backward runs is free now.
bool GradientSections::take_streams() {
  for (const auto& section : sections_) {
    const std::shared_ptr<SlabSet>& set = section->group->set;
    if (std::find(sets_.begin(), sets_.end(), set) == sets_.end()) {
      const std::lock_guard lock(set->reduce_mutex);
      if (set->sums_beside || sum_thread(set->home()).lost()) return false;  // another backward was faster
      set->sums_beside = true;
      sets_.push_back(set);
    }
    section->in_place_of_grads = SlabReduction(*set).becomes_grads(section->run);
    const std::lock_guard lock(set->reduce_mutex);
    std::vector<Device> devices = section->run.devices;
    devices.push_back(set->home());
    for (const Device device : devices)
      if (Stream& stream = set->sum_streams[device]; !stream) stream = Stream(device, StreamPriority::high);
  }
  for (const auto& set : sets_) LOCKSTEP_EDGE(set->sum_streams.at(set->home()).wait_for(current_stream(set->home())));
  return true;
}

void GradientSections::give_streams_back() {
  for (const auto& set : sets_) {
    const std::lock_guard lock(set->reduce_mutex);
    set->sums_beside = false;
  }
  sets_.clear();
}

GradientSections::~GradientSections() { give_streams_back(); }

void GradientSections::arrive(OwnedGradient& gradient) {
  const auto found = of_leaf_.find(gradient.leaf.get());
  if (found == of_leaf_.end()) return replica_gradients().arrive(gradient);
  if (!gradient.matrix.defined()) return;  // rows: the section is never whole
  Section& section = *found->second;
  const auto source = std::find_if(section.sources.begin(), section.sources.end(),
                                   [&](const Source& s) { return s.stream == gradient.stream; });
  ParameterBody& body = *body_of(*gradient.leaf);
  check_like(body, gradient.matrix);
  if (may_be_kept(body, gradient.matrix)) {
    source->kept.push_back(gradient);
  } else {
    store_replica_gradient(body, gradient.stream->device, gradient.matrix);
  }
  gradient.matrix = {};
  if (--source->left > 0) return;
  std::vector<OwnedGradient*> kept;
  for (OwnedGradient& each : source->kept) kept.push_back(&each);
  store_matrices(kept);
  source->kept.clear();
  LOCKSTEP_EDGE(source->complete.record(*source->stream));
  hand_over(&section);
  complete(section);
}

// One source more is. The thread begins sections in their order.
void GradientSections::complete(Section& section) {
  std::size_t tasks = 0;
  {
    const std::lock_guard lock(mutex_);
    if (--section.left > 0) return;
    for (; ready_ < sections_.size() && sections_[ready_]->left == 0; ++ready_) ++tasks;
  }
  for (; tasks > 0; --tasks) {
    {
      const std::lock_guard lock(mutex_);
      ++posted_;
    }
    try {
      sum_thread(sets_[0]->home()).post([self = shared_from_this()] { self->begin_next(); });
    } catch (...) {
      const std::lock_guard lock(mutex_);
      --posted_;
      throw;
    }
  }
}

// A task of the thread, one for each section that is ready.
void GradientSections::begin_next() {
  Section* next = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!stopped_) next = sections_[done_].get();
  }
  bool stop = false;
  std::exception_ptr error;
  try {
    if (next) stop = !begin(*next);
  } catch (...) {
    stop = true;
    error = std::current_exception();
    if (next->group->sums) next->group->sums->settle();
    next->group->sums.reset();
  }
  hand_over(this);
  const std::lock_guard lock(mutex_);
  stopped_ |= stop;
  if (error) error_ = std::move(error);
  ++done_;
  changed_.notify_all();
}

// Enqueues the sum. False where it is not to begin now, for want of memory: activations may hold what there will be.
bool GradientSections::begin(Section& section) {
  const trace::Scope span("reduce");
  const auto start = Clock::now();
  take_over(&section);
  Group& group = *section.group;
  SlabSet& set = *group.set;
  SumScopes scopes;
  for (const auto& [device, stream] : set.sum_streams) LOCKSTEP_EDGE(scopes.add(stream));
  const NoGrad no_grad;
  const detail::KeepDevice turns;
  SlabReduction reduction(set);
  SlabReduction::Terms terms;
  try {
    terms = reduction.terms(section.run, section.in_place_of_grads);
    if (!group.sums && terms.sum.defined()) {
      // A section ends with a parameter, and one alone may be longer than a section is to be.
      const auto most = static_cast<std::int64_t>(kLongestSection / 2 * 3 / size_of(terms.sum.dtype()));
      group.sums = reduction.sections(terms, std::min(group.longest, most), group.count);
      if (!group.sums) return false;
    }
  } catch (const OutOfMemory&) {
    return false;
  }
  section.sum = terms.sum;
  std::vector<const Event*> ready;
  for (const Source& source : section.sources) ready.push_back(&source.complete);
  if (terms.sum.defined()) group.sums->add(terms.parts, terms.sum, ready);
  section.begun = true;
  reduction.count(section.run);
  const std::lock_guard lock(set.reduce_mutex);
  set.reduced.nanoseconds += static_cast<std::uint64_t>(std::chrono::nanoseconds(Clock::now() - start).count());
  return true;
}

// False when the thread does not come back from what it enqueues.
bool GradientSections::wait_for_thread() noexcept {
  std::unique_lock lock(mutex_);
  if (!late_)
    late_ = !detail::wait_until(changed_, lock, Deadline::after(kDefaultTimeout), [this] { return done_ == posted_; });
  take_over(this);
  return !late_;
}

// Work on the current streams comes after the sums.
void GradientSections::join() noexcept {
  for (Group& group : groups_) {
    if (!group.sums) continue;
    try {
      const detail::KeepDevice turns;
      group.sums->end();
    } catch (...) {
      group.sums->settle();
    }
    group.sums.reset();
  }
  for (const auto& set : sets_)
    for (const auto& [device, stream] : set->sum_streams) try {
        LOCKSTEP_EDGE(current_stream(device).wait_for(stream));
      } catch (...) {
        detail::settle(stream.backend(), device, stream.handle());
      }
}

// Nothing of it lives on with a task of the thread, unless that does not come back. When the backward has failed, later
// work on the current streams comes after what has begun.
void GradientSections::end() noexcept {
  if (!wait_for_thread()) return;
  join();
  give_streams_back();
  of_leaf_.clear();
  sections_.clear();
  groups_.clear();
}

void GradientSections::finish(std::vector<OwnedGradient> gradients) {
  if (!wait_for_thread()) {
    const std::string reason = "[backward] expected the sums of gradients to be enqueued within 10 minutes";
    sum_thread(sets_[0]->home()).abandon(reason);
    throw TimeoutError(reason);
  }
  if (error_) std::rethrow_exception(error_);
  join();
  give_streams_back();
  std::vector<BegunSum> begun;
  std::vector<OwnedGradient*> kept;  // of sections that have not begun
  for (const auto& section : sections_) {
    const std::shared_ptr<SlabSet>& set = section->group->set;
    if (section->begun) begun.push_back({set, section->run, section->sum});
    if (section->sum.defined()) LOCKSTEP_EDGE(section->sum.storage()->record_use(current_stream(set->home())));
    for (Source& source : section->sources)
      for (OwnedGradient& each : source.kept) kept.push_back(&each);
  }
  store_matrices(kept);
  reduce_replica_gradients(std::move(gradients), begun);
}

}  // namespace lockstep
