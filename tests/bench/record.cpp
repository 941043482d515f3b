// Writes a recording of training steps of a known network, for lockstep-bench simulate: on any machine, whatever the
// size of the network and the number of devices.
#include "lockstep/runtime/record/record.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "lockstep/parallel/simulate/device_links.h"
#include "lockstep/runtime/host/host_options.h"
#include "models.h"
#include "subcommand.h"

namespace lockstep::record_bench {

std::string model = "resnet50", wrapper = "data_parallel", output, dtype = "f32", optimizer = "sgd", machine;
int devices = 8, hosts = 1, steps = 2;
std::int64_t batch = 32;
std::string bucket_cap = "25";
bool prefetch = true;

DType number_type() { return dtype == "bf16" ? DType::bf16 : dtype == "f16" ? DType::f16 : DType::f32; }

// The rows of one device, times the number of devices where a wrapper divides them. As from a loader that is ahead.
struct Batch {
  Tensor inputs, targets;
};
Batch make_batch(std::int64_t rows, Device device) {
  if (model == "resnet50")
    return {randn({rows, 3, 224, 224}, {.device = device}).to(number_type()),
            zeros({rows}, {.dtype = DType::i64, .device = device})};
  const std::int64_t length = model == "gpt2" ? bench::kGpt2Small.length : bench::kGpt3XL.length;
  return {zeros({rows, length}, {.dtype = DType::i64, .device = device}),
          zeros({rows, length}, {.dtype = DType::i64, .device = device})};
}

std::unique_ptr<Optimizer> make_optimizer(const std::vector<Parameter>& parameters) {
  if (optimizer == "adam") return std::make_unique<Adam>(parameters, AdamOptions{.lr = 1e-4});
  return std::make_unique<SGD>(parameters, SgdOptions{.lr = 0.1, .momentum = 0.9});
}

template <class Net>
void train(const Net& net, std::int64_t rows) {
  const std::unique_ptr<Optimizer> update = make_optimizer(net.parameters());
  const Batch data = make_batch(rows, Device::host(0));
  // Two steps make what later ones find: memory, mirrors, slabs, buckets in the order of the backward.
  for (int step = -2; step < steps; ++step) {
    if (step == 0) {
      record::restart();
      record::mark("step");
    }
    const Tensor loss = mean(net(data.inputs, data.targets));
    update->zero_grad();
    loss.backward();
    update->step();
    if (step >= 0) record::mark("step");
  }
}

// What has units of its own in the sharded wrapper: the blocks, which are most of a network.
WrapPolicy blocks(const bench::ResNet50&) { return wrap_modules<bench::Bottleneck>(); }
WrapPolicy blocks(const bench::Gpt&) { return wrap_modules<TransformerEncoderLayer>(); }

template <class Net>
void wrap_and_train(Net net) {
  net.to(Device::host(0));
  net.to(number_type());
  if (wrapper == "none") {
    train(net, batch);
  } else if (wrapper == "data_parallel") {
    std::vector<Device> all = accelerators();
    train(DataParallel(std::move(net), {.devices = all}), batch * devices);
  } else {
    const RankInfo rank{.rank = 0, .size = devices, .local_size = (devices + hosts - 1) / hosts};
    const auto communicator = make_communicator({.rank = rank, .device = Device::host(0)});
    if (wrapper == "fsdp") {
      const WrapPolicy policy = blocks(net);
      return train(FullyShardedDataParallel(std::move(net), *communicator,
                                            {.wrap = policy, .prefetch = prefetch, .init_sync = false}),
                   batch);
    }
    const double cap = bucket_cap == "auto" ? kAutoBucketCap : std::stod(bucket_cap);
    const DistributedDataParallel<Net> wrapped(std::move(net), *communicator, {.bucket_cap_mb = cap});
    if (bucket_cap == "auto")
      std::printf("bucket_cap_mb: %.3g\n", static_cast<double>(wrapped.logging_data().bucket_cap_bytes) / (1 << 20));
    train(wrapped, batch);
  }
}

void run(bench::Session& session) {
  if (!session.wants("record", model) || output.empty()) return;
  const int here = wrapper == "data_parallel" ? devices : 1;
  std::vector<DeviceLink> links;
  if (!machine.empty()) links = simulate::device_links(simulate::load_machine(machine), here);
  configure_host({.devices = here, .mode = HostMode::record});
  if (!machine.empty()) record::set_links(links);
  if (model == "resnet50")
    wrap_and_train(bench::ResNet50());
  else
    wrap_and_train(bench::Gpt(model == "gpt2" ? bench::kGpt2Small : bench::kGpt3XL, Device::host(0)));
  record::write(output);
}

const bench::Subcommand command(
    "record", "Writes what steps of a known network enqueue, for simulate; computes nothing, and needs no memory",
    [](CLI::App& app) {
      app.add_option("--model", model,
                     "resnet50 (images of 224 x 224), gpt2 (124 million, 1,024 words), gpt3-xl (1.3 "
                     "billion, 2,048 words)")
          ->check(CLI::IsMember({"resnet50", "gpt2", "gpt3-xl"}))
          ->capture_default_str();
      app.add_option("--wrapper", wrapper, "none, data_parallel; ddp or fsdp: one rank, which stands for all")
          ->check(CLI::IsMember({"none", "data_parallel", "ddp", "fsdp"}))
          ->capture_default_str();
      app.add_option("--devices", devices, "Devices, or ranks")->check(CLI::Range(1, 256))->capture_default_str();
      app.add_option("--batch", batch, "Images or texts per device")->check(CLI::PositiveNumber)->capture_default_str();
      app.add_option("--dtype", dtype, "Of parameters and activations")
          ->check(CLI::IsMember({"f32", "bf16", "f16"}))
          ->capture_default_str();
      app.add_option("--optimizer", optimizer, "sgd (with momentum) or adam")
          ->check(CLI::IsMember({"sgd", "adam"}))
          ->capture_default_str();
      app.add_option("--hosts", hosts, "Among which the ranks of the ddp wrapper are, for --bucket-cap-mb auto")
          ->check(CLI::PositiveNumber)
          ->capture_default_str();
      app.add_option("--bucket-cap-mb", bucket_cap,
                     "Of the ddp wrapper, in MiB; auto: the library chooses, by LOCKSTEP_HOST_LINK and "
                     "LOCKSTEP_NETWORK_GBITS")
          ->check(CLI::PositiveNumber | CLI::IsMember({"auto"}))
          ->capture_default_str();
      app.add_flag("!--no-prefetch", prefetch, "Of the fsdp wrapper: a unit is gathered when it is needed, not before");
      app.add_option("--steps", steps, "Steps to record, after two that are not")
          ->check(CLI::PositiveNumber)
          ->capture_default_str();
      app.add_option("--machine", machine,
                     "Machine file (docs/machines): what goes to several devices takes the ways that are best there; "
                     "without it all ways are alike");
      app.add_option("--output", output, "The file to write; without it nothing is recorded");
    },
    run);

}  // namespace lockstep::record_bench
