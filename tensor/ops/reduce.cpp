// Reductions over dimensions, and their derivatives.
#include <algorithm>
#include <cmath>

#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/nn_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

using detail::normalize_dim_of;

// Which dimensions a reduction removes, and the shapes on the way.
struct Reduced {
  Shape kept;              // size 1 along the reduced dimensions
  Shape dropped;           // without them
  std::int64_t count = 1;  // of elements that become one
};

Reduced reduced(const char* op, const Tensor& x, const Dims& dims) {
  const Shape& shape = x.shape();
  bool along[kMaxRank] = {};
  for (const std::int64_t dim : dims) {
    bool& mark = along[normalize_dim_of(op, dim, x)];
    LOCKSTEP_CHECK(!mark, "[", op, "] expected each dimension once, got ", dims);
    mark = true;
  }
  Reduced result;
  for (int i = 0; i < shape.rank(); ++i) {
    result.kept.push_back(along[i] ? 1 : shape[i]);
    if (!along[i])
      result.dropped.push_back(shape[i]);
    else
      result.count *= shape[i];
  }
  return result;
}

Dims every_dim(const char* op, const Tensor& x) {
  detail::check_defined(op, x);
  Dims dims;
  for (int i = 0; i < x.rank(); ++i) dims.push_back(i);
  return dims;
}

Tensor reduce(ReduceOp op, const Tensor& x, const Reduced& shapes, bool keep_dims) {
  // [N, C, 1, 1] of images in channels_last is so too: the order is the same.
  const MemoryFormat wanted = keep_dims ? x.memory_format() : MemoryFormat::contiguous;
  const bool same = is_dense(shapes.kept, contiguous_strides(shapes.kept), wanted);
  Tensor y = detail::fresh(keep_dims ? shapes.kept : shapes.dropped, x.dtype(), x.device(),
                           same ? wanted : MemoryFormat::contiguous);
  detail::launch(x.device(), ReduceArgs{op, x.in(), Out{detail::view_reshaped(y, shapes.kept)}});
  return y;
}

class SumNode final : public NodeOf<1> {
 public:
  const char* name() const override { return mean_of ? "mean" : "sum"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const Tensor gradient = mean_of ? grad_outputs[0] / static_cast<double>(mean_of) : grad_outputs[0];
    grad_inputs[0] = gradient.reshape(kept).expand(shape);
  }
  Shape shape, kept;
  std::int64_t mean_of = 0;
};

Tensor add_up(ReduceOp op, const Tensor& x, const Dims& dims, bool keep_dims) {
  const char* name = op == ReduceOp::mean ? "mean" : "sum";
  detail::check_defined(name, x);
  if (!is_floating(x.dtype())) {
    const DType dtype = op == ReduceOp::mean ? DefaultDType::get() : DType::i64;
    if (x.dtype() != dtype) return add_up(op, x.to(dtype), dims, keep_dims);
  }
  const Reduced shapes = reduced(name, x, dims);
  Tensor y = reduce(op, x, shapes, keep_dims);
  if (auto* node = record<SumNode>(y, x)) {
    node->shape = x.shape();
    node->kept = shapes.kept;
    if (op == ReduceOp::mean) node->mean_of = shapes.count;
  }
  return y;
}

// y[i] = x[0] * … * x[i], or without x[i], in a logarithmic number of products, which are differentiable everywhere.
Tensor running_product(const Tensor& x, int dim, bool exclusive) {
  const std::int64_t size = x.shape()[dim];
  Shape one = x.shape();
  one[dim] = std::min<std::int64_t>(1, size);
  Tensor ones = detail::fresh(one, x.dtype(), x.device());
  detail::fill(ones, 1);
  const auto moved = [&](const Tensor& from, std::int64_t by) {
    one[dim] = by;
    return cat({ones.expand(one), from.narrow(dim, 0, size - by)}, dim);
  };
  Tensor y = exclusive && size > 0 ? moved(x, 1) : x;
  for (std::int64_t by = 1; by < size; by *= 2) y = y * moved(y, by);
  return y;
}

// For each element the product of all others. Slower than dividing, but differentiable where elements are 0.
Tensor products_of_others(const Tensor& x, int dim) {
  return running_product(x, dim, true) * flip(running_product(flip(x, {dim}), dim, true), {dim});
}

class ProdNode final : public NodeOf<1> {
 public:
  const char* name() const override { return "prod"; }
  // The product of all other elements: the product of all over this one, except where zeros are among them.
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const Tensor values = x.get(*this);
    const Tensor gradient = keep_dims ? grad_outputs[0] : grad_outputs[0].unsqueeze(dim);
    if (GradMode::enabled()) {
      grad_inputs[0] = gradient * products_of_others(values, dim);
      return;
    }
    const Tensor zero = eq(values, 0.0);
    const Tensor zeros = sum(zero, {dim}, true);
    const Tensor nonzero = where(zero, 1.0, values);
    const Tensor product = prod(nonzero, dim, true);
    const Tensor others =
        where(zero, where(eq(zeros, 1.0), product, 0.0), where(eq(zeros, 0.0), product / nonzero, 0.0));
    grad_inputs[0] = gradient * others;
  }
  Saved x{*this};
  int dim = 0;
  bool keep_dims = false;
};

Tensor decide(const char* name, ReduceOp op, const Tensor& x, const Dims& dims, bool keep_dims) {
  detail::check_defined(name, x);
  const Reduced shapes = reduced(name, x, dims);
  NoGrad no_grad;
  return reduce(op, x.to(DType::boolean), shapes, keep_dims);
}

Tensor arg_reduce(const char* name, ArgReduceOp op, const Tensor& x, std::int64_t dim, bool keep_dims) {
  const int along = normalize_dim_of(name, dim, x);
  if (x.rank() == 0) return arg_reduce(name, op, x.reshape({1}), 0, false);
  const Reduced shapes = reduced(name, x, {along});
  LOCKSTEP_CHECK(x.shape()[along] > 0, "[", name, "] expected elements to choose from along dimension ", along,
                 ", got ", x);
  Tensor indices = detail::fresh(keep_dims ? shapes.kept : shapes.dropped, DType::i64, x.device());
  detail::launch(x.device(), ArgReduceArgs{op, along, x.in(), Out{detail::view_reshaped(indices, shapes.kept)}});
  return indices;
}

ValuesAndIndices extreme(const char* name, ArgReduceOp op, const Tensor& x, std::int64_t dim, bool keep_dims) {
  Tensor indices = arg_reduce(name, op, x, dim, true);
  if (x.rank() == 0) return {x.clone(), indices};
  Tensor values = gather(x, dim, indices);
  if (keep_dims) return {values, indices};
  return {values.squeeze(dim), indices.squeeze(dim)};
}

Tensor extreme(const char* name, ReduceOp op, const Tensor& x) {
  detail::check_defined(name, x);
  LOCKSTEP_CHECK(x.count() > 0, "[", name, "] expected elements to choose from, got ", x);
  if (!(GradMode::enabled() && x.requires_grad())) return reduce(op, x, reduced(name, x, every_dim(name, x)), false);
  return extreme(name, op == ReduceOp::max ? ArgReduceOp::max : ArgReduceOp::min, x.reshape({x.count()}), 0, false)
      .values;
}

class ExtremesNode final : public NodeOf<1> {
 public:
  const char* name() const override { return op == ReduceOp::max ? "amax" : "amin"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const Tensor equal = eq(x.get(*this), y.get(*this).reshape(kept)).to(grad_outputs[0].dtype());
    grad_inputs[0] = equal * (grad_outputs[0].reshape(kept) / sum(equal, dims, true));
  }
  ReduceOp op = ReduceOp::max;
  Saved x{*this}, y{*this};
  Shape kept;
  Dims dims;
};

Tensor extremes(const char* name, ReduceOp op, const Tensor& x, const Dims& dims, bool keep_dims) {
  detail::check_defined(name, x);
  const Reduced shapes = reduced(name, x, dims);
  LOCKSTEP_CHECK(shapes.count > 0, "[", name, "] expected elements to choose from along ", dims, ", got ", x);
  Tensor y = reduce(op, x, shapes, keep_dims);
  if (auto* node = record<ExtremesNode>(y, x)) {
    node->op = op;
    node->x.save(x);
    node->y.save_output(y);
    node->kept = shapes.kept;
    node->dims = dims;
  }
  return y;
}

class NormNode final : public NodeOf<1> {
 public:
  const char* name() const override { return "norm"; }
  // x / |x|; 0 where the norm is 0, as the slope there has no direction.
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const Tensor norms = y.get(*this).reshape(kept);
    const Tensor zero = eq(norms, 0.0);
    const Tensor scale = where(zero, 0.0, grad_outputs[0].reshape(kept) / where(zero, 1.0, norms));
    grad_inputs[0] = scale * x.get(*this);
  }
  Saved x{*this}, y{*this};
  Shape kept;
};

// The dimensions that a reduction removes, as the middle one of [outer, elements, inner].
class Lines {
 public:
  Lines(const Tensor& x, const Reduced& shapes) {
    const Shape& shape = x.shape();
    const auto is_reduced = [&](int d) { return shapes.kept[d] != shape[d]; };
    int first = 0, end = x.rank();
    while (first < end && !is_reduced(first)) ++first;
    while (end > first && !is_reduced(end - 1)) --end;
    const auto take = [&](int from, int to, bool reduced) {
      for (int d = from; d < to; ++d)
        if (is_reduced(d) == reduced) order_.push_back(d);
    };
    take(0, end, false), take(first, end, true), take(end, x.rank(), false);
    for (const std::int64_t d : order_) permuted_.push_back(shape[static_cast<int>(d)]);
    std::int64_t inner = 1;
    for (int d = end; d < x.rank(); ++d) inner *= shape[d];
    std::int64_t outer = 1;
    for (int d = 0; d < end; ++d) outer *= is_reduced(d) ? 1 : shape[d];
    lines_ = {outer, shapes.count, inner};
  }
  Tensor of(const Tensor& x) const { return x.permute(order_).reshape(lines_); }
  Tensor back(const Tensor& lines) const {
    Dims inverse = order_;
    for (int d = 0; d < order_.rank(); ++d) inverse[static_cast<int>(order_[d])] = d;
    return lines.reshape(permuted_).permute(inverse);
  }

 private:
  Dims order_;
  Shape permuted_, lines_;
};

class LogSumExpNode final : public NodeOf<1> {
 public:
  const char* name() const override { return "logsumexp"; }
  // By softmax, and not by exp(x - y): an error of y would be one of the whole gradient.
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const Tensor values = x.get(*this);
    const Lines lines(values, shapes);
    grad_inputs[0] = grad_outputs[0].reshape(shapes.kept) * lines.back(softmax(lines.of(values), 1));
  }
  Saved x{*this};
  Reduced shapes;
};

}  // namespace

Tensor sum(const Tensor& x, const Dims& dims, bool keep_dims) {
  if (detail::widens(x)) [[unlikely]]
    return sum(detail::widened(x), dims, keep_dims);
  return add_up(ReduceOp::sum, x, dims, keep_dims);
}
Tensor sum(const Tensor& x) { return sum(x, every_dim("sum", x)); }
Tensor mean(const Tensor& x, const Dims& dims, bool keep_dims) { return add_up(ReduceOp::mean, x, dims, keep_dims); }
Tensor mean(const Tensor& x) { return add_up(ReduceOp::mean, x, every_dim("mean", x), false); }
Tensor Tensor::sum() const { return lockstep::sum(*this); }
Tensor Tensor::mean() const { return lockstep::mean(*this); }
Tensor Tensor::sum(const Dims& dims, bool keep_dims) const { return lockstep::sum(*this, dims, keep_dims); }
Tensor Tensor::mean(const Dims& dims, bool keep_dims) const { return lockstep::mean(*this, dims, keep_dims); }

Tensor var(const Tensor& x, const Dims& dims, double correction, bool keep_dims) {
  detail::check_defined("var", x);
  if (!is_floating(x.dtype())) return var(x.to(DefaultDType::get()), dims, correction, keep_dims);
  // Means of 16 bits would be too coarse, sums of squares too large.
  if (size_of(x.dtype()) == 2) return var(x.to(DType::f32), dims, correction, keep_dims).to(x.dtype());
  const auto count = static_cast<double>(reduced("var", x, dims).count);
  const Tensor squares = square(x - mean(x, dims, true));
  return sum(squares, dims, keep_dims) / std::max(0.0, count - correction);
}
Tensor var(const Tensor& x) { return var(x, every_dim("var", x)); }

Tensor stddev(const Tensor& x, const Dims& dims, double correction, bool keep_dims) {
  detail::check_defined("stddev", x);
  if (size_of(x.dtype()) == 2) return stddev(x.to(DType::f32), dims, correction, keep_dims).to(x.dtype());
  const Tensor square = var(x, dims, correction, keep_dims);
  if (!(GradMode::enabled() && square.requires_grad())) return sqrt(square);
  // The slope of the root at 0 is infinite: take the root of 1 there, and put the 0 back.
  const Tensor zero = eq(square, 0.0);
  return where(zero, 0.0, sqrt(where(zero, 1.0, square)));
}
Tensor stddev(const Tensor& x) { return stddev(x, every_dim("stddev", x)); }

Tensor logsumexp(const Tensor& x, const Dims& dims, bool keep_dims) {
  detail::check_defined("logsumexp", x);
  if (!is_floating(x.dtype())) return logsumexp(x.to(DefaultDType::get()), dims, keep_dims);
  if (size_of(x.dtype()) == 2) return logsumexp(x.to(DType::f32), dims, keep_dims).to(x.dtype());
  const Reduced shapes = reduced("logsumexp", x, dims);
  if (shapes.count == 0) return log(sum(x, dims, keep_dims));
  Tensor y;
  {
    // log_softmax of the largest element is 0 - log(sum(exp(x - largest))), and makes one pass of the exponentials.
    NoGrad no_grad;
    const Tensor lines = Lines(x, shapes).of(x);
    const Tensor largest = amax(lines, {1});
    y = where(isfinite(largest), largest - amax(log_softmax(lines, 1), {1}), largest)
            .reshape(keep_dims ? shapes.kept : shapes.dropped);
    if (keep_dims) y = y.to(x.memory_format());
  }
  if (auto* node = record<LogSumExpNode>(y, x)) {
    node->x.save(x);
    node->shapes = shapes;
  }
  return y;
}

Tensor norm(const Tensor& x, const Dims& dims, bool keep_dims) {
  detail::check_defined("norm", x);
  if (detail::widens(x)) [[unlikely]]
    return norm(detail::widened(x), dims, keep_dims);
  if (!is_floating(x.dtype())) return norm(x.to(DefaultDType::get()), dims, keep_dims);
  const Reduced shapes = reduced("norm", x, dims);
  Tensor y = reduce(ReduceOp::norm, x, shapes, keep_dims);
  if (auto* node = record<NormNode>(y, x)) {
    node->x.save(x);
    node->y.save_output(y);
    node->kept = shapes.kept;
  }
  return y;
}
Tensor norm(const Tensor& x) { return norm(x, every_dim("norm", x)); }

Tensor vector_norm(const Tensor& x, double p, const Dims& dims, bool keep_dims) {
  detail::check_defined("vector_norm", x);
  if (detail::widens(x)) [[unlikely]]
    return vector_norm(detail::widened(x), p, dims, keep_dims);
  const Tensor values = x.to(detail::floating_dtype(x.dtype()));
  if (p == 2) return norm(values, dims, keep_dims);
  if (p == 0) return sum(ne(values, 0.0).to(values.dtype()), dims, keep_dims);
  const Tensor magnitudes = abs(values);
  if (p == 1) return sum(magnitudes, dims, keep_dims);
  if (std::isinf(p)) {
    const Reduced shapes = reduced("vector_norm", x, dims);
    Tensor extremes = magnitudes;
    for (const std::int64_t dim : dims) extremes = (p > 0 ? max(extremes, dim, true) : min(extremes, dim, true)).values;
    return keep_dims ? extremes : extremes.reshape(shapes.dropped);
  }
  // Powers of 16 bits would overflow.
  if (size_of(values.dtype()) == 2) return vector_norm(values.to(DType::f32), p, dims, keep_dims).to(values.dtype());
  const bool differentiates = GradMode::enabled() && x.requires_grad();
  Tensor powers = pow(magnitudes, p);
  if (differentiates && p < 1) {  // the slope of the power at 0 is infinite: put its value there in
    const Tensor zero = eq(magnitudes, 0.0);
    powers = where(zero, p < 0 ? std::numeric_limits<double>::infinity() : 0.0, pow(where(zero, 1.0, magnitudes), p));
  }
  const Tensor total = sum(powers, dims, keep_dims);
  if (!differentiates) return pow(total, 1 / p);
  // The slope of the root at 0 is infinite: take the root of 1 there, and put the 0 back.
  const Tensor zero = eq(total, 0.0);
  return where(zero, 0.0, pow(where(zero, 1.0, total), 1 / p));
}
Tensor vector_norm(const Tensor& x, double p) { return vector_norm(x, p, every_dim("vector_norm", x)); }

Tensor prod(const Tensor& x, std::int64_t dim, bool keep_dims) {
  detail::check_defined("prod", x);
  if (detail::widens(x)) [[unlikely]]
    return prod(detail::widened(x), dim, keep_dims);
  if (!is_floating(x.dtype()) && x.dtype() != DType::i64) return prod(x.to(DType::i64), dim, keep_dims);
  const int along = normalize_dim_of("prod", dim, x);
  if (x.rank() == 0) return x.clone();
  Tensor y = reduce(ReduceOp::prod, x, reduced("prod", x, {along}), keep_dims);
  if (auto* node = record<ProdNode>(y, x)) {
    node->x.save(x);
    node->dim = along;
    node->keep_dims = keep_dims;
  }
  return y;
}
Tensor prod(const Tensor& x) {
  detail::check_defined("prod", x);
  return prod(x.reshape({x.count()}), 0);
}

Tensor cumprod(const Tensor& x, std::int64_t dim) {
  const int along = normalize_dim_of("cumprod", dim, x);
  if (size_of(x.dtype()) == 2) return cumprod(x.to(DType::f32), dim).to(x.dtype());
  if (!is_floating(x.dtype()) && x.dtype() != DType::i64) return cumprod(x.to(DType::i64), dim);
  return x.rank() == 0 || x.shape()[along] < 2 ? x.clone() : running_product(x, along, false);
}

Tensor any(const Tensor& x, const Dims& dims, bool keep_dims) {
  return decide("any", ReduceOp::any, x, dims, keep_dims);
}
Tensor any(const Tensor& x) { return any(x, every_dim("any", x)); }
Tensor all(const Tensor& x, const Dims& dims, bool keep_dims) {
  return decide("all", ReduceOp::all, x, dims, keep_dims);
}
Tensor all(const Tensor& x) { return all(x, every_dim("all", x)); }

Tensor amax(const Tensor& x, const Dims& dims, bool keep_dims) {
  return extremes("amax", ReduceOp::max, x, dims, keep_dims);
}
Tensor amin(const Tensor& x, const Dims& dims, bool keep_dims) {
  return extremes("amin", ReduceOp::min, x, dims, keep_dims);
}
Tensor max(const Tensor& x) { return extreme("max", ReduceOp::max, x); }
Tensor min(const Tensor& x) { return extreme("min", ReduceOp::min, x); }
ValuesAndIndices max(const Tensor& x, std::int64_t dim, bool keep_dims) {
  return extreme("max", ArgReduceOp::max, x, dim, keep_dims);
}
ValuesAndIndices min(const Tensor& x, std::int64_t dim, bool keep_dims) {
  return extreme("min", ArgReduceOp::min, x, dim, keep_dims);
}
Tensor argmax(const Tensor& x, std::int64_t dim, bool keep_dims) {
  return arg_reduce("argmax", ArgReduceOp::max, x, dim, keep_dims);
}
Tensor argmin(const Tensor& x, std::int64_t dim, bool keep_dims) {
  return arg_reduce("argmin", ArgReduceOp::min, x, dim, keep_dims);
}
Tensor argmax(const Tensor& x) {
  detail::check_defined("argmax", x);
  return argmax(x.reshape({x.count()}), 0);
}
Tensor argmin(const Tensor& x) {
  detail::check_defined("argmin", x);
  return argmin(x.reshape({x.count()}), 0);
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  const int missing = x.rank() - shape.rank();
  Dims dims;
  bool fits = missing >= 0;
  for (int i = 0; fits && i < x.rank(); ++i) {
    const std::int64_t wanted = i < missing ? 1 : shape[i - missing];
    if (i < missing || (wanted == 1 && x.shape()[i] != 1))
      dims.push_back(i);
    else
      fits = wanted == x.shape()[i];
  }
  LOCKSTEP_CHECK(fits, "[sum_to] expected a shape that broadcasts to that of ", x, ", got ", shape);
  return (dims.empty() ? x : sum(x, dims, true)).reshape(shape);
}

}  // namespace lockstep
