// Calls of replicas as CUDA graphs, for inference: what a replica enqueues for arguments of one form is recorded once,
// and replayed for others of that form.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/runtime/api.h"
#include "lockstep/tensor/nn/module_slots.h"
#include "lockstep/tensor/tree.h"

namespace lockstep {

// Calls of replicas, where graphs are on.
struct ReplicaGraphStats {
  std::uint64_t replayed = 0;
  std::uint64_t captured = 0;  // graphs; the call that captures one replays it too
  std::uint64_t ordinary = 0;
  std::string why;  // the last ordinary one was that: "cuda:1: a module is in training mode"
};

namespace detail {

// The tensors of a value, in the order of for_each_tensor, and what a graph depends on beside their elements.
struct TensorList {
  std::vector<Tensor> tensors;
  std::vector<std::int64_t> form;  // structure, dtypes, shapes, strides
  bool others = false;             // the value has more than tensors, or keeps them in its own way

  template <class T>
  void add(const T& value) {
    auto& node = const_cast<T&>(value);  // NOLINT: fields() is not const
    auto each = [this](const auto&... members) { (add(members), ...); };
    if constexpr (std::is_same_v<T, Tensor>) {
      add_tensor(value);
    } else if constexpr (requires { node.for_each_tensor(each); }) {
      others = true;
    } else if constexpr (tree::HasFields<T>) {
      node.fields(each);
    } else if constexpr (tree::IsTuple<T>) {
      std::apply(each, value);
    } else if constexpr (tree::IsList<T>) {
      form.push_back(static_cast<std::int64_t>(value.size()));
      for (const auto& element : value) add(element);
    } else if constexpr (tree::IsOptional<T>) {
      form.push_back(value ? 1 : 0);
      if (value) add(*value);
    } else {
      others = true;
    }
  }

 private:
  LOCKSTEP_API void add_tensor(const Tensor& tensor);
};

// Of one DataParallel, on all its devices. Any thread may call it.
class LOCKSTEP_API ReplicaGraphs {
 public:
  // `most`: graphs on each device; the one that was used longest ago goes.
  explicit ReplicaGraphs(std::int64_t most);
  ReplicaGraphs(const ReplicaGraphs&) = delete;
  ReplicaGraphs& operator=(const ReplicaGraphs&) = delete;
  ~ReplicaGraphs();

  // Whose calls these are: looks at what is below it, at the first call and where somebody has been shown that since.
  void watch(const ModuleBase& module);
  // Somebody is: the members may be others afterwards, as a conversion makes them.
  void show() { shown_.store(true, std::memory_order_release); }
  // Drops all graphs: forward may be another one afterwards. Waits for their replays.
  void forget();
  ReplicaGraphStats stats() const;

  // Calls the replica with those tensors in place of its arguments' and keeps what it returns, whose tensors it lists.
  using Record = std::function<std::shared_ptr<const void>(const std::vector<Tensor>& arguments, TensorList& results)>;
  // A call of the replica on `device`, on the current stream, by a graph. The second call with arguments of a form is
  // captured, on a stream of its own, and later ones are replayed. Gives what `record` has returned then, and in
  // `results` copies of its tensors as they are for these arguments. Null, and nothing is done, where the call is to be
  // made in the ordinary way: stats() says why. Throws what a replay throws.
  std::shared_ptr<const void> call(const ModuleSlots& slots, Device device, const TensorList& arguments,
                                   const Record& record, std::vector<Tensor>& results);
  void note_ordinary(Device device, const std::string& why);

 private:
  struct Entry;
  struct OnDevice;
  class Use;
  using Graphs = std::list<std::shared_ptr<Entry>>;
  Graphs take_all();
  std::string unfit(Device device, const TensorList& arguments) const;
  std::shared_ptr<Entry> take(OnDevice& here, const std::vector<Tensor>& memory, std::vector<std::int64_t> form,
                              std::string& why);
  static void capture(Entry& entry, const Stream& stream, const std::vector<Tensor>& memory,
                      const TensorList& arguments, const Record& record);
  static std::vector<Tensor> replay(Entry& entry, const Stream& stream, const TensorList& arguments);

  const std::size_t most_;
  std::atomic<bool> shown_{true};
  std::mutex watching_;
  mutable std::mutex mutex_;                           // of what follows
  std::vector<std::shared_ptr<ModuleState>> modules_;  // of the wrapped one and all below it
  std::vector<const void*> members_;                   // what is below it
  std::map<int, std::unique_ptr<OnDevice>> devices_;   // by ordinal
  ReplicaGraphStats stats_;
};

// A replica whose calls are graphs where they can be.
template <class Replica>
class GraphedReplica {
 public:
  GraphedReplica(const Replica& replica, std::shared_ptr<ReplicaGraphs> graphs)
      : replica_(replica), graphs_(std::move(graphs)) {}

  Device device() const { return replica_.device(); }
  void read(Reading& reading) const { replica_.read(reading); }

  template <class... Args>
  auto operator()(Args&... args) const {
    using Result = decltype(replica_(args...));
    if constexpr (std::is_copy_constructible_v<Result>) {
      struct Kept {  // a type of the caller's: plug-ins would export what shared_ptr makes of the library's own
        Result result;
      };
      TensorList arguments;
      (arguments.add(args), ...);
      const ReplicaGraphs::Record record = [&](const std::vector<Tensor>& own, TensorList& results) {
        std::tuple<std::decay_t<Args>...> mine(args...);
        exchange(mine, own);
        auto kept = std::make_shared<const Kept>(Kept{std::apply(replica_, mine)});
        results.add(kept->result);
        return kept;
      };
      std::vector<Tensor> tensors;
      if (const auto kept = graphs_->call(replica_.slots(), device(), arguments, record, tensors)) {
        Result result = static_cast<const Kept*>(kept.get())->result;
        exchange(result, tensors);
        return result;
      }
    } else {
      graphs_->note_ordinary(device(), "its result is nothing that can be copied");
    }
    return replica_(args...);
  }

 private:
  template <class T>
  static void exchange(T& value, const std::vector<Tensor>& tensors) {
    std::size_t next = 0;
    for_each_tensor(value, [&](Tensor& tensor) { tensor = tensors[next++]; });
  }

  Replica replica_;
  std::shared_ptr<ReplicaGraphs> graphs_;
};

template <class Replica>
auto with_graphs(const std::vector<Replica>& replicas, const std::shared_ptr<ReplicaGraphs>& graphs) {
  std::vector<GraphedReplica<Replica>> graphed;
  for (const Replica& replica : replicas) graphed.emplace_back(replica, graphs);
  return graphed;
}

}  // namespace detail
}  // namespace lockstep
