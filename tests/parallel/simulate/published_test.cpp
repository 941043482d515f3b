// Predictions of scaling against what others have published. The time on one device is an input, what is lost on many
// is predicted, from figures of links and collectives alone: none was fitted to these rows.
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "published_rows.h"
#include "support/catch.h"

using namespace lockstep::simulate;
using namespace lockstep::simulate::tests;

namespace {

Machine load(const std::string& name) {
  return with_given_times(load_machine(std::string(LOCKSTEP_MACHINES_FOLDER) + "/" + name + ".json"));
}

double lost(const Model& model, const Machine& machine, const StepOptions& step, int ranks) {
  return 1 - step.seconds / step_seconds(data_parallel_step(model, machine, step, ranks), machine);
}

// Sums over the rows that pass: what the prediction misses, and what "nothing is lost" misses.
struct Misses {
  double predicted = 0, nothing = 0;
};
template <class Passes>
Misses misses(Passes passes) {
  Misses sum;
  for (const PublishedRow& row : published_rows())
    for (const PublishedPoint& point : row.points) {
      if (!passes(row, point)) continue;
      sum.predicted += std::abs(predicted_efficiency(row, point.devices, true) - point.efficiency);
      sum.nothing += std::abs(1 - point.efficiency);
    }
  return sum;
}

}  // namespace

TEST_CASE("published: the models are as large as the real ones") {
  const auto megabytes = [](const Model& model) { return static_cast<double>(model.parameter_count()) * 4e-6; };
  CHECK(resnet(50).tensor_count() == 161);
  CHECK(megabytes(resnet(50)) == Approx(102.2).epsilon(0.001));
  CHECK(resnet(50).flops() == Approx(4.09e9).epsilon(0.02));
  CHECK(megabytes(resnet(152)) == Approx(240.8).epsilon(0.001));
  CHECK(megabytes(vgg16()) == Approx(553.4).epsilon(0.001));
  CHECK(vgg16().flops() == Approx(15.5e9).epsilon(0.02));
  CHECK(megabytes(alexnet()) == Approx(244.4).epsilon(0.001));
  CHECK(megabytes(bert(12, 768)) == Approx(438).epsilon(0.001));
  CHECK(megabytes(bert(24, 1024)) == Approx(1340).epsilon(0.001));
  CHECK(megabytes(transformer_xl()) == Approx(767).epsilon(0.002));
  CHECK(lenet().parameter_count() == 431'080);
}

TEST_CASE("published: a step on one device takes what it is given") {
  for (const bool overlap : {false, true}) {
    const StepOptions step{.seconds = 0.3, .overlap = overlap};
    CHECK(lost(resnet(50), load("dgx-1v"), step, 1) == Approx(0).margin(1e-4));
  }
}

TEST_CASE("published: the document shows what is predicted") {
  std::ifstream file(LOCKSTEP_MACHINES_FOLDER "/../simulate_validation.md");
  const std::string document{std::istreambuf_iterator<char>(file), {}};
  for (const std::string& line : validation_table()) {
    INFO("lockstep-tests-simulate '[.validation]' prints the table");
    CAPTURE(line);
    CHECK(document.find("\n" + line + "\n") != std::string::npos);
  }
}

TEST_CASE("published: the table of docs/simulate_validation.md", "[.validation]") {
  for (const std::string& line : validation_table()) std::printf("%s\n", line.c_str());
}

// How near is in the document; the bounds are those of its table, so that a change for the worse shows.
TEST_CASE("published: predictions are nearer to what was published than no loss is") {
  const Misses all = misses([](const auto& row, const auto&) { return *row.caution == 0; });
  CHECK(all.predicted < 0.6 * all.nothing);
  const Misses across =
      misses([](const auto& row, const auto& point) { return load(row.machine).device_count() < point.devices; });
  CHECK(across.predicted < 0.5 * across.nothing);
}

TEST_CASE("published: what scaled badly is predicted to") {
  // VGG-16 on 512 GPUs at 25 Gb/s: 68%.
  const PublishedRow horovod = published_rows().back();
  const double efficiency = predicted_efficiency(horovod, 512, true);
  CHECK((1 - efficiency) / (1 - 0.68) > 1 / 1.5);
  CHECK((1 - efficiency) / (1 - 0.68) < 1.5);
  // It is the network: at four times the rate nearly all of it is hidden.
  Machine faster = load("128x4-p100-25gb");
  faster.network.bytes_per_second *= 4;
  CHECK(lost(vgg16(), faster, horovod.step, 512) < 0.25 * (1 - efficiency));
  // On the same 32 GPUs a BERT that reduces behind its backward loses more than a ResNet-50 that does so beside it.
  const Machine cluster = load("4x8-v100-100gb");
  const double bert_lost = lost(bert(12, 768), cluster, {.seconds = 0.3936, .overlap = false}, 32);
  CHECK(bert_lost > 0.1);
  CHECK(bert_lost > 5 * lost(resnet(50), cluster, {.seconds = 0.3485}, 32));
  CHECK(lost(bert(12, 768), cluster, {.seconds = 0.3936}, 32) < bert_lost);  // overlapped
  // Without P2P a VGG-16 loses much more than with it.
  const StepOptions step{.seconds = 0.1};
  CHECK(lost(vgg16(), load("4xl40s-no-p2p"), step, 4) > 5 * lost(vgg16(), load("4xl40s-p2p"), step, 4));
  // LeNet on two Titan X took longer than on one. Where half of a small batch takes as long as all of it, it is slower.
  CHECK(lost(lenet(), load("2xtitan-x-no-p2p"), {.seconds = 53.0 / 28125}, 2) > 0.02);
}
