// Convolution by cuDNN, or as matrix products: the windows of a few images become the columns of a matrix. Images are
// taken together as far as their columns fit in a bounded piece of scratch memory; an image whose columns do not fit is
// cut.
#include "lockstep/kernels/common/image_format.h"
#include "lockstep/kernels/cuda/conv.cuh"
#include "lockstep/kernels/cuda/cudnn_conv.h"
#include "lockstep/kernels/cuda/gemm.h"
#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/runtime/stream/work_scope.h"

namespace lockstep::kernels::cuda {
namespace {

// Images [first, first + images) and positions [begin, begin + width) of their output planes.
struct Chunk {
  std::int64_t first, images, begin, width;
  std::int64_t columns() const { return images * width; }
};

int taps_of(const ConvSizes& s) { return s.window.kernel[0] * s.window.kernel[1]; }

// Calls f(chunk) for chunks that cover all images; the first one is the largest.
template <class F>
void for_each_chunk(const ConvSizes& s, std::int64_t element_bytes, F&& f) {
  const std::int64_t rows_bytes = s.channels * taps_of(s) * element_bytes, plane = s.out_plane();
  const std::int64_t fit = columns_bytes / std::max<std::int64_t>(rows_bytes, 1);  // columns
  if (fit >= plane) {
    const std::int64_t chunks = (s.batch + fit / plane - 1) / (fit / plane);
    const std::int64_t images = (s.batch + chunks - 1) / chunks;
    for (std::int64_t n = 0; n < s.batch; n += images) f(Chunk{n, std::min(images, s.batch - n), 0, plane});
    return;
  }
  const std::int64_t width = fit >= 64 ? fit / 64 * 64 : std::max<std::int64_t>(fit, 1);
  for (std::int64_t n = 0; n < s.batch; ++n)
    for (std::int64_t p = 0; p < plane; p += width) f(Chunk{n, 1, p, std::min(width, plane - p)});
}

// columns: [channels * taps][images][width].
template <class T>  // an unsigned integer
__global__ void __launch_bounds__(kThreads)
    image_to_columns_kernel(const T* x, T* columns, std::int64_t count, const ConvSizes s, const Chunk chunk,
                            const Splitter by_width, const Splitter by_image, const Splitter by_row) {
  const int kernel_taps = s.window.kernel[0] * s.window.kernel[1];
  const std::int64_t row = chunk.images * chunk.width;
  for_each_position(count, [&](std::int64_t i) {
    std::int64_t p, n, ow;
    const std::int64_t c = by_image.split(by_width.split(i, &p), &n);
    const std::int64_t oh = by_row.split(chunk.begin + p, &ow);
    const T* from = x + ((chunk.first + n) * s.channels + c) * s.height * s.width;
    T* to = columns + c * kernel_taps * row + n * chunk.width + p;
    int done = 0;
    for_each_tap(s, oh, ow, [&](int tap, std::int64_t at) {
      for (; done < tap; ++done) to[done * row] = T(0);  // padding
      to[done++ * row] = from[at];
    });
    for (; done < kernel_taps; ++done) to[done * row] = T(0);
  });
}

// Channels [first_channel, …) of the images of a chunk of whole planes. columns: [channels * taps][images][out_plane].
template <class T>
__global__ void __launch_bounds__(kThreads)
    columns_to_image_kernel(const Compute<T>* columns, T* dx, std::int64_t count, const Windows s, const Chunk chunk,
                            std::int64_t first_channel, const Splitter by_column, const Splitter by_row,
                            const Splitter by_image) {
  const int kernel_taps = s.window.kernel[0] * s.window.kernel[1];
  const std::int64_t row = chunk.images * chunk.width;
  for_each_position(count, [&](std::int64_t i) {
    std::int64_t column, h, n;
    const std::int64_t c = by_image.split(by_row.split(by_column.split(i, &column), &h), &n);
    const Compute<T>* from = columns + c * kernel_taps * row + n * chunk.width;
    Compute<T> sum = 0;
    for_each_window(s, h, column, [&](int tap, std::int64_t at) { sum += from[tap * row + at]; });
    dx[(((chunk.first + n) * s.channels + first_channel + c) * s.height + h) * s.width + column] = narrow<T>(sum);
  });
}

// y = product + bias, from [outputs][images][width] to the planes of the images; without a product, y = bias. In packs
// of kCount neighbours of a plane.
template <class T, int kCount>
__global__ void __launch_bounds__(kThreads)
    finish_kernel(const Compute<T>* product, const T* bias, T* y, std::int64_t packs, std::int64_t outputs,
                  std::int64_t plane, const Chunk chunk, const Splitter by_width, const Splitter by_output) {
  using C = Compute<T>;
  for_each_position(packs, [&](std::int64_t i) {
    std::int64_t p, o;
    const std::int64_t n = by_output.split(by_width.split(i, &p), &o);
    Pack<C, kCount> values;
#pragma unroll
    for (C& value : values.element) value = C(-0.0);  // which changes no sum
    if (product)
      values = *reinterpret_cast<const Pack<C, kCount>*>(product + (o * chunk.images + n) * chunk.width + p * kCount);
    const C added = bias ? widen(bias[o]) : C(0);
    Pack<T, kCount> result;
#pragma unroll
    for (int k = 0; k < kCount; ++k) result.element[k] = narrow<T>(added + values.element[k]);
    reinterpret_cast<Pack<T, kCount>*>(y + ((chunk.first + n) * outputs + o) * plane + chunk.begin)[p] = result;
  });
}

template <class T>
void image_to_columns(const Stream& stream, const char* op, const ConvSizes& s, const T* x, T* columns,
                      const Chunk& chunk) {
  const std::int64_t count = s.channels * chunk.columns();
  dispatch_size(dtype_of<T>(), [&]<class Bits>(Type<Bits>) {
    launch(stream, op, image_to_columns_kernel<Bits>, grid_for(stream, count), reinterpret_cast<const Bits*>(x),
           reinterpret_cast<Bits*>(columns), count, s, chunk, Splitter(chunk.width, count),
           Splitter(chunk.images, count), Splitter(s.out_width, s.out_plane()));
  });
}

template <class T>
void finish(const Stream& stream, const ConvSizes& s, const Compute<T>* product, const T* bias, T* y,
            const Chunk& chunk) {
  constexpr int kCount = kPack<T>;
  const auto divided = [](std::int64_t size) { return size % kCount == 0; };
  // Chunks of a plane begin at multiples of a width that all but the last one have.
  const bool packed = divided(chunk.width) && divided(s.out_plane()) &&
                      aligned_for(product, dtype_of<Compute<T>>(), kCount) && aligned_for(y, dtype_of<T>(), kCount);
  const std::int64_t each = packed ? kCount : 1, packs = s.outputs * chunk.columns() / each;
  launch(stream, Conv2dArgs::kName, packed ? finish_kernel<T, kCount> : finish_kernel<T, 1>, grid_for(stream, packs),
         product, bias, y, packs, s.outputs, s.out_plane(), chunk, Splitter(chunk.width / each, packs),
         Splitter(s.outputs, packs));
}

// dy of a chunk as [outputs][images][width]: a copy unless it is one image.
template <class T>
GemmMatrix gradient_rows(const Stream& stream, const ConvSizes& s, const View& dy, const Chunk& chunk, T* memory) {
  T* from = static_cast<T*>(dy.data) + chunk.first * s.outputs * s.out_plane() + chunk.begin;
  const std::int64_t width = chunk.columns();
  if (chunk.images == 1) return {from, s.group_outputs, width, s.out_plane(), 1, s.group_outputs * s.out_plane()};
  View source = dy, target = dy;
  source.data = from;
  source.shape = target.shape = {s.outputs, chunk.images, chunk.width};
  source.strides = {s.out_plane(), s.outputs * s.out_plane(), 1};
  target.data = memory;
  target.strides = contiguous_strides(target.shape);
  Kernels::enqueue(stream, CastArgs{.in = {source}, .out = {target}});
  return {memory, s.group_outputs, width, width, 1, s.group_outputs * width};
}

template <class T>
GemmMatrix weights(const ConvSizes& s, const In& w) {
  return {const_cast<T*>(data<T>(w)), s.group_outputs, s.taps(), s.taps(), 1, s.group_outputs * s.taps()};
}

// Products of planes as they are, batch by batch: for windows of one element.
template <class T>
void pointwise(const Stream& stream, const char* op, const ConvSizes& s, const GemmMatrix& w, const T* from, T* to,
               std::int64_t from_channels, std::int64_t to_channels, double beta) {
  const std::int64_t plane = s.plane();
  for (std::int64_t g = 0; g < s.groups; ++g) {
    Gemm product{.in = dtype_of<T>(), .out = dtype_of<T>(), .a = w, .b = {}, .c = {}, .batches = s.batch, .beta = beta};
    product.a.data = static_cast<T*>(w.data) + g * w.batch_stride;
    product.a.batch_stride = 0;
    product.b = {const_cast<T*>(from) + g * w.columns * plane, w.columns, plane, plane, 1, from_channels * plane};
    product.c = {to + g * w.rows * plane, w.rows, plane, plane, 1, to_channels * plane};
    gemm(stream, op, product);
  }
}

// The bias is no epilogue of the product: that adds one element per column of a row-major result, and here each row is
// an output channel. The bias is there first, for the product to be added, or joins where the product is moved anyway.
template <class T>
void forward(const Stream& stream, const Conv2dArgs& args, const ConvSizes& s) {
  using C = Compute<T>;
  const T* bias = args.bias.view.present ? data<T>(args.bias) : nullptr;
  T* y = data<T>(args.y);
  const Chunk all{0, s.batch, 0, s.out_plane()};
  const trace::WorkScope scope(stream, {.name = "convolution by products", .kind = trace::Kind::kernel});
  if (s.taps() == 0) return finish<T>(stream, s, nullptr, bias, y, all);
  const GemmMatrix w = weights<T>(s, args.w);
  if (s.pointwise()) {
    if (bias) finish<T>(stream, s, nullptr, bias, y, all);
    return pointwise<T>(stream, Conv2dArgs::kName, s, w, data<T>(args.x), y, s.channels, s.outputs, bias ? 1 : 0);
  }
  Scratch scratch(stream);
  T* columns = nullptr;
  C* products = nullptr;
  for_each_chunk(s, sizeof(T), [&](const Chunk& chunk) {
    const std::int64_t width = chunk.columns();
    if (!columns) columns = scratch.take<T>(s.groups * s.taps() * width);
    if (!products && chunk.images > 1) products = scratch.take<C>(s.outputs * width);
    image_to_columns(stream, Conv2dArgs::kName, s, data<T>(args.x), columns, chunk);
    Gemm product{.in = dtype_of<T>(),
                 .out = dtype_of<T>(),
                 .a = w,
                 .b = {columns, s.taps(), width, width, 1, s.taps() * width},
                 .c = {},
                 .batches = s.groups};
    if (chunk.images == 1) {
      if (bias) finish<T>(stream, s, nullptr, bias, y, chunk);
      product.beta = bias ? 1 : 0;
      product.c = {y + chunk.first * s.outputs * s.out_plane() + chunk.begin,
                   s.group_outputs,
                   width,
                   s.out_plane(),
                   1,
                   s.group_outputs * s.out_plane()};
      return gemm(stream, Conv2dArgs::kName, product);
    }
    product.out = dtype_of<C>();
    product.c = {products, s.group_outputs, width, width, 1, s.group_outputs * width};
    gemm(stream, Conv2dArgs::kName, product);
    finish<T>(stream, s, products, bias, y, chunk);
  });
}

template <class T>
void grad_input(const Stream& stream, const Conv2dGradInputArgs& args, const ConvSizes& s) {
  using C = Compute<T>;
  const char* op = Conv2dGradInputArgs::kName;
  T* dx = data<T>(args.dx);
  const trace::WorkScope scope(stream, {.name = "convolution by products", .kind = trace::Kind::kernel});
  const GemmMatrix w = weights<T>(s, args.w);
  if (s.pointwise() && s.outputs > 0) {
    GemmMatrix transposed = w.transposed();
    transposed.batch_stride = w.batch_stride;
    return pointwise<T>(stream, op, s, transposed, data<T>(args.dy), dx, s.outputs, s.channels, 0);
  }
  Scratch scratch(stream);
  const std::int64_t plane = s.out_plane(), channel_bytes = taps_of(s) * plane * static_cast<std::int64_t>(sizeof(C));
  // Whole planes, since every element of dx collects from several positions; channels are what an image is cut into.
  const bool whole = s.channels * channel_bytes <= columns_bytes;
  const std::int64_t channels =
      whole ? s.channels
            : std::clamp<std::int64_t>(columns_bytes / std::max<std::int64_t>(channel_bytes, 1), 1, s.group_channels);
  C* columns = nullptr;
  T* rows = nullptr;
  const auto add_chunk = [&](const Chunk& chunk) {
    const std::int64_t width = chunk.columns();
    if (!columns) columns = scratch.take<C>(channels * taps_of(s) * width);
    if (!rows && chunk.images > 1) rows = scratch.take<T>(s.outputs * width);
    const GemmMatrix dy = gradient_rows<T>(stream, s, args.dy.view, chunk, rows);
    const auto collect = [&](std::int64_t first_channel, std::int64_t count) {
      const std::int64_t elements = count * chunk.images * s.plane();
      launch(stream, op, columns_to_image_kernel<T>, grid_for(stream, elements), columns, dx, elements, Windows(s),
             chunk, first_channel, Splitter(s.width, elements), Splitter(s.height, elements),
             Splitter(chunk.images, elements));
    };
    if (whole) {
      GemmMatrix transposed = w.transposed();
      gemm(stream, op,
           {.in = dtype_of<T>(),
            .out = dtype_of<C>(),
            .a = transposed,
            .b = dy,
            .c = {columns, s.taps(), width, width, 1, s.taps() * width},
            .batches = s.groups});
      return collect(0, s.channels);
    }
    for (std::int64_t g = 0; g < s.groups; ++g)
      for (std::int64_t c = 0; c < s.group_channels; c += channels) {
        const std::int64_t count = std::min(channels, s.group_channels - c);
        GemmMatrix part = w, right = dy;
        part.data = static_cast<T*>(w.data) + g * w.batch_stride + c * taps_of(s);
        part.columns = count * taps_of(s);
        right.data = static_cast<T*>(dy.data) + g * dy.batch_stride;
        gemm(stream, op,
             {.in = dtype_of<T>(),
              .out = dtype_of<C>(),
              .a = part.transposed(),
              .b = right,
              .c = {columns, part.columns, width, width, 1, 0}});
        collect(g * s.group_channels + c, count);
      }
  };
  if (whole) return for_each_chunk(s, sizeof(C), add_chunk);
  for (std::int64_t n = 0; n < s.batch; ++n) add_chunk(Chunk{n, 1, 0, plane});
}

template <class T>
void grad_weight(const Stream& stream, const Conv2dGradWeightArgs& args, const ConvSizes& s) {
  using C = Compute<T>;
  const char* op = Conv2dGradWeightArgs::kName;
  const trace::WorkScope scope(stream, {.name = "convolution by products", .kind = trace::Kind::kernel});
  Scratch scratch(stream);
  // Sums over the chunks are kept in the type that computes.
  const bool direct = std::is_same_v<T, C>;
  void* sums = direct ? static_cast<void*>(data<T>(args.dw)) : scratch.take<C>(s.outputs * s.taps());
  T *columns = nullptr, *rows = nullptr;
  bool first = true;
  for_each_chunk(s, sizeof(T), [&](const Chunk& chunk) {
    const std::int64_t width = chunk.columns();
    if (!columns) columns = scratch.take<T>(s.groups * s.taps() * width);
    if (!rows && chunk.images > 1) rows = scratch.take<T>(s.outputs * width);
    image_to_columns(stream, op, s, data<T>(args.x), columns, chunk);
    const GemmMatrix right{columns, s.taps(), width, width, 1, s.taps() * width};
    gemm(stream, op,
         {.in = dtype_of<T>(),
          .out = dtype_of<C>(),
          .a = gradient_rows<T>(stream, s, args.dy.view, chunk, rows),
          .b = right.transposed(),
          .c = {sums, s.group_outputs, s.taps(), s.taps(), 1, s.group_outputs * s.taps()},
          .batches = s.groups,
          .beta = first ? 0.0 : 1.0});
    first = false;
  });
  if (direct) return;
  View from = args.dw.view;
  from.data = sums;
  from.dtype = dtype_of<C>();
  Kernels::enqueue(stream, CastArgs{.in = {from}, .out = args.dw});
}

void fill_zero(const Stream& stream, const Out& out) { Kernels::enqueue(stream, FillArgs{.out = out, .value = 0}); }

ConvSizes sizes_of(const View& x, const View& y, const Window2d& window, int groups, bool channels_last) {
  ConvSizes s(x.shape, y.shape, window, groups);
  s.channels_last = s.weights_channels_last = channels_last;
  return s;
}

// An array of the same shape in scratch memory.
View array_like(Scratch& scratch, const View& view, bool channels_last) {
  View made = view;
  made.strides = image_strides(view.shape, channels_last);
  made.data = scratch.take_bytes(static_cast<std::size_t>(element_count(view.shape)) * size_of(view.dtype));
  return made;
}
void copy(const Stream& stream, const View& from, const View& to) {
  Kernels::enqueue(stream, CastArgs{.in = {from}, .out = {to}});
}
In in_format(const Stream& stream, Scratch& scratch, const In& in, bool channels_last) {
  if (has_image_format(in.view, channels_last) || element_count(in.view.shape) == 0) return in;
  const View made = array_like(scratch, in.view, channels_last);
  copy(stream, in.view, made);
  return {made};
}

// With its bias in one kernel, if cuDNN has one. Else the bias is there first, and the convolution added to it: it is
// one of the dtype's numbers, so nothing is rounded twice. A ReLU is a kernel of its own: no engine says that its own
// hands NaN on, but for one that computes as a loop.
bool forward_by_cudnn(const Stream& stream, const Conv2dArgs& a, const ConvSizes& s) {
  const View &y = a.y.view, &bias = a.bias.view;
  if (!goes_to_cudnn(s, y.dtype) || !lockstep::cudnn::library()) return false;
  if (bias.present) {
    if (conv_and_bias_by_cudnn(stream, Conv2dArgs::kName, s, a.x.view, a.w.view, bias, y)) return true;
    View everywhere = y;
    everywhere.data = bias.data;
    everywhere.strides = {0, 1, 0, 0};
    copy(stream, everywhere, y);
  }
  return conv_by_cudnn(stream, Conv2dArgs::kName, ConvKind::forward, s, a.x.view, a.w.view, y, bias.present);
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const Conv2dArgs& args) {
  check_floating(Conv2dArgs::kName, args.x.view.dtype, stream);
  if (element_count(args.y.view.shape) == 0) return;
  Scratch scratch(stream);
  Conv2dArgs a = args;
  const bool last = is_channels_last(a.x.view, a.y.view);
  a.w = in_format(stream, scratch, a.w, last);
  const ConvSizes s = sizes_of(a.x.view, a.y.view, a.window, a.groups, last);
  if (is_depthwise(s)) {
    depthwise(stream, a, s);
  } else if (!forward_by_cudnn(stream, a, s)) {
    // Products read planes.
    a.x = in_format(stream, scratch, a.x, false), a.w = in_format(stream, scratch, a.w, false);
    if (last) a.y = {array_like(scratch, args.y.view, false)};
    dispatch_floating(a.x.view.dtype, [&]<class T>(Type<T>) { forward<T>(stream, a, s); });
    if (last) copy(stream, a.y.view, args.y.view);
  }
  if (args.relu) enqueue(stream, UnaryArgs{UnaryOp::relu, In{args.y.view}, args.y});
}

void Kernels::enqueue(const Stream& stream, const Conv2dGradInputArgs& args) {
  check_floating(Conv2dGradInputArgs::kName, args.dy.view.dtype, stream);
  if (element_count(args.dx.view.shape) == 0) return;
  if (element_count(args.dy.view.shape) == 0 || element_count(args.w.view.shape) == 0)
    return fill_zero(stream, args.dx);
  Scratch scratch(stream);
  Conv2dGradInputArgs a = args;
  const bool last = is_channels_last(a.dx.view, a.dy.view);
  a.w = in_format(stream, scratch, a.w, last);
  const ConvSizes s = sizes_of(a.dx.view, a.dy.view, a.window, a.groups, last);
  if (is_depthwise(s)) return depthwise_grad_input(stream, a, s);
  if (conv_by_cudnn(stream, Conv2dGradInputArgs::kName, ConvKind::grad_input, s, a.dx.view, a.w.view, a.dy.view))
    return;
  a.dy = in_format(stream, scratch, a.dy, false), a.w = in_format(stream, scratch, a.w, false);
  if (last) a.dx = {array_like(scratch, args.dx.view, false)};
  dispatch_floating(a.dy.view.dtype, [&]<class T>(Type<T>) { grad_input<T>(stream, a, s); });
  if (last) copy(stream, a.dx.view, args.dx.view);
}

void Kernels::enqueue(const Stream& stream, const Conv2dGradWeightArgs& args) {
  check_floating(Conv2dGradWeightArgs::kName, args.dy.view.dtype, stream);
  if (element_count(args.dw.view.shape) == 0) return;
  if (element_count(args.dy.view.shape) == 0) return fill_zero(stream, args.dw);
  Scratch scratch(stream);
  Conv2dGradWeightArgs a = args;
  const bool last = is_channels_last(a.x.view, a.dy.view);
  const ConvSizes s = sizes_of(a.x.view, a.dy.view, a.window, a.groups, last);
  const auto result_in = [&](bool channels_last) {
    a.dw =
        has_image_format(args.dw.view, channels_last) ? args.dw : Out{array_like(scratch, args.dw.view, channels_last)};
  };
  result_in(last);
  if (is_depthwise(s)) {
    depthwise_grad_weight(stream, a, s);
  } else if (!conv_by_cudnn(stream, Conv2dGradWeightArgs::kName, ConvKind::grad_weight, s, a.x.view, a.dw.view,
                            a.dy.view)) {
    a.x = in_format(stream, scratch, a.x, false), a.dy = in_format(stream, scratch, a.dy, false);
    result_in(false);
    dispatch_floating(a.dy.view.dtype, [&]<class T>(Type<T>) { grad_weight<T>(stream, a, s); });
  }
  if (a.dw.view.data != args.dw.view.data) copy(stream, a.dw.view, args.dw.view);
}

void list_conv(KernelList& list) {
  for_sizes([&]<class T>(Type<T>) {
    if constexpr (sizeof(T) > 1) list.add(image_to_columns_kernel<T>);
  });
  for_floating([&]<class T>(Type<T>) {
    list.add(columns_to_image_kernel<T>);
    list.add(finish_kernel<T, kPack<T>>);
    list.add(finish_kernel<T, 1>);
  });
}

}  // namespace lockstep::kernels::cuda
