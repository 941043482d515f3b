#include "lockstep/kernels/host/onednn.h"

#if defined(LOCKSTEP_HAVE_ONEDNN)

#include <array>
#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/kernels/host/one_thread.h"
#include "lockstep/kernels/host/onednn_conv_primitive.h"
#include "lockstep/kernels/host/pieces.h"
#include "lockstep/kernels/packed_weights.h"
#include "lockstep/runtime/library_threads.h"

namespace lockstep::kernels::host {
namespace {

using namespace onednn;
using Kind = ConvKind;

using Key = std::array<std::int64_t, 18>;
Key key_of(Kind kind, const ConvSizes& s, bool has_bias) {
  const Window2d& w = s.window;
  return {static_cast<std::int64_t>(kind),
          s.batch,
          s.channels,
          s.height,
          s.width,
          s.outputs,
          s.out_height,
          s.out_width,
          s.groups,
          w.kernel[0],
          w.kernel[1],
          w.stride[0],
          w.stride[1],
          w.padding[0],
          w.padding[1],
          w.dilation[0],
          w.dilation[1],
          has_bias + 2 * s.channels_last + 4 * s.weights_channels_last};
}

// The weights of a convolution in the layouts of its parts. Nothing of oneDNN's: it may live longer.
struct PackedParts {
  float* take(std::size_t bytes) {
    constexpr std::size_t kAlignment = 64;
    std::size_t room = bytes + kAlignment;
    void* begin = blocks.emplace_back(new std::byte[room]).get();
    return static_cast<float*>(std::align(kAlignment, bytes, begin, room));
  }
  std::vector<std::unique_ptr<std::byte[]>> blocks;
  std::vector<float*> of_part;  // null: as they are
};

// A convolution as its parts, with the primitives that they need.
class Parts {
 public:
  Parts(Kind kind, const ConvSizes& sizes, bool has_bias);
  // False: not all has been done. `packed` may be null, and has no place but in a forward convolution, as relu.
  bool run(const Pointers& pointers, bool relu, const PackedParts* packed);
  // Of a forward convolution. Null: not done.
  std::shared_ptr<const PackedParts> pack(float* weights) const;

 private:
  struct Part {
    const Convolution* convolution;
    ConvSizes sizes;
    std::array<std::int64_t, 4> offsets;
    std::int64_t sum;
    bool takes_shared;
  };
  bool run_parts(const Pointers& pointers, float* converted, bool relu, const PackedParts* packed, float* sums) const;
  void relu_of(const ConvSizes& part, float* y) const;

  ConvSizes sizes_;
  std::list<Convolution> convolutions_;
  std::vector<Part> parts_;
  std::optional<std::size_t> shared_;  // an input that all parts have as a whole is converted once
  std::size_t output_;
  std::int64_t output_elements_;
};

Parts::Parts(Kind kind, const ConvSizes& sizes, bool has_bias) : sizes_(sizes) {
  std::map<Key, const Convolution*> known;
  for (const ConvPart& part : conv_parts(kind, sizes)) {
    const Convolution*& convolution = known[key_of(kind, part.sizes, has_bias)];
    if (!convolution) {
      // Of all channels: those of a part would have gaps between the pixels.
      const bool in_place =
          conv_in_place(sizes) && part.sizes.channels == sizes.channels && part.sizes.outputs == sizes.outputs;
      convolution = &convolutions_.emplace_back(kind, sizes, part.sizes, has_bias, in_place);
      if (in_place && convolution->reference) {
        convolutions_.pop_back();
        convolution = &convolutions_.emplace_back(kind, sizes, part.sizes, has_bias, false);
      }
    }
    Part& p = parts_.emplace_back(Part{convolution, part.sizes, {}, part.sum, false});
    if (kind == Kind::forward && has_bias)
      p.offsets = {part.x, part.w, part.bias, part.y};
    else if (kind == Kind::forward)
      p.offsets = {part.x, part.w, part.y};
    else if (kind == Kind::grad_input)
      p.offsets = {part.y, part.w, part.x};
    else
      p.offsets = {part.y, part.x, part.w};
  }
  const std::vector<Operand>& first = convolutions_.front().operands;
  output_ = first.size() - 1;
  output_elements_ = sizes.outputs * sizes.taps();
  if (parts_.size() == 1) return;
  const Layouts whole = plain_layouts(sizes, sizes, has_bias);
  const memory::desc& whole0 = kind == Kind::forward ? whole.x : whole.y;
  const memory::desc& whole1 = kind == Kind::grad_weight ? whole.x : whole.w;
  if (first[0].conversion && first[0].plain == whole0) shared_ = 0;
  if (first[1].conversion && first[1].plain == whole1) shared_ = 1;
  for (Part& part : parts_)
    part.takes_shared = shared_ && part.convolution->operands[*shared_].inner == first[*shared_].inner;
}

std::shared_ptr<const PackedParts> Parts::pack(float* weights) const {
  const lockstep::detail::ForeignCall call;
  if (!call) return nullptr;
  const OneThread one_thread;
  auto packed = std::make_shared<PackedParts>();
  for (const Part& part : parts_) {
    const Operand& o = part.convolution->operands[kWeights];
    float* form = nullptr;
    for (std::size_t i = 0; i < packed->of_part.size() && !form; ++i)
      if (parts_[i].offsets[kWeights] == part.offsets[kWeights] &&
          parts_[i].convolution->operands[kWeights].inner == o.inner)
        form = packed->of_part[i];
    if (o.conversion && !form) {
      form = packed->take(o.inner.get_size());
      o.convert(weights + part.offsets[kWeights], form);
    }
    packed->of_part.push_back(form);
  }
  return packed;
}

void Parts::relu_of(const ConvSizes& part, float* y) const {
  const bool pixels = sizes_.channels_last;
  std::int64_t runs = pixels ? part.out_plane() : part.outputs, length = pixels ? part.outputs : part.out_plane();
  const std::int64_t step = pixels ? sizes_.outputs : sizes_.out_plane();
  if (length == step) length *= std::exchange(runs, 1);
  for (std::int64_t n = 0; n < part.batch; ++n)
    for (std::int64_t i = 0; i < runs; ++i)
      relu_in_place(y + n * sizes_.outputs * sizes_.out_plane() + i * step, length);
}

bool Parts::run(const Pointers& pointers, bool relu, const PackedParts* packed) {
  if (parts_.size() == 1) {
    const lockstep::detail::ForeignCall call;
    if (!call) return false;
    const OneThread one_thread;
    Pointers ready{};
    if (packed) ready[kWeights] = packed->of_part.front();
    if (!Execution::of(convolutions_.front()).run(pointers, ready, relu)) relu_of(sizes_, pointers[output_]);
    return true;
  }
  Scratch scratch;
  float* converted = nullptr;
  if (shared_ && !(packed && shared_ == kWeights)) {
    const lockstep::detail::ForeignCall call;
    if (!call) return false;
    const OneThread one_thread;
    const Operand& o = convolutions_.front().operands[*shared_];
    converted = take(scratch, o.inner);
    o.convert(pointers[*shared_], converted);
  }
  const std::int64_t more_sums = parts_.back().sum;
  float* sums = scratch.take<float>(more_sums * output_elements_);
  if (!run_parts(pointers, converted, relu, packed, sums)) return false;
  if (more_sums > 0) {
    float* to = pointers[output_];
    for_pieces(output_elements_, piece_rows(output_elements_, 4 * (more_sums + 1), kPieceBytes),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t k = 0; k < more_sums; ++k) {
                   const float* sum = sums + k * output_elements_;
                   for (std::int64_t i = begin; i < end; ++i) to[i] += sum[i];
                 }
               });
  }
  return true;
}

bool Parts::run_parts(const Pointers& pointers, float* converted, bool relu, const PackedParts* packed,
                      float* sums) const {
  std::atomic<bool> done{true};
  for_pieces(static_cast<std::int64_t>(parts_.size()), 1, [&](std::int64_t i, std::int64_t) {
    const Part& part = parts_[static_cast<std::size_t>(i)];
    const lockstep::detail::ForeignCall call;
    if (!call) {
      done.store(false, std::memory_order_relaxed);
      return;
    }
    const OneThread one_thread;
    Pointers at = pointers;
    if (part.sum > 0) at[output_] = sums + (part.sum - 1) * output_elements_;
    for (std::size_t k = 0; k <= output_; ++k) at[k] += part.offsets[k];
    Pointers ready{};
    if (part.takes_shared) ready[*shared_] = converted;
    if (packed) ready[kWeights] = packed->of_part[static_cast<std::size_t>(i)];
    if (!Execution::of(*part.convolution).run(at, ready, relu)) relu_of(part.sizes, at[output_]);
  });
  return done;
}

// Creating a primitive costs as much as a small convolution: a thread keeps those that it has used. A null entry is a
// convolution that oneDNN does not have. What is in use outlives its eviction: an embedder's pool may have the thread
// compute another convolution while it waits for the parts of this one.
std::shared_ptr<Parts> find(Kind kind, const ConvSizes& s, bool has_bias) {
  static thread_local std::map<Key, std::shared_ptr<Parts>> cache;
  constexpr std::size_t kMost = 256;
  const Key key = key_of(kind, s, has_bias);
  if (const auto found = cache.find(key); found != cache.end()) return found->second;
  if (cache.size() >= kMost) cache.clear();
  const OneThread one_thread;
  std::shared_ptr<Parts> made;
  try {
    made = std::make_shared<Parts>(kind, s, has_bias);
  } catch (const dnnl::error& error) {
    if (error.status != dnnl_unimplemented) throw;
  }
  return cache[key] = std::move(made);
}

std::shared_ptr<const PackedParts> find_packed(const Key& key, const Parts& parts, float* weights,
                                               PackedWeights& forms) {
  if (auto found = forms.find(key)) return std::static_pointer_cast<const PackedParts>(found);
  std::shared_ptr<const PackedParts> made = parts.pack(weights);
  if (made) forms.keep(key, made);
  return made;
}

// `relu` and `forms`, which may be null, have no place but in a forward convolution.
bool run(Kind kind, const ConvSizes& sizes, bool has_bias, const Pointers& pointers, bool relu = false,
         PackedWeights* forms = nullptr) {
  try {
    std::shared_ptr<Parts> parts;
    {
      // What is kept is not there any more either, at the end of the process.
      const lockstep::detail::ForeignCall call;
      if (!call) return false;
      parts = find(kind, sizes, has_bias);
    }
    if (!parts) return false;
    std::shared_ptr<const PackedParts> packed;
    if (forms) packed = find_packed(key_of(kind, sizes, has_bias), *parts, pointers[kWeights], *forms);
    return parts->run(pointers, relu, packed.get());
  } catch (const dnnl::error& error) {
    lockstep::detail::fail<Error>("[conv2d] oneDNN failed with status ", static_cast<int>(error.status), ": ",
                                  error.what());
  }
}

// oneDNN has one kind of pointer for inputs and outputs.
float* read(const float* input) { return const_cast<float*>(input); }

bool is_empty(const ConvSizes& s) { return s.batch * s.outputs * s.out_plane() * s.channels * s.plane() == 0; }

}  // namespace

bool onednn_conv(const ConvSizes& s, const float* x, const float* w, const float* bias, float* y, bool relu,
                 PackedWeights* forms) {
  if (is_empty(s)) return false;
  return bias ? run(Kind::forward, s, true, {read(x), read(w), read(bias), y}, relu, forms)
              : run(Kind::forward, s, false, {read(x), read(w), y}, relu, forms);
}

bool onednn_conv_grad_input(const ConvSizes& s, const float* dy, const float* w, float* dx) {
  // Measured: with few channels to write, a matrix product is two to three times as fast.
  if (is_empty(s) || (s.group_channels < 8 && s.groups == 1)) return false;
  return run(Kind::grad_input, s, false, {read(dy), read(w), dx});
}

bool onednn_conv_grad_weight(const ConvSizes& s, const float* dy, const float* x, float* dw) {
  if (is_empty(s)) return false;
  return run(Kind::grad_weight, s, false, {read(dy), read(x), dw});
}

}  // namespace lockstep::kernels::host

#else

namespace lockstep::kernels::host {

bool onednn_conv(const ConvSizes&, const float*, const float*, const float*, float*, bool, PackedWeights*) {
  return false;
}
bool onednn_conv_grad_input(const ConvSizes&, const float*, const float*, float*) { return false; }
bool onednn_conv_grad_weight(const ConvSizes&, const float*, const float*, float*) { return false; }

}  // namespace lockstep::kernels::host

#endif
