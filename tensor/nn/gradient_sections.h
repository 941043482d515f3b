// Sums of replicas' gradients that begin while the backward still runs. Private to the library.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "lockstep/tensor/nn/replica_gradients.h"

namespace lockstep {

struct Wanted;  // a parameter with the gradients that are expected of it

// The sink of one backward over several replicas. It divides the parameters that have mirrors into sections of
// adjacent ones. When every replica has all gradients of a section, a thread enqueues the sum, on streams of its own,
// so that links are busy while devices compute: section after section, in an order that the graph fixes. What belongs
// to no section, or to one that never got whole (a gradient that came as rows, or not at all), is summed after the
// backward, and so are the sections behind that. The bits are the same.
class GradientSections final : public GradientSink, public std::enable_shared_from_this<GradientSections> {
 public:
  // Null where it is not worth it: too few bytes, devices whose work is done at once or that are captured, a transport
  // in place of copies, or another backward that has the streams.
  static std::shared_ptr<GradientSections> make(std::span<const ExpectedGradient> expected);
  ~GradientSections() override;

  bool wants(const LeafNode&) const override { return false; }
  void arrive(OwnedGradient& gradient) override;
  void finish(std::vector<OwnedGradient> gradients) override;
  void end() noexcept override;

 private:
  // What one replica brings to a section.
  struct Source {
    detail::StreamBody* stream = nullptr;  // of its device
    std::size_t left = 0;                  // gradients to come
    std::vector<OwnedGradient> kept;       // small ones, to be stored when all are here
    Event complete;
  };
  // Sections of one run, whose sums share rooms and streams.
  struct Group {
    std::shared_ptr<SlabSet> set;
    std::int64_t longest = 0, count = 0;  // of its sections: elements of one, of all
    std::unique_ptr<detail::SectionSum> sums;
  };
  struct Section {
    Group* group;
    SlabRun run;
    std::vector<std::shared_ptr<LeafOwner>> held;  // its bodies, also from a thread that comes back late
    bool in_place_of_grads = false;
    std::vector<Source> sources;                  // in replica order
    std::size_t left = 0;                         // sources that are not complete
    std::uint64_t first_use = ~std::uint64_t{0};  // of its parameters by the first replica: it is whole after that
    bool begun = false;
    Tensor sum;
  };

  GradientSections();
  void divide(const std::shared_ptr<SlabSet>& set, const std::vector<Wanted>& wanted);
  bool take_streams();
  void give_streams_back();
  void complete(Section& section);
  void begin_next();
  bool begin(Section& section);
  bool wait_for_thread() noexcept;
  void join() noexcept;

  std::deque<Group> groups_;
  std::vector<std::unique_ptr<Section>> sections_;  // in the order of their sums
  std::unordered_map<const LeafNode*, Section*> of_leaf_;
  std::vector<std::shared_ptr<SlabSet>> sets_;  // whose streams it has

  std::mutex mutex_;  // of what follows, and of Section::left
  std::condition_variable changed_;
  std::size_t ready_ = 0, posted_ = 0, done_ = 0;  // sections: the first so many are complete; tasks for the thread
  bool stopped_ = false;                           // no more sections begin
  bool late_ = false;                              // the thread has not come back in time
  std::exception_ptr error_;
};

}  // namespace lockstep
