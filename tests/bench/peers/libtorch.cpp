// libtorch in compare_peers: small operations and products, without Python's overhead. Not part of the build:
// compare_peers compiles it against the PyTorch of the peers' environment. usage: libtorch <threads>
#include <torch/torch.h>
#include <torch/version.h>

#include "work_file.h"

namespace {

using namespace peers;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

Tensor made(const FileTensor& tensor) {
  static const std::map<std::string, torch::ScalarType> types{{"F32", torch::kFloat},
                                                              {"F64", torch::kDouble},
                                                              {"F16", torch::kHalf},
                                                              {"BF16", torch::kBFloat16},
                                                              {"I64", torch::kLong}};
  Tensor copy = torch::empty(tensor.shape, types.at(tensor.dtype));
  std::memcpy(copy.mutable_data_ptr(), tensor.bytes.data(), tensor.bytes.size());
  return copy;
}

Tensors numbered(const std::map<std::string, FileTensor>& tensors, const std::string& prefix) {
  Tensors found;
  for (auto at = tensors.find(prefix + ".0"); at != tensors.end();
       at = tensors.find(prefix + '.' + std::to_string(found.size())))
    found.push_back(made(at->second));
  return found;
}

double difference(const Tensors& ours, const Tensors& theirs) {
  double worst = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const Tensor a = ours[i].to(torch::kDouble), b = theirs.at(i).detach().to(torch::kDouble).reshape(a.sizes());
    if (a.numel() > 0) worst = std::max(worst, ((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item<double>());
  }
  return worst;
}

template <class F>
Ways ways(const Json& work, Tensors inputs, const Tensors& ours, F f) {
  const bool backward = work.at("kind") == "grad";
  Tensor gradient;
  if (backward) {
    gradient = inputs.back();
    inputs.pop_back();
    for (Tensor& input : inputs) input.set_requires_grad(true);
  }
  const auto forget = [inputs] {
    for (const Tensor& input : inputs) input.mutable_grad().reset();
  };
  const auto once = [f, inputs, gradient, backward] {
    Tensor output = f(inputs);
    if (backward) output.backward(gradient);
    return output;
  };
  Tensors results{[&] {
    const torch::AutoGradMode mode(backward);
    return once();
  }()};
  if (backward)
    for (const Tensor& input : inputs) results.push_back(input.grad());
  const Json report = work.value("random", false) ? Json::object() : Json{{"difference", difference(ours, results)}};
  forget();
  if (backward)
    return {{"libtorch",
             {[once, forget](std::int64_t times) {
                for (std::int64_t i = 0; i < times; ++i) once(), forget();
              },
              report}}};
  return {{"libtorch",
           {[f, inputs](std::int64_t times) {
              const c10::InferenceMode mode;
              for (std::int64_t i = 0; i < times; ++i) f(inputs);
            },
            report}}};
}

Ways prepare(const Json& work, const std::string& folder) {
  const auto tensors = read_work(folder);
  const Tensors x = numbered(tensors, "in"), ours = numbered(tensors, "out");
  const std::string op = work.at("op");
  const Json args = work.at("args");
  const std::int64_t dim = args.value("dim", 0), length = args.value("length", 0);
  const auto of = [&](auto f) { return ways(work, x, ours, f); };
  if (op == "add") return of([](const Tensors& in) { return torch::add(in[0], in[1]); });
  if (op == "empty") return of([](const Tensors& in) { return torch::empty_like(in[0]); });
  if (op == "linear") return of([](const Tensors& in) { return torch::linear(in[0], in[1], in[2]); });
  if (op == "softmax") return of([dim](const Tensors& in) { return torch::softmax(in[0], dim); });
  if (op == "cat") return of([dim](const Tensors& in) { return torch::cat({in[0], in[1]}, dim); });
  if (op == "sum_item") return of([](const Tensors& in) { return torch::full({1}, in[0].sum().item<float>()); });
  if (op == "chain")
    return of([length](const Tensors& in) {
      Tensor sum = in[0];
      for (std::int64_t i = 0; i < length; ++i) sum = sum + in[1];
      return sum;
    });
  if (op == "matmul") {
    const bool left = args.value("transpose_a", false), right = args.value("transpose_b", false);
    return of([left, right](const Tensors& in) {
      return torch::matmul(left ? in[0].mT() : in[0], right ? in[1].mT() : in[1]);
    });
  }
  throw Unsupported("there is no operation " + op);
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(argc > 1 ? std::atoi(argv[1]) : 1);
  return serve({{"name", "libtorch"}, {"version", TORCH_VERSION}}, prepare);
}
