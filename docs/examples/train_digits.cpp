// Trains a small convolutional network on handwritten digits, on several devices at once; saves it, loads it into a
// fresh network and tests that. Data parallelism is the two lines with DataParallel; the rest is any training program.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <numbers>

#include "lockstep/lockstep.h"
#include "support/digits.h"
#include "support/digits_model.h"
#include "support/options.h"
#include "support/progress.h"

namespace example {
namespace {

using namespace lockstep;

volatile std::sig_atomic_t interrupted = 0;

// The first Ctrl-C ends the training after the current step, the second one the program.
void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

// A folder in the system's temporary one that is gone at the end.
struct TemporaryFolder {
  std::string path = (std::filesystem::temp_directory_path() / "train_digits-XXXXXX").string();
  TemporaryFolder() {
    if (!::mkdtemp(path.data())) throw Error(cat(path, ": expected a place for a temporary folder"));
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

struct Epoch {
  std::int64_t number, steps;
  double loss, test_accuracy, samples_per_second;
};

struct Summary {
  std::int64_t steps = 0, samples = 0;
  double seconds = 0;                                                   // of training, without tests
  double prepare = 0, forward = 0, loss = 0, backward = 0, update = 0;  // seconds
  CallStats calls;
  std::vector<Epoch> epochs;

  double samples_per_second() const { return seconds > 0 ? static_cast<double>(samples) / seconds : 0; }
  double per_step(double amount) const { return steps > 0 ? amount / static_cast<double>(steps) : 0; }
};

// Adds what happened between two readings of the statistics.
void add_calls(CallStats& sum, const CallStats& before, const CallStats& after) {
  for (PhaseStats CallStats::*phase :
       {&CallStats::scatter, &CallStats::replicate, &CallStats::apply, &CallStats::gather, &CallStats::reduce}) {
    (sum.*phase).bytes += (after.*phase).bytes - (before.*phase).bytes;
    (sum.*phase).nanoseconds += (after.*phase).nanoseconds - (before.*phase).nanoseconds;
  }
}

class Program {
 public:
  Program(const Options& options, std::vector<Device> devices, Split split)
      : options_(options),
        devices_(std::move(devices)),
        data_(std::move(split)),
        brightest_(std::max<int>(1, *std::max_element(data_.train.pixels.begin(), data_.train.pixels.end()))),
        random_(static_cast<std::uint64_t>(options.seed) + 1) {}

  // The exit status.
  int run() {
    manual_seed(static_cast<std::uint64_t>(options_.seed));
    const DefaultDType dtype(options_.dtype());
    DataParallel net(DigitsNet(data_.train.rows, data_.train.columns), {.devices = devices_});
    SGD optimizer(net.parameters(), {.lr = options_.learning_rate, .momentum = 0.9, .weight_decay = 5e-4});
    describe(net);
    train(net, optimizer);
    if (interrupted) {
      std::fprintf(stderr, "train_digits: interrupted after %lld steps, nothing was saved\n",
                   static_cast<long long>(summary_.steps));
      return 130;
    }
    return finish(std::as_const(net).module());
  }

 private:
  bool chatty() const { return !options_.quiet && !options_.json; }
  template <class... Values>
  void say(const char* pattern, Values... values) const {
    if (chatty()) std::printf("%s\n", format(pattern, values...).c_str());
    std::fflush(stdout);
  }

  void describe(const DataParallel<DigitsNet>& net) const {
    std::int64_t parameters = 0;
    for (const Parameter& parameter : net.parameters()) parameters += element_count(parameter.shape());
    say("%lld training and %lld test images of %lld x %lld, %lld parameters in %s, %zu devices %s",
        static_cast<long long>(data_.train.count), static_cast<long long>(data_.test.count),
        static_cast<long long>(data_.train.rows), static_cast<long long>(data_.train.columns),
        static_cast<long long>(parameters), options_.dtype_name.c_str(), devices_.size(), to_string(devices_).c_str());
    say("epoch   steps      loss    test  samples/s");
  }

  // Of the module itself, which computes on home, or of a DataParallel.
  template <class Model>
  double accuracy(const Model& model) const {
    const NoGrad no_grad;
    constexpr std::int64_t kBatch = 512;
    std::int64_t right = 0;
    for (std::int64_t begin = 0; begin < data_.test.count; begin += kBatch) {
      std::vector<std::int64_t> indices;
      for (std::int64_t i = begin; i < std::min(begin + kBatch, data_.test.count); ++i) indices.push_back(i);
      const Batch batch = make_batch(data_.test, indices, options_.dtype(), brightest_);
      const auto guesses = argmax(model(batch.images.to(devices_.front())), 1).template to_vector<std::int64_t>();
      for (std::size_t i = 0; i < guesses.size(); ++i)
        right += guesses[i] == data_.test.labels[static_cast<std::size_t>(indices[i])];
    }
    return static_cast<double>(right) / static_cast<double>(data_.test.count);
  }

  std::int64_t steps_per_epoch() const { return (data_.train.count + options_.batch_size - 1) / options_.batch_size; }
  // Falls from the full rate to zero in half a wave over all epochs.
  double learning_rate() const {
    const double passed =
        static_cast<double>(summary_.steps) / static_cast<double>(steps_per_epoch() * options_.epochs);
    return options_.learning_rate * 0.5 * (1 + std::cos(std::numbers::pi * passed));
  }

  double step(DataParallel<DigitsNet>& net, SGD& optimizer, std::span<const std::int64_t> indices) {
    Stopwatch watch;
    const Batch batch = make_batch(data_.train, indices, options_.dtype(), brightest_, &random_);
    const Tensor labels = batch.labels.to(net.output_device());
    summary_.prepare += watch.lap();
    const Tensor output = net(batch.images);
    summary_.forward += watch.lap();
    const Tensor loss = cross_entropy(output, labels);
    const double value = loss.item<double>();
    summary_.loss += watch.lap();
    optimizer.zero_grad();
    loss.backward();
    summary_.backward += watch.lap();
    if (options_.schedule == "cosine") optimizer.set_lr(learning_rate());
    optimizer.step();
    summary_.update += watch.lap();
    summary_.steps += 1;
    summary_.samples += static_cast<std::int64_t>(indices.size());
    return value;
  }

  void train(DataParallel<DigitsNet>& net, SGD& optimizer) {
    std::int64_t all_steps = steps_per_epoch() * options_.epochs;
    if (options_.steps > 0) all_steps = std::min(all_steps, options_.steps);
    ProgressBar bar(all_steps, chatty() && !options_.no_progress);
    for (std::int64_t number = 1; summary_.steps < all_steps && !interrupted; ++number) {
      const std::vector<std::int64_t> order = shuffled(data_.train.count, random_);
      const CallStats before = net.stats().total;
      const std::int64_t samples_before = summary_.samples;
      double loss_sum = 0;
      std::int64_t steps = 0;
      Stopwatch watch;
      for (std::size_t begin = 0; begin < order.size() && summary_.steps < all_steps && !interrupted;) {
        const std::size_t count = std::min(order.size() - begin, static_cast<std::size_t>(options_.batch_size));
        const double loss = step(net, optimizer, std::span(order).subspan(begin, count));
        begin += count;
        loss_sum += loss;
        ++steps;
        bar.update(summary_.steps, format("loss %.4f, %.0f samples/s", loss,
                                          static_cast<double>(summary_.samples - samples_before) / watch.seconds()));
      }
      const double seconds = watch.seconds();
      summary_.seconds += seconds;
      add_calls(summary_.calls, before, net.stats().total);
      if (interrupted) break;
      const Epoch epoch{number, summary_.steps, loss_sum / static_cast<double>(steps),
                        accuracy(std::as_const(net).module()),
                        static_cast<double>(summary_.samples - samples_before) / seconds};
      summary_.epochs.push_back(epoch);
      bar.clear();
      say("%5lld  %6lld  %8.4f  %.4f  %9.0f", static_cast<long long>(number), static_cast<long long>(epoch.steps),
          epoch.loss, epoch.test_accuracy, epoch.samples_per_second);
    }
  }

  struct Row {
    const char* phase;
    double seconds, bytes;
  };
  std::vector<Row> breakdown() const {
    const auto row = [](const char* name, const PhaseStats& phase) {
      return Row{name, static_cast<double>(phase.nanoseconds) * 1e-9, static_cast<double>(phase.bytes)};
    };
    const CallStats& calls = summary_.calls;
    const Row reduce = row("reduce", calls.reduce);
    return {{"prepare", summary_.prepare, 0},
            row("scatter", calls.scatter),
            row("replicate", calls.replicate),
            row("forward", calls.apply),
            row("gather", calls.gather),
            {"loss", summary_.loss, 0},
            {"backward", std::max(0.0, summary_.backward - reduce.seconds), 0},
            reduce,
            {"update", summary_.update, 0}};
  }

  // Saves the model, tests what was saved and prints the results.
  int finish(const DigitsNet& trained) {
    const TemporaryFolder folder;
    const std::string path = options_.save.empty() ? folder.path + "/digits.safetensors" : options_.save;
    save_model(trained, path,
               {{"model", "train_digits"},
                {"rows", std::to_string(data_.train.rows)},
                {"columns", std::to_string(data_.train.columns)}});
    DigitsNet fresh(data_.train.rows, data_.train.columns);
    load_model(fresh, path);
    const double test_accuracy = accuracy(DataParallel(fresh, {.devices = devices_}));

    const double step_seconds = summary_.per_step(summary_.seconds);
    say("\nwhere the time (of the calling thread) and the bytes (between devices) of a step went\n"
        "phase        ms/step  share   KiB/step");
    for (const Row& row : breakdown())
      say("%-10s  %8.3f  %4.0f%%  %9.1f", row.phase, 1e3 * summary_.per_step(row.seconds),
          100 * summary_.per_step(row.seconds) / step_seconds, summary_.per_step(row.bytes) / 1024);
    say("%-10s  %8.3f", "step", 1e3 * step_seconds);
    say("\nthe model as saved%s, loaded into a fresh network: test accuracy %.4f",
        options_.save.empty() ? "" : cat(" in ", options_.save).c_str(), test_accuracy);

    const std::string backend = to_string(devices_.front().type());
    const double replicate_bytes = summary_.per_step(static_cast<double>(summary_.calls.replicate.bytes));
    const double loss = summary_.epochs.back().loss;
    if (options_.json) {
      print_json(backend, test_accuracy, replicate_bytes, loss);
    } else {
      std::printf(
          "demo: backend=%s devices=%zu test_accuracy=%.4f samples_per_second=%.0f "
          "replicate_bytes_per_step=%.0f final_loss=%.6g\n",
          backend.c_str(), devices_.size(), test_accuracy, summary_.samples_per_second(), replicate_bytes, loss);
    }
    if (std::fflush(stdout) != 0 || std::ferror(stdout)) throw Error("expected to write the results, got an error");
    return 0;
  }

  void print_json(const std::string& backend, double test_accuracy, double replicate_bytes, double loss) const {
    const auto number = [](double value) { return std::isfinite(value) ? format("%.9g", value) : "null"; };
    std::string text = format(
        "{\"backend\":\"%s\",\"devices\":%zu,\"test_accuracy\":%.6g,\"samples_per_second\":%.6g,"
        "\"replicate_bytes_per_step\":%.0f,\"final_loss\":%s,\"steps\":%lld,\"epochs\":[",
        backend.c_str(), devices_.size(), test_accuracy, summary_.samples_per_second(), replicate_bytes,
        number(loss).c_str(), static_cast<long long>(summary_.steps));
    const char* separator = "";
    for (const Epoch& epoch : summary_.epochs) {
      text += separator + format("{\"steps\":%lld,\"loss\":%s,\"test_accuracy\":%.6g,\"samples_per_second\":%.6g}",
                                 static_cast<long long>(epoch.steps), number(epoch.loss).c_str(), epoch.test_accuracy,
                                 epoch.samples_per_second);
      separator = ",";
    }
    text += "],\"phases\":{";
    separator = "";
    for (const Row& row : breakdown()) {
      text += separator + format("\"%s\":{\"milliseconds_per_step\":%.6g,\"bytes_per_step\":%.0f}", row.phase,
                                 1e3 * summary_.per_step(row.seconds), summary_.per_step(row.bytes));
      separator = ",";
    }
    std::printf("%s}}\n", text.c_str());
  }

  const Options options_;
  const std::vector<Device> devices_;
  const Split data_;
  const int brightest_;  // the pixel value that becomes 1
  std::mt19937_64 random_;
  Summary summary_;
};

// A file that could not be written at the end is better refused at the start.
void check_save(const std::string& path) {
  if (path.empty()) return;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (std::filesystem::is_directory(path))
    throw UsageError(cat("--save: expected the name of a file, got the folder '", path, "'"));
  if (::access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) != 0)
    throw UsageError(cat("--save: expected a folder that can be written to for '", path, "'"));
}

int run(const Options& options) {
  check_save(options.save);
  // Virtual devices cost nothing until they are used, and a machine with two cores is to show four of them.
  if (!std::getenv("LOCKSTEP_HOST_DEVICES")) configure_host({.devices = 8});
  std::vector<Device> devices;
  Split split;
  try {
    devices = options.devices.empty() ? accelerators() : parse_devices(options.devices);
    split = read_split(options.data, static_cast<std::uint64_t>(options.seed));
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
  catch_interrupts();
  return Program(options, std::move(devices), std::move(split)).run();
}

}  // namespace
}  // namespace example

// Exits with 0, or 1 when something failed, 2 when the command line or the data is not right, 130 after Ctrl-C.
int main(int argc, char** argv) {
  return example::run_program("train_digits", [&] {
    const auto options = example::parse_options(argc, argv);
    return options ? example::run(*options) : 0;
  });
}
