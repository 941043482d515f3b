// oneDNN alone in compare_peers: products and convolutions, as bare calls. usage: lockstep-works-onednn <threads>.
// Memory lies as oneDNN likes it best, and what brings it there is not timed: a bound for who calls oneDNN.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "work_file.h"

namespace {

using namespace peers;
using dnnl::memory;

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}
dnnl::stream& stream() {
  static dnnl::stream one(engine());
  return one;
}

memory::desc plain(const FileTensor& tensor) {
  static const std::map<std::string, memory::data_type> types{
      {"F32", memory::data_type::f32}, {"BF16", memory::data_type::bf16}, {"F16", memory::data_type::f16}};
  const auto type = types.find(tensor.dtype);
  if (type == types.end()) throw Unsupported("does not compute in " + tensor.dtype);
  memory::dims strides(tensor.shape.size(), 1);
  for (std::size_t i = strides.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * tensor.shape[i];
  return {tensor.shape, type->second, strides};
}
memory::desc any(const memory::desc& like) {
#if DNNL_VERSION_MAJOR >= 3
  return {like.get_dims(), like.get_data_type(), memory::format_tag::any};
#else
  return {like.dims(), like.data_type(), memory::format_tag::any};
#endif
}

memory filled(const FileTensor& tensor, const memory::desc& from, const memory::desc& to) {
  memory source(from, engine(), const_cast<char*>(tensor.bytes.data()));
  memory target(to, engine());
  dnnl::reorder(source, target).execute(stream(), source, target);
  stream().wait();
  return target;
}

// The largest difference, as a part of the largest element.
double difference(const FileTensor& ours, memory result) {
  const memory::desc from = plain(ours), wide(ours.shape, memory::data_type::f32, [&] {
    memory::dims strides(ours.shape.size(), 1);
    for (std::size_t i = strides.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * ours.shape[i];
    return strides;
  }());
  memory a = filled(ours, from, wide), b(wide, engine());
  dnnl::reorder(result, b).execute(stream(), result, b);
  stream().wait();
  const auto* const x = static_cast<const float*>(a.get_data_handle());
  const auto* const y = static_cast<const float*>(b.get_data_handle());
  double worst = 0, largest = 1e-30;
  for (std::size_t i = 0; i < wide.get_size() / sizeof(float); ++i) {
    worst = std::max(worst, static_cast<double>(std::fabs(x[i] - y[i])));
    largest = std::max(largest, static_cast<double>(std::fabs(y[i])));
  }
  return worst / largest;
}

template <class Primitive, class Described>
Way way(const Described& described, const FileTensor& a, const memory::desc& a_from, const FileTensor& b,
        const memory::desc& b_from, const FileTensor& ours) {
  const memory source = filled(a, a_from, described.src_desc()), weights = filled(b, b_from, described.weights_desc());
  memory result(described.dst_desc(), engine());
  const Primitive primitive(described);
  const std::unordered_map<int, memory> arguments{
      {DNNL_ARG_SRC, source}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, result}};
  primitive.execute(stream(), arguments);
  stream().wait();
  return {.repeat =
              [primitive, arguments](std::int64_t times) {
                for (std::int64_t i = 0; i < times; ++i) primitive.execute(stream(), arguments);
                stream().wait();
              },
          .report = {{"difference", difference(ours, result)}}};
}

Ways product(const FileTensor& a, const FileTensor& b, const FileTensor& ours) {
  const memory::desc source = plain(a), weights = plain(b), result = plain(ours);
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc described(engine(), source, any(weights), result);
#else
  const dnnl::matmul::primitive_desc described({source, any(weights), result}, engine());
#endif
  return {{"matmul, weights packed", way<dnnl::matmul>(described, a, source, b, weights, ours)}};
}

Ways convolution(const Json& args, const FileTensor& x, FileTensor weight, const FileTensor& ours) {
  const std::int64_t groups = args.value("groups", 1), stride = args.value("stride", 1),
                     padding = args.value("padding", 0), dilation = args.value("dilation", 1) - 1;
  if (groups > 1) {
    weight.shape[0] /= groups;
    weight.shape.insert(weight.shape.begin(), groups);
  }
  const memory::desc source = plain(x), weights = plain(weight), result = plain(ours);
  const memory::dims strides{stride, stride}, dilations{dilation, dilation}, pads{padding, padding};
  const auto kind = dnnl::prop_kind::forward_inference;
  const auto best = dnnl::algorithm::convolution_direct;
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::convolution_forward::primitive_desc described(engine(), kind, best, any(source), any(weights),
                                                            any(result), strides, dilations, pads, pads);
#else
  const dnnl::convolution_forward::primitive_desc described(
      {kind, best, any(source), any(weights), any(result), strides, dilations, pads, pads}, engine());
#endif
  return {{"convolution, blocked", way<dnnl::convolution_forward>(described, x, source, weight, weights, ours)}};
}

Ways prepare(const Json& work, const std::string& folder) {
  const std::string op = work.at("op");
  const Json args = work.at("args");
  if (work.at("kind") != "call" || (op != "conv2d" && op != "matmul") || args.contains("transpose_a") ||
      args.contains("transpose_b"))
    throw Unsupported("products and convolutions alone");
  auto tensors = read_work(folder);
  try {
    if (op == "matmul") return product(tensors.at("in.0"), tensors.at("in.1"), tensors.at("out.0"));
    return convolution(args, tensors.at("in.0"), tensors.at("in.1"), tensors.at("out.0"));
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_unimplemented) throw Unsupported("oneDNN has no implementation");
    throw;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: lockstep-works-onednn <threads>\n";
    return 2;
  }
  omp_set_num_threads(std::max(1, std::atoi(argv[1])));
  const dnnl_version_t& version = *dnnl_version();
  const std::string text =
      std::to_string(version.major) + '.' + std::to_string(version.minor) + '.' + std::to_string(version.patch);
  return serve({{"name", "onednn"}, {"version", text}}, prepare);
}
