// The tensor: a value handle on storage, shape, strides, dtype and device, with an optional place in a graph.
// Copying a Tensor copies the handle; clone() copies the elements. A handle may be used from one thread at a time, like
// any value; different handles on the same elements follow the rules of data races.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/kernels/memory_format.h"
#include "lockstep/kernels/view.h"
#include "lockstep/tensor/context.h"
#include "lockstep/tensor/node.h"
#include "lockstep/tensor/storage.h"

namespace lockstep {

class LeafNode;
struct SparseGradient;

// What a handle points at. The library's own; handles to one tensor share it.
struct LOCKSTEP_API TensorImpl final : RefCounted {
  Ref<Storage> storage;
  std::int64_t offset = 0;  // elements
  std::int64_t count = 0;
  Shape shape;
  Strides strides;
  DType dtype = DType::f32;
  bool contiguous = true;
  bool is_view = false;  // shares the elements of a tensor that is part of a graph
  Edge edge;             // the node that made it, or its LeafNode; null when no gradient is wanted

  static void destroy(TensorImpl* impl) noexcept;
};

struct BackwardOptions {
  bool retain_graph = false;  // keep what was saved, for another backward through the same graph
  // Make the gradients differentiable themselves (implies retain_graph). A leaf's grad then holds the graph, which
  // holds the leaf: their memory comes back when the grad is cleared (zero_grad). grad() has no such circle.
  bool create_graph = false;
};

class LOCKSTEP_API Tensor {
 public:
  Tensor() = default;  // undefined

  // ---- what it is
  bool defined() const { return static_cast<bool>(impl_); }
  const Shape& shape() const { return impl().shape; }
  const Strides& strides() const { return impl().strides; }
  int rank() const { return impl().shape.rank(); }
  std::int64_t size(std::int64_t dim) const;  // negative counts from the end
  std::int64_t count() const { return impl().count; }
  std::size_t bytes() const { return static_cast<std::size_t>(impl().count) * size_of(impl().dtype); }
  DType dtype() const { return impl().dtype; }
  Device device() const { return impl().storage->device(); }
  bool contiguous_layout() const { return impl().contiguous; }
  // Whether the elements lie in the order of `format`, without gaps. Where C == 1 or H == W == 1 that order is the one
  // of both formats.
  bool contiguous_layout(MemoryFormat format) const {
    return format == MemoryFormat::contiguous ? contiguous_layout() : is_dense(shape(), strides(), format);
  }
  // What the strides say (kernels/memory_format.h), with gaps or without. Operations on images keep it: where an
  // operand is channels_last, so are the result and the gradient of that operand. reshape() and its like, and files, go
  // by the shape alone.
  MemoryFormat memory_format() const { return rank() == 4 ? format_of(shape(), strides()) : MemoryFormat::contiguous; }
  std::string describe() const;  // "f32[2, 3] on host:0", "undefined"

  // ---- its elements. Pointers are to device memory (readable by the host on cpu and host devices).
  const void* data() const { return raw_data(); }
  template <class T>
  const T* data() const {
    check_dtype(dtype_of<T>());
    return static_cast<const T*>(raw_data());
  }
  // For kernels of one's own; counts as a write.
  template <class T>
  T* mutable_data() const {
    check_dtype(dtype_of<T>());
    impl().storage->before_write();
    mark_changed();
    return static_cast<T*>(raw_data());
  }
  void mark_changed() const { impl().storage->bump_version(); }
  std::uint64_t version() const { return impl().storage->version(); }
  // The only element, or all elements in row-major order, converted to T. Blocks until they are computed. item() throws
  // InvalidArgument where T has no place for the element.
  template <class T>
  T item() const;
  template <class T>
  std::vector<T> to_vector() const;

  // ---- moving and converting. Differentiable; the tensor itself when nothing changes.
  Tensor to(Device device) const;  // the copy is ordered on the current streams of both devices; into cpu it blocks
  Tensor to(DType dtype) const;
  Tensor contiguous() const;
  // With the elements in the order of `format`, without gaps; the tensor itself when they are, whatever its strides
  // along sizes of 1 are. channels_last is for four dimensions [N, C, H, W]; InvalidArgument for others.
  Tensor contiguous(MemoryFormat format) const;
  // As contiguous(format), and with the strides of the format along sizes of 1 too: the result has this
  // memory_format(), unless it is [N, 1, 1, 1] or empty.
  Tensor to(MemoryFormat format) const;
  Tensor clone() const;   // fresh memory without gaps, in the tensor's memory format
  Tensor detach() const;  // same elements, outside the graph

  // ---- shape (views where possible; differentiable)
  Tensor reshape(const Shape& shape) const;  // one size may be -1
  Tensor flatten(std::int64_t start_dim = 0, std::int64_t end_dim = -1) const;
  Tensor transpose(std::int64_t dim0, std::int64_t dim1) const;
  Tensor t() const;  // of a matrix
  Tensor permute(const Dims& dims) const;
  Tensor expand(const Shape& shape) const;
  Tensor squeeze(std::int64_t dim) const;
  Tensor squeeze() const;  // every dimension of size 1
  Tensor unsqueeze(std::int64_t dim) const;
  Tensor narrow(std::int64_t dim, std::int64_t start, std::int64_t length) const;
  // Every step-th slice from `start` on, before `end`, as Python's start:end:step: negative positions count from the
  // end, and what lies beyond the dimension is left out. `step` is positive.
  Tensor slice(std::int64_t dim, std::optional<std::int64_t> start, std::optional<std::int64_t> end = {},
               std::int64_t step = 1) const;
  Tensor select(std::int64_t dim, std::int64_t index) const;
  Tensor operator[](std::int64_t index) const { return select(0, index); }

  // ---- reductions (ops/math_ops.h has all)
  Tensor sum() const;
  Tensor mean() const;
  Tensor sum(const Dims& dims, bool keep_dims = false) const;
  Tensor mean(const Dims& dims, bool keep_dims = false) const;

  // ---- in place. While grad mode is on, throws InvalidArgument for a leaf that requires a gradient, and for a tensor
  // that is or becomes part of a graph while it is a view or another tensor (a view, a detach()) sees its elements.
  // Floating dtypes fit into each other, integers too (they wrap), bools into all.
  Tensor& add_(const Tensor& other, double alpha = 1);
  Tensor& mul_(const Tensor& other);
  Tensor& add_(double value);
  Tensor& mul_(double value);
  Tensor& sub_(const Tensor& other, double alpha = 1) { return add_(other, -alpha); }
  Tensor& sub_(double value) { return add_(-value); }
  Tensor& div_(const Tensor& other);  // of a floating tensor
  Tensor& div_(double value);
  Tensor& copy_(const Tensor& source);  // any dtype and device, broadcast
  Tensor& fill_(double value);
  Tensor& zero_() { return fill_(0); }

  // ---- autograd
  bool requires_grad() const { return impl_ && impl_->edge.node.get() != nullptr; }
  // Makes it a leaf whose gradient is wanted (floating dtypes; throws for a tensor that was computed).
  Tensor& set_requires_grad(bool requires_grad = true);
  bool is_leaf() const;
  // The sum of all gradients since zero_grad; undefined before the first. InvalidArgument when it is made of rows
  // alone: a matrix is as large as the tensor, and made only when it is asked for, by sparse_grad().to_dense().
  Tensor grad() const;
  void set_grad(const Tensor& grad);  // in place of what there is, of rows too
  // The rows that have got a gradient, where nothing else has arrived (sparse_gradient.h); undefined otherwise.
  SparseGradient sparse_grad() const;
  void set_sparse_grad(const SparseGradient& grad);
  void zero_grad() { set_grad(Tensor()); }
  // Computes the gradients of this tensor (with respect to `gradient`, default 1 for a single element) and adds them
  // to the leaves' grad. Blocks until every node has been enqueued; the caller's current streams wait for the rest.
  void backward(const Tensor& gradient = {}, BackwardOptions options = {}) const;
  // Runs when the gradient of this tensor is complete, before it flows on (a leaf: before it is added to grad). To
  // replace the gradient, assign to it: `x.register_hook([](Tensor& g) { g = g * 0.5; })`. Must be called before the
  // tensor is used; returns a number for remove_hook.
  std::uint64_t register_hook(TensorHook hook) const;
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, TensorHook> && std::is_invocable_v<F&, Tensor&>) std::uint64_t
      register_hook(F&& hook)
  const {
    static_assert(std::is_void_v<std::invoke_result_t<F&, Tensor&>>,
                  "a hook replaces the gradient by assigning to its argument, a Tensor&: it must return void");
    return register_hook(TensorHook(std::forward<F>(hook)));
  }
  // Runs after the gradient of a backward has been added to this leaf's grad, in the thread that added it, once per
  // backward that reached the leaf. Returns a number for remove_hook.
  std::uint64_t register_post_accumulate_hook(std::function<void()> hook) const;
  void remove_hook(std::uint64_t id) const;

  // ---- for the library and for extensions
  explicit Tensor(Ref<TensorImpl> impl) : impl_(std::move(impl)) {}
  // A tensor over `storage` at `offset` elements.
  static Tensor over(Ref<Storage> storage, DType dtype, const Shape& shape, const Strides& strides,
                     std::int64_t offset = 0);
  View view() const;
  In in() const { return In{view()}; }
  Out out() const { return Out{writable_view()}; }
  InOut in_out() const { return InOut{{writable_view()}}; }
  const Ref<Storage>& storage() const { return impl().storage; }
  std::int64_t storage_offset() const { return impl().offset; }
  const Edge& edge() const { return impl().edge; }
  void set_edge(Edge edge) const { impl().edge = std::move(edge); }
  LeafNode* leaf() const;  // null unless a leaf that requires a gradient
  // Nobody else can see the elements.
  bool sole_owner() const { return impl().use_count() == 1 && impl().storage->use_count() == 1; }
  const TensorImpl* identity() const { return impl_.get(); }
  // Lets this very tensor (and all handles to it) have other memory; shape and dtype must fit.
  void set_storage(Ref<Storage> storage, std::int64_t offset) const;
  void set_data(const Tensor& other) const;  // shape, dtype and device may change

 private:
  TensorImpl& impl() const {
    if (!impl_) [[unlikely]]
      fail_undefined();
    return *impl_;
  }
  void* raw_data() const {
    return static_cast<std::byte*>(impl().storage->data()) +
           impl_->offset * static_cast<std::int64_t>(size_of(impl_->dtype));
  }
  View writable_view() const;
  [[noreturn]] static void fail_undefined();
  void check_dtype(DType wanted) const;

  Ref<TensorImpl> impl_;
};

inline std::string to_string(const Tensor& tensor) { return tensor.describe(); }

// Adds the gradients of `tensors` to the leaves. `gradients` may be empty (all ones, single elements only), else as
// many; an undefined one stands for ones.
LOCKSTEP_API void backward(std::span<const Tensor> tensors, std::span<const Tensor> gradients = {},
                           BackwardOptions options = {});

struct GradOptions {
  bool create_graph = false;
  bool retain_graph = false;  // create_graph implies it
  bool allow_unused = false;  // else an input that the outputs do not depend on is an InvalidArgument
};
// The gradients of `outputs` with respect to `inputs`; no leaf's grad is touched.
LOCKSTEP_API std::vector<Tensor> grad(std::span<const Tensor> outputs, std::span<const Tensor> inputs,
                                      std::span<const Tensor> gradients = {}, GradOptions options = {});
inline std::vector<Tensor> grad(const Tensor& output, const std::vector<Tensor>& inputs, GradOptions options = {}) {
  return grad(std::span(&output, 1), inputs, {}, options);
}

}  // namespace lockstep
