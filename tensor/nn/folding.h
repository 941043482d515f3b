// How a prepared module (prepare.h) computes a layer, the BatchNorm behind it and the relu behind that as one. Nobody
// states what stands behind which layer: a first call shows it, and every later one is checked.
//
// In a call of a prepared module a layer asks what to do. One that is not known yet computes as ever, and the call
// sees who takes the result. If it was one norm, or one relu, the layer computes nothing in later calls: its result has
// no elements (absent_elements.h), and the last of them computes all, with weights that have the norm's factors in
// them. If anybody else asks for the elements, that is an error by which the call knows better: so much of the layer is
// never folded again, and the call begins anew. Private to the library.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "lockstep/runtime/stream/stream.h"
#include "lockstep/tensor/absent_elements.h"
#include "lockstep/tensor/elements.h"
#include "lockstep/tensor/ops/nn_ops.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {
class PackedWeights;
}

namespace lockstep::detail {

struct LayerWeights {
  Tensor weight, bias;  // outputs come first in the weight; the bias may be undefined
  std::shared_ptr<PackedWeights> packed = {};
};

struct FoldedLayer {
  const void* layer;
  Tensor x, weight, bias;
  bool folds;                  // as far as the layer knows
  bool packs;                  // it has a use for packed weights
  ConvGeometry geometry = {};  // the layer itself may be gone when it is computed
  Activation activation = Activation::none;
  Shape (*shape)(const FoldedLayer&);
  Tensor (*compute)(const FoldedLayer&, const LayerWeights& weights, bool with_relu);
};

struct FoldedNorm {
  const void* norm;
  Tensor x, weight, bias, mean, var;  // weight and bias may be undefined
  double eps;
  bool folds;
};

// What a prepared module keeps: which layers are folded, and the folded weights with what they were made of.
class Folding {
 public:
  enum class Fate : std::uint8_t { unknown, alone, with_norm, with_relu, with_both };  // the norm first

  Fate fate(const void* layer) const;
  // What both its fate so far and this one have, and from now on is: no less than before is computed by the layer
  // itself.
  Fate decide(const void* layer, Fate fate);
  // For the device and its current stream: made anew when an origin has changed since.
  LayerWeights folded(const FoldedLayer& layer, const FoldedNorm& norm);
  LayerWeights packed(const FoldedLayer& layer);  // its own
  // Everything: the layers may be others afterwards.
  LOCKSTEP_API void forget();

 private:
  struct Fold {
    std::vector<Elements> origins;
    double eps = 0;
    LayerWeights weights;
  };
  // The layer, the norm or null, and where they compute.
  using Key = std::tuple<const void*, const void*, const StreamBody*>;
  // The entry of that key, empty where it has been made of something else or is new. Call with the mutex.
  Fold& kept(const void* norm, double eps, const FoldedLayer& layer, std::initializer_list<const Tensor*> tensors);

  mutable std::mutex mutex_;
  std::map<const void*, Fate> fates_;
  std::map<Key, Fold> folds_;
};

// One call of a prepared module, in the thread that makes it.
class LOCKSTEP_API FoldingCall {
 public:
  explicit FoldingCall(Folding& folding);
  FoldingCall(const FoldingCall&) = delete;
  FoldingCall& operator=(const FoldingCall&) = delete;
  ~FoldingCall();

  Tensor layer(const FoldedLayer& layer);
  Tensor norm(const FoldedNorm& norm);            // undefined: the norm computes by itself
  bool sees(const Tensor& x) const;               // whether x is the result of a layer that is not known yet
  void normed(const Tensor& x, const Tensor& y);  // what the norm of such a result then gave
  Tensor relu(const Tensor& x);                   // undefined: relu computes by itself

  // Of a result of the module: it must have its elements.
  void check_result(const Tensor& result) const;
  // After the module has returned, or thrown: whether it is to be called again, which goes another way. `learned`:
  // false in the first of these calls.
  bool again_after_return(bool& learned);
  bool again_after_throw();

 private:
  struct Seen {  // a layer that is not known yet
    const void* layer;
    Tensor result;
    std::uint64_t version;
    bool packs;
    int norms = 0, relus = 0;
    Tensor normed = {};
    std::uint64_t normed_version = 0;
    int relus_of_normed = 0;

    Folding::Fate fate() const;
  };
  struct Left {  // a layer that has computed nothing
    FoldedLayer layer;
    Folding::Fate fate;
    Tensor result;
    // As the layer was called: whoever comes later computes the same, or not at all.
    std::uint64_t x_version;
    Elements weight, bias;
    const StreamBody* called_on;
    LayerWeights weights = {};  // of the layer and the norm, once that has come
    Tensor normed = {};
    bool done = false;

    // Not what is there no more, and nothing twice.
    bool can(bool first) const;
    Tensor compute(const LayerWeights& of, bool with_relu);
  };

  Folding& folding_;
  FoldingCall* outer_;
  ReluOfPrepared outer_relu_;
  std::vector<Seen> seen_;
  std::vector<Left> left_;
};

// The call of a prepared module that this thread is in; null elsewhere, and in replicas that it starts.
FoldingCall* folding_call();

}  // namespace lockstep::detail
