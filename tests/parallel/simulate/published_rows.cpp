#include "published_rows.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "lockstep/parallel/simulate/collective_cost.h"
#include "lockstep/runtime/strings.h"

namespace lockstep::simulate::tests {

std::vector<PublishedRow> published_rows() {
  constexpr const char *kDle = "NVIDIA/DeepLearningExamples 729963dd", *kDlPerf = "Oneflow-Inc/DLPerf c89430b",
                       *kTensorFlow = "tensorflow/docs 62da04c, r1 benchmarks",
                       *kHorovod = "horovod docs/benchmarks.rst";
  constexpr const char *kDtype = "dtype of the gradients not stated", *kOld = "NCCL 1, another order of gradients";
  // NVIDIA's BERT reduces behind the backward, by its flags.
  const auto behind = [](double seconds, int bytes = 4) { return StepOptions{seconds, bytes, false}; };
  const auto overlapped = [](double seconds, int bytes = 4) { return StepOptions{seconds, bytes}; };
  StepOptions lamb = behind(14.394, 2);
  lamb.optimizer_bytes = 44;
  return {
      {"ResNet-50 f16, 192", "dgx-1v", kDle, resnet(50), overlapped(0.1395, 2), {{2, 1.006}, {4, .973}, {8, .974}}},
      {"ResNet-50 f16, 256",
       "dgx-2",
       kDle,
       resnet(50),
       overlapped(0.1716, 2),
       {{2, .984}, {4, .959}, {8, .952}, {16, .9}}},
      {"ResNet-50 f32, 128",
       "dgx-2",
       kDle,
       resnet(50),
       overlapped(0.307),
       {{2, .984}, {4, .973}, {8, .966}, {16, .95}}},
      {"ResNet-50 f32, 128",
       "4x8-v100-100gb",
       kDlPerf,
       resnet(50),
       overlapped(0.3485),
       {{4, .987}, {8, .983}, {16, .973}, {32, .929}}},
      {"ResNet-50 AMP, 256",
       "4x8-v100-100gb",
       kDlPerf,
       resnet(50),
       overlapped(0.3188),
       {{4, .977}, {8, .958}, {16, .933}, {32, .878}},
       false,
       1,
       kDtype},
      {"BERT-base f32, 48",
       "4x8-v100-100gb",
       kDlPerf,
       bert(12, 768),
       behind(0.3936),
       {{4, .953}, {8, .951}, {16, .812}, {32, .779}}},
      {"BERT-base f32, 32 (MXNet)",
       "4x8-v100-100gb",
       kDlPerf,
       bert(12, 768),
       overlapped(0.2132),
       {{2, .9}, {4, .897}, {8, .882}, {16, .768}, {32, .764}}},
      {"VGG-16 f32, 64",
       "dgx-1-p100",
       kTensorFlow,
       vgg16(),
       overlapped(0.4156),
       {{2, .958}, {4, .948}, {8, .877}},
       false,
       1,
       kOld},
      {"VGG-16 f32, 32",
       "dgx-1-p100",
       kTensorFlow,
       vgg16(),
       overlapped(0.2222),
       {{2, .976}, {4, .953}, {8, .712}},
       false,
       1,
       kOld},
      {"AlexNet f32, 512",
       "dgx-1-p100",
       kTensorFlow,
       alexnet(),
       overlapped(0.1714),
       {{2, .947}, {4, .88}, {8, .746}},
       false,
       1,
       kOld},
      {"ResNet-50 f32, 64, parameters on the host",
       "dgx-1-p100",
       kTensorFlow,
       resnet(50),
       overlapped(0.2922),
       {{2, .963}, {4, .973}, {8, .99}},
       true},
      {"ResNet-152 f32, 32, parameters on the host",
       "dgx-1-p100",
       kTensorFlow,
       resnet(152),
       overlapped(0.3869),
       {{2, .967}, {4, .958}, {8, .955}},
       true},
      {"BERT-large SQuAD TF32, 32", "dgx-a100", kDle, bert(24, 1024), overlapped(0.5203), {{8, .955}}},
      {"BERT-large f16, 65,536 sequences",
       "dgx-a100",
       kDle,
       bert(24, 1024),
       lamb,
       {{64, .982}, {128, .969}, {256, .949}},
       false,
       8},
      {"Transformer-XL base TF32",
       "dgx-a100",
       kDle,
       transformer_xl(),
       overlapped(0.148),
       {{2, .935}, {4, .927}, {8, .921}}},
      {"Transformer-XL base AMP",
       "dgx-a100",
       kDle,
       transformer_xl(),
       overlapped(0.1025),
       {{2, .944}, {4, .941}, {8, .938}},
       false,
       1,
       kDtype},
      {"VGG-16 f32, 64",
       "128x4-p100-25gb",
       kHorovod,
       vgg16(),
       overlapped(0.416),
       {{512, .68}},
       false,
       1,
       "time on one device of another framework's version"},
  };
}

double slowest_of(int devices) { return 1 + kDeviceSpread / 2 * (devices - 1) / (devices + 1); }

std::vector<std::string> validation_table() {
  std::vector<std::string> lines;
  for (const PublishedRow& row : published_rows())
    for (const PublishedPoint& point : row.points) {
      const double links = predicted_efficiency(row, point.devices, false);
      const double all = predicted_efficiency(row, point.devices, true);
      const double lost = 1 - point.efficiency, ratio = (1 - all) / lost;
      char line[400];
      std::snprintf(line, sizeof line, "| %s%s | %s | %d | %.1f | %.1f | %.1f | %s |", row.name,
                    *row.caution ? " *" : "", row.machine, point.devices, 100 * lost, 100 * (1 - links),
                    100 * (1 - all), lost > 0 ? cat(number_to_string(std::round(100 * ratio) / 100)).c_str() : "-");
      lines.emplace_back(line);
    }
  return lines;
}

double predicted_efficiency(const PublishedRow& row, int devices, bool devices_differ) {
  Machine machine = with_given_times(load_machine(std::string(LOCKSTEP_MACHINES_FOLDER) + "/" + row.machine + ".json"));
  machine.network.hosts = std::max(machine.network.hosts, devices / machine.device_count());
  const double slower = devices_differ ? slowest_of(devices) / slowest_of(row.base) : 1;
  StepOptions options = row.step;
  if (row.on_host) {
    options.seconds *= slower;
    return step_seconds(parameters_on_host_step(row.model, row.step, 1), machine) /
           step_seconds(parameters_on_host_step(row.model, options, devices), machine);
  }
  double one = 0;
  if (row.base == 1) {
    one = step_seconds(data_parallel_step(row.model, machine, row.step, 1), machine);
    options.seconds *= slower;
  } else {
    // The batch is shared: what is reduced and updated once a step takes as long whatever its devices' part of it.
    const double part = static_cast<double>(row.base) / devices;
    const GpuType& gpu = machine.gpu_types.at(0);
    const auto count = static_cast<double>(row.model.parameter_count());
    const double update = options.optimizer_bytes * count / (gpu.memory_bytes_per_second * gpu.memory_efficiency);
    const double reduced = collective_seconds(machine, "all_reduce", count * options.bytes_per_element, row.base);
    one = row.step.seconds * part;
    options.seconds = (row.step.seconds - update - reduced) * part * slower + update;
  }
  return one / step_seconds(data_parallel_step(row.model, machine, options, devices), machine);
}

}  // namespace lockstep::simulate::tests
