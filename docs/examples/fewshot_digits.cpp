// Few-shot learning on handwritten digits: networks that are trained on the digits 0 to 4 learn to tell 5 to 9 apart
// from one or five samples of each. The tasks are dealt to ranks that are threads of this program; the results are the
// same however many there are.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>

#include "lockstep/lockstep.h"
#include "lockstep/parallel/openmmlab/openmmlab.h"
#include "support/digits.h"
#include "support/fewshot_options.h"
#include "support/progress.h"

namespace example {
namespace {

using namespace lockstep;

constexpr std::int64_t kWays = 5;
constexpr std::int64_t kChannels = 32;

// Two convolutions; the features of a picture are all of their results.
struct Features : Module<Features> {
  Conv2d conv1{1, 16, 3, {.padding = 1}};
  Conv2d conv2{16, kChannels, 3, {.padding = 1}};
  Tensor forward(const Tensor& x) const { return flatten(avg_pool2d(smooth(conv2(smooth(conv1(x)))), 2), 1); }
  void members(Members& m) override { m("conv1", conv1), m("conv2", conv2); }

 private:
  static Tensor smooth(const Tensor& x) { return gelu(x, GeluForm::tanh); }
};

// A digit that is turned or mirrored is a class of its own, so that five digits give forty classes to train on (turned
// classes: Vinyals et al., "Matching Networks for One Shot Learning", NeurIPS 2016). Turning needs square pictures.
FewShotData with_orientations(const FewShotData& digits) {
  std::vector<Tensor> images{digits.img, flip(digits.img, {2}), flip(digits.img, {3}), flip(digits.img, {2, 3})};
  if (digits.img.size(2) == digits.img.size(3))
    for (std::size_t i = 0; i < 4; ++i) images.push_back(images[i].transpose(2, 3).contiguous());
  std::vector<std::int64_t> labels;
  for (std::size_t i = 0; i < images.size(); ++i)
    for (const std::int64_t label : digits.gt_label.to_vector<std::int64_t>())
      labels.push_back(label + kWays * static_cast<std::int64_t>(i));
  return {.img = cat(images), .gt_label = from_data(labels, {static_cast<std::int64_t>(labels.size())})};
}

struct Row {
  std::string algorithm;
  std::int64_t shots;
  MetaTestResult result;
};

class Program {
 public:
  Program(const FewShotOptions& options, const Digits& digits) : options_(options) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(digits.count));
    std::iota(all.begin(), all.end(), std::int64_t{0});
    const int brightest = std::max<int>(1, *std::max_element(digits.pixels.begin(), digits.pixels.end()));
    const Batch batch = make_batch(digits, all, DType::f32, brightest);
    const std::vector<FewShotData> sets =
        split_classes({.img = batch.images, .gt_label = batch.labels}, {{0, 1, 2, 3, 4}, {5, 6, 7, 8, 9}});
    base_ = with_orientations(sets[0]);
    base_classes_ = max(base_.gt_label).item<std::int64_t>() + 1;
    novel_ = sets[1];
    features_ = kChannels * (digits.rows / 2) * (digits.columns / 2);
    for (const std::int64_t shots : options.shots) tasks(shots);  // throws for what the data does not allow
    detail::z_score(options.confidence);
  }

  // The exit status.
  int run() {
    for (const std::string& algorithm : options_.algorithms) {
      if (algorithm == "raw_pixels") raw_pixels();
      if (algorithm == "baseline") baseline();
      if (algorithm == "baseline_plus") baseline_plus();
      if (algorithm == "neg_margin") neg_margin();
      if (algorithm == "protonet") proto_net();
      if (algorithm == "maml") maml(algorithm, false);
      if (algorithm == "maml_first_order") maml(algorithm, true);
    }
    options_.json ? print_json() : print_rows();
    if (std::fflush(stdout) != 0 || std::ferror(stdout)) throw Error("expected to write the results, got an error");
    return 0;
  }

 private:
  bool chatty() const { return !options_.quiet && !options_.json; }
  std::uint64_t seed() const { return static_cast<std::uint64_t>(options_.seed); }

  // ---- training, on one device

  // Steps of Adam on what `loss` gives for a batch or an episode, number after number.
  template <class M>
  void train(const std::string& name, M& model, std::int64_t steps, double lr,
             const std::function<Tensor(const M&, std::int64_t)>& loss) {
    if (options_.steps > 0) steps = options_.steps;
    model.to(home_);
    Adam optimizer(model.parameters(), {.lr = lr});
    ProgressBar bar(steps, chatty() && !options_.no_progress);
    const Stopwatch watch;
    double last = 0;
    for (std::int64_t step = 0; step < steps; ++step) {
      const Tensor value = loss(model, step);
      optimizer.zero_grad();
      value.backward();
      optimizer.step();
      last = value.item<double>();
      bar.update(step + 1, format("%s: loss %.4f", name.c_str(), last));
    }
    bar.clear();
    if (chatty())
      std::printf("%s: trained for %lld steps in %.1f s, last loss %.4f\n", name.c_str(), static_cast<long long>(steps),
                  watch.seconds(), last);
    std::fflush(stdout);
  }

  template <class T>
  T at_home(T value) const {
    for_each_tensor(value, [&](Tensor& tensor) { tensor = tensor.to(home_); });
    return value;
  }

  EpisodicDataset training_episodes(std::int64_t ways, std::int64_t shots, std::int64_t queries) const {
    return {base_,
            {.num_episodes = 1'000'000,
             .num_ways = ways,
             .num_shots = shots,
             .num_queries = queries,
             .episodes_seed = seed() + 1}};
  }

  void raw_pixels() { test("raw_pixels", ProtoNet(Flatten()), {}, options_.shots); }

  void baseline() {
    manual_seed(seed());
    classify("baseline",
             Baseline(Features{}, {.in_channels = features_, .num_classes = base_classes_, .meta_test_classes = kWays}),
             0.01);
  }
  void baseline_plus() {
    manual_seed(seed());
    classify("baseline_plus",
             BaselinePlus(Features{}, {.in_channels = features_, .num_classes = base_classes_, .temperature = 10}), 1);
  }
  void neg_margin() {
    manual_seed(seed());
    classify("neg_margin", NegMargin(Features{}, {.in_channels = features_, .num_classes = base_classes_}), 1);
  }

  // Trained to tell the base classes apart; `lr` is that of a task's classifier.
  template <class M>
  void classify(const std::string& name, M model, double lr) {
    RandomEngine random(seed(), 2);
    train<M>(name, model, 300, 1e-3, [&](const auto& net, std::int64_t) {
      std::vector<std::int64_t> batch(64);
      for (std::int64_t& index : batch)
        index = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(base_.count())));
      return net(at_home(base_.select(batch)), FewShotMode::train);
    });
    MetaTestConfig config{.fast_test = true};
    config.support.train = {.num_steps = 50, .optimizer = {.lr = lr, .momentum = 0.9, .weight_decay = 1e-3}};
    test(name, model, config, options_.shots);
  }

  void proto_net() {
    manual_seed(seed());
    ProtoNet model(Features{});
    // More classes and fewer samples than the tasks will have make for harder episodes, and better features.
    const EpisodicDataset episodes = training_episodes(std::min<std::int64_t>(20, base_classes_), 1, 5);
    train<decltype(model)>("protonet", model, 800, 2e-3,
                           [&](const auto& net, std::int64_t step) { return net(at_home(episodes.get(step))); });
    test("protonet", model, {.fast_test = true}, options_.shots);
  }

  void maml(const std::string& name, bool first_order) {
    // Without the gradient of the steps these are better small and many.
    const MAMLOptions options{.in_channels = features_,
                              .num_classes = kWays,
                              .num_inner_steps = first_order ? 10 : 3,
                              .inner_lr = first_order ? 0.02 : 0.1,
                              .first_order = first_order};
    for (const std::int64_t shots : options_.shots) {
      manual_seed(seed());
      MAML model(Features{}, options);
      const EpisodicDataset episodes = training_episodes(kWays, shots, 5);
      train<decltype(model)>(name, model, 400, 1e-3,
                             [&](const auto& net, std::int64_t step) { return net(at_home(episodes.get(step))); });
      test(name, model, {}, {shots});
    }
  }

  // ---- testing, on all devices

  EpisodicDataset tasks(std::int64_t shots) const {
    return {novel_,
            {.num_episodes = options_.tasks,
             .num_ways = kWays,
             .num_shots = shots,
             .num_queries = options_.queries,
             .episodes_seed = seed()}};
  }

  template <class M>
  void test(const std::string& name, const M& trained, MetaTestConfig config, const std::vector<std::int64_t>& shots) {
    std::vector<Device> devices;
    for (int i = 0; i < options_.devices; ++i) devices.push_back(Device::host(i));
    config.confidence = options_.confidence;
    config.seed = seed();
    for (const std::int64_t k : shots) {
      ProgressBar bar(options_.tasks, chatty() && !options_.no_progress);
      const EpisodicDataset episodes = tasks(k);
      auto results = run_ranks(options_.devices,
                               [&](Communicator& communicator) {
                                 MetaTestConfig mine = config;
                                 if (communicator.rank() == 0)
                                   mine.on_task = [&](const TaskResult& task) {
                                     bar.update(task.task_id + 1, format("%s: tasks with %lld shots", name.c_str(),
                                                                         static_cast<long long>(k)));
                                   };
                                 M model = deep_copy(trained);
                                 model.to(communicator.device());
                                 return meta_test(model, episodes, mine, communicator);
                               },
                               {.devices = devices});
      rows_.push_back({name, k, std::move(results.front().value())});
    }
  }

  // ---- results

  void print_rows() const {
    for (const Row& row : rows_)
      std::printf("fewshot: algorithm=%s shots=%lld devices=%d accuracy_mean=%.6f confidence=%.6f\n",
                  row.algorithm.c_str(), static_cast<long long>(row.shots), options_.devices, row.result.accuracy_mean,
                  row.result.accuracy_confidence);
  }
  void print_json() const {
    std::string text = format("{\"devices\":%d,\"tasks\":%lld,\"results\":[", options_.devices,
                              static_cast<long long>(options_.tasks));
    const char* separator = "";
    for (const Row& row : rows_) {
      text += separator + format("{\"algorithm\":\"%s\",\"shots\":%lld,\"accuracy_mean\":%.9g,\"confidence\":%.9g}",
                                 row.algorithm.c_str(), static_cast<long long>(row.shots), row.result.accuracy_mean,
                                 row.result.accuracy_confidence);
      separator = ",";
    }
    std::printf("%s]}\n", text.c_str());
  }

  const FewShotOptions options_;
  const Device home_ = Device::host(0);
  FewShotData base_, novel_;  // to train on, to test on
  std::int64_t base_classes_ = 0, features_ = 0;
  std::vector<Row> rows_;
};

int run(const FewShotOptions& options) {
  if (!std::getenv("LOCKSTEP_HOST_DEVICES")) configure_host({.devices = std::max(8, options.devices)});
  std::optional<Program> program;
  try {
    Split split = read_split(options.data, 0);  // all of it: who learns which digits is decided by their labels
    Digits digits = std::move(split.train);
    digits.count += split.test.count;
    digits.pixels.insert(digits.pixels.end(), split.test.pixels.begin(), split.test.pixels.end());
    digits.labels.insert(digits.labels.end(), split.test.labels.begin(), split.test.labels.end());
    program.emplace(options, digits);
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
  return program->run();
}

}  // namespace
}  // namespace example

// Exits with 0, or 1 when something failed, 2 when the command line or the data is not right.
int main(int argc, char** argv) {
  return example::run_program("fewshot_digits", [&] {
    const auto options = example::parse_fewshot_options(argc, argv);
    return options ? example::run(*options) : 0;
  });
}
