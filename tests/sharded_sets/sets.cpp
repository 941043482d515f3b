// A rank of a job that writes the state of a small sharded model as others read it, or reads what others wrote.
//
// usage: lockstep-sharded-sets write FOLDER   trains, and writes FOLDER/set (a file per rank, with indices) and
//                                             FOLDER/model.safetensors (whole, by rank 0)
//        lockstep-sharded-sets read PATH      loads a set or a file into a model of zeros
// Rank 0 prints what the ranks have together then, a line of JSON for each tensor: where it belongs ("model" or
// "optimizer"), name, dtype and shape as the format has them, and the SHA-256 of its bytes. model.py has the same
// model.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "lockstep/models.h"
#include "lockstep/parallel/comm/sha256.h"

using namespace lockstep;

namespace {

struct Block : Module<Block> {
  Linear up{12, 31}, down{31, 12};
  Tensor forward(const Tensor& x) const { return x + down(relu(up(x))); }
  void members(Members& m) override { m("up", up), m("down", down); }
};

// Four dtypes, sizes that nothing divides, a weight whose elements lie in another order, a buffer of integers beside
// that of the norm, and a part that is not trained.
struct Net : Module<Net> {
  Linear first{5, 12};
  std::vector<Block> blocks = std::vector<Block>(2);
  BatchNorm1d norm{12};
  Linear in_bf16{12, 7}, in_f16{7, 6};
  Conv2d conv{3, 5, 3};
  Parameter scale{ones({})};
  Buffer places{arange(0, 11, 1, {.dtype = DType::i64})};
  Net() {
    in_bf16.to(DType::bf16);
    in_f16.to(DType::f16);
    conv.to(MemoryFormat::channels_last);
    blocks[0].up.set_requires_grad(false);
  }
  Tensor forward(const Tensor& x) const {
    Tensor h = first(x);
    for (const Block& block : blocks) h = block(h);
    h = in_f16(in_bf16(norm(h).to(DType::bf16)).to(DType::f16)).to(DType::f32);
    return h * scale.on(x.device()) + mean(conv(ones({1, 3, 4, 4}, {.device = x.device()})));
  }
  void members(Members& m) override {
    m("first", first), m("blocks", blocks), m("norm", norm), m("in_bf16", in_bf16), m("in_f16", in_f16),
        m("conv", conv);
    m("scale", scale), m("places", places);
  }
};

const char* name_in_format(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "F32";
    case DType::bf16:
      return "BF16";
    case DType::f16:
      return "F16";
    case DType::f64:
      return "F64";
    case DType::i64:
      return "I64";
    default:
      throw Error("expected another dtype, got " + std::string(to_string(dtype)));
  }
}

void print(const char* of, const std::vector<NamedTensor>& state) {
  for (const NamedTensor& each : state) {
    const Tensor tensor = each.tensor.to(Device::cpu()).contiguous();
    std::string shape;
    for (int dim = 0; dim < tensor.shape().rank(); ++dim)
      shape += (dim ? ", " : "") + std::to_string(tensor.shape()[dim]);
    std::printf(R"({"of": "%s", "name": "%s", "dtype": "%s", "shape": [%s], "sha256": "%s"})"
                "\n",
                of, each.name.c_str(), name_in_format(tensor.dtype()), shape.c_str(),
                detail::to_hex(detail::Sha256().update(tensor.data(), tensor.bytes()).digest()).c_str());
  }
}

void run(const std::string& what, const std::filesystem::path& path) {
  const auto communicator = make_communicator();
  const bool is_first = communicator->rank() == 0;
  FullyShardedDataParallel net(Net(), *communicator, {.wrap = wrap_modules<Block>()});
  AdamW optimizer(net.parameters(), {.lr = 0.01});
  if (what == "write") {
    manual_seed(static_cast<std::uint64_t>(communicator->rank()));
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      mean(square(net(randn({4, 5}, {.device = communicator->device()})))).backward();
      optimizer.step();
    }
    if (is_first) std::filesystem::create_directories(path / "set");
    communicator->barrier();
    net.save_sharded((path / "set").string(), optimizer);
    const std::vector<NamedTensor> model = net.whole_state_dict(0), state = net.whole_state_dict(optimizer, 0);
    if (!is_first) return;
    save_safetensors((path / "model.safetensors").string(), model);
    print("model", model);
    print("optimizer", state);
  } else if (what == "read") {
    for (const Parameter& part : net.parameters()) part.tensor().detach().zero_();
    net.load_whole_state_dict(read_checkpoint(path.string(), {.map = true}).tensors);
    const std::vector<NamedTensor> model = net.whole_state_dict(0);
    if (is_first) print("model", model);
  } else {
    throw InvalidArgument("expected write or read, got " + what);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) throw InvalidArgument("expected write or read, and a path");
  run(argv[1], argv[2]);
} catch (const std::exception& error) {
  std::fprintf(stderr, "lockstep-sharded-sets: %s\n", error.what());
  return 1;
}
