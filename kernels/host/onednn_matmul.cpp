#include "lockstep/kernels/host/onednn.h"

#if defined(LOCKSTEP_HAVE_ONEDNN)

#include <algorithm>
#include <array>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "lockstep/kernels/host/one_thread.h"
#include "lockstep/kernels/host/scratch.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/library_threads.h"

namespace lockstep::kernels::host {
namespace {

using dnnl::memory;

dnnl::engine& engine() {
  // Never destroyed: what threads keep refers to it until they end.
  static dnnl::engine& engine = *new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return engine;
}
dnnl::stream& stream() {
  static thread_local dnnl::stream stream(engine());
  return stream;
}

memory::data_type type_of(DType dtype) {
  return dtype == DType::bf16  ? memory::data_type::bf16
         : dtype == DType::f16 ? memory::data_type::f16
                               : memory::data_type::f32;
}

// Sizes and strides of a stack, as oneDNN wants them: one dimension of each matrix lies together. Those of dimensions
// of one element are the ones of contiguous memory: oneDNN has its best code for that.
struct Form {
  std::int64_t batches, rows, columns, batch_stride, row_stride, column_stride;

  memory::desc description(DType dtype) const {
    return {memory::dims{batches, rows, columns}, type_of(dtype),
            memory::dims{batch_stride, row_stride, column_stride}};
  }
};

// oneDNN refuses strides of which one is less than what the next smaller one spans, even where no two elements meet:
// rows 1 and 4 of every 5 span six, and the next matrix begins after five.
bool nested(const Form& form) {
  std::array<std::pair<std::int64_t, std::int64_t>, 3> spans{
      {{form.batch_stride, form.batches}, {form.row_stride, form.rows}, {form.column_stride, form.columns}}};
  std::ranges::sort(spans);
  std::int64_t least = 1;
  for (const auto& [stride, size] : spans) {
    if (stride < least) return false;
    least = stride * size;
  }
  return true;
}

std::optional<Form> form_of(const Stack& s) {
  Form form{s.batch_stride == 0 ? 1 : s.batches, s.rows, s.columns, s.batch_stride, 1, 1};
  if ((s.column_stride == 1 || s.columns == 1) && (s.row_stride >= s.columns || s.rows == 1))
    form.row_stride = s.rows == 1 ? s.columns : s.row_stride;
  else if ((s.row_stride == 1 || s.rows == 1) && (s.column_stride >= s.rows || s.columns == 1))
    form.column_stride = s.columns == 1 ? s.rows : s.column_stride;
  else
    return std::nullopt;
  if (form.batches == 1)
    form.batch_stride = form.column_stride == 1 ? form.rows * form.row_stride : form.columns * form.column_stride;
  if (!nested(form)) return std::nullopt;
  return form;
}

class Matmul {
 public:
  Matmul(const memory::desc& a, const memory::desc& b, const memory::desc& bias, const memory::desc& out);

  // Whether it is more than oneDNN's loop for whatever it has no code for.
  bool fast() const { return fast_; }
  void run(const void* a, const void* b, const void* bias, void* out);

 private:
  dnnl::primitive primitive_;
  memory a_, b_, bias_, out_, scratchpad_;
  std::int64_t scratchpad_bytes_ = 0;
  bool has_bias_, fast_ = false;
};

Matmul::Matmul(const memory::desc& a, const memory::desc& b, const memory::desc& bias, const memory::desc& out)
    : a_(a, engine(), nullptr), b_(b, engine(), nullptr), out_(out, engine(), nullptr), has_bias_(!bias.is_zero()) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc described =
      has_bias_ ? dnnl::matmul::primitive_desc(engine(), a, b, bias, out, attributes)
                : dnnl::matmul::primitive_desc(engine(), a, b, out, attributes);
#else
  const dnnl::matmul::primitive_desc described(
      has_bias_ ? dnnl::matmul::desc(a, b, bias, out) : dnnl::matmul::desc(a, b, out), attributes, engine());
#endif
  fast_ = !std::string_view(described.impl_info_str()).starts_with("ref");
  if (!fast_) return;
  primitive_ = dnnl::matmul(described);
  if (has_bias_) bias_ = memory(bias, engine(), nullptr);
  scratchpad_ = memory(described.scratchpad_desc(), engine(), nullptr);
  scratchpad_bytes_ = static_cast<std::int64_t>(described.scratchpad_desc().get_size());
}

void Matmul::run(const void* a, const void* b, const void* bias, void* out) {
  Scratch scratch;
  a_.set_data_handle(const_cast<void*>(a));
  b_.set_data_handle(const_cast<void*>(b));
  out_.set_data_handle(out);
  scratchpad_.set_data_handle(scratch.take<std::byte>(scratchpad_bytes_));
  if (has_bias_) bias_.set_data_handle(const_cast<void*>(bias));
  const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, a_.get()},
                                       {DNNL_ARG_WEIGHTS, b_.get()},
                                       {DNNL_ARG_DST, out_.get()},
                                       {DNNL_ARG_SCRATCHPAD, scratchpad_.get()},
                                       {DNNL_ARG_BIAS, has_bias_ ? bias_.get() : nullptr}};
  dnnl::error::wrap_c_api(
      dnnl_primitive_execute(primitive_.get(), stream().get(), has_bias_ ? 5 : 4, std::data(arguments)),
      "could not execute a matrix product");
}

using Key = std::array<std::int64_t, 21>;

// Making one costs as much as a product of a few hundred rows: a thread keeps those that it has used. An empty entry is
// a product that oneDNN has no code for.
std::optional<Matmul>& find(const Key& key, const Form& a, const Form& b, const Form& out, DType dtype, bool has_bias,
                            DType out_dtype) {
  static thread_local std::map<Key, std::optional<Matmul>> cache;
  constexpr std::size_t kMost = 512;
  if (const auto found = cache.find(key); found != cache.end()) return found->second;
  if (cache.size() >= kMost) cache.clear();
  std::optional<Matmul> made;
  try {
    const memory::desc bias = has_bias ? memory::desc(memory::dims{1, 1, out.columns}, type_of(dtype),
                                                      memory::dims{out.columns, out.columns, 1})
                                       : memory::desc();
    made.emplace(a.description(dtype), b.description(dtype), bias, out.description(out_dtype));
    if (!made->fast()) made.reset();
  } catch (const dnnl::error& error) {
    made.reset();
    if (error.status != dnnl_unimplemented) throw;
  }
  return cache[key] = std::move(made);
}

}  // namespace

bool onednn_multiplies(DType dtype) {
  static const int isa = static_cast<int>(dnnl_get_effective_cpu_isa());
  const auto has = [](int wanted) { return (isa & wanted) == wanted; };
  if (dtype == DType::bf16) return has(dnnl_cpu_isa_avx512_core_bf16);
#if DNNL_VERSION_MAJOR >= 3
  if (dtype == DType::f16) return has(dnnl_cpu_isa_avx512_core_fp16);
#endif
  return false;
}

bool onednn_matmul(const Stack& a, const Stack& b, const void* bias, const Stack& out) {
  const std::optional<Form> fa = form_of(a), fb = form_of(b), fo = form_of(out);
  if (!fa || !fb || !fo || fo->column_stride != 1) return false;
  const lockstep::detail::ForeignCall call;
  if (!call) return false;
  const OneThread one_thread;
  Key key{};
  auto* to = key.data();
  for (const Form* f : {&*fa, &*fb, &*fo})
    for (const std::int64_t x : {f->batches, f->rows, f->columns, f->batch_stride, f->row_stride, f->column_stride})
      *to++ = x;
  *to++ = static_cast<std::int64_t>(a.dtype), *to++ = static_cast<std::int64_t>(out.dtype), *to++ = bias != nullptr;
  try {
    std::optional<Matmul>& matmul = find(key, *fa, *fb, *fo, a.dtype, bias != nullptr, out.dtype);
    if (!matmul) return false;
    matmul->run(a.data, b.data, bias, const_cast<void*>(out.data));
    return true;
  } catch (const dnnl::error& error) {
    lockstep::detail::fail<Error>("[matmul] oneDNN failed with status ", static_cast<int>(error.status), ": ",
                                  error.what());
  }
}

}  // namespace lockstep::kernels::host

#else

namespace lockstep::kernels::host {

bool onednn_multiplies(DType) { return false; }
bool onednn_matmul(const Stack&, const Stack&, const void*, const Stack&) { return false; }

}  // namespace lockstep::kernels::host

#endif
