// Trains a GPT-like model of characters on any text, by ranks that are processes or threads. Data parallelism is the
// line with DistributedDataParallel, and that every rank takes its share of a batch; the rest is any training program.
#include <cmath>
#include <cstdio>
#include <exception>

#include "lockstep/lockstep.h"
#include "support/mean_loss.h"
#include "support/progress.h"
#include "support/text_checkpoints.h"
#include "support/text_hook.h"
#include "support/text_model.h"
#include "support/text_options.h"

namespace example {
namespace {

using namespace lockstep;

// Numbers that depend on nothing but what they are asked for (splitmix64).
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// What a checkpoint must have been made with, besides the same text.
std::map<std::string, std::string> setting(const TextOptions& o, const std::string& vocabulary) {
  std::string characters;  // as numbers: metadata are UTF-8, and a text may be anything
  for (const char c : vocabulary)
    characters += cat(characters.empty() ? "" : " ", static_cast<int>(static_cast<unsigned char>(c)));
  return {{"model", "train_text"},
          {"layers", std::to_string(o.layers)},
          {"heads", std::to_string(o.heads)},
          {"width", std::to_string(o.width)},
          {"context", std::to_string(o.context)},
          {"batch_size", std::to_string(o.batch_size)},
          {"seed", std::to_string(o.seed)},
          {"characters", characters}};
}

// One rank's training.
class Training {
 public:
  Training(const TextOptions& options, const Text& text, Communicator& communicator)
      : o_(options),
        text_(text),
        communicator_(communicator),
        net_(make_model(), communicator),
        hook_(options.hook, net_),
        mean_loss_(communicator),
        optimizer_(net_.parameters(), {.lr = options.learning_rate, .weight_decay = 0.01}),
        checkpoints_(options, setting(options, text.vocabulary()), communicator) {
    thread_context().random_stream = static_cast<std::uint64_t>(communicator.rank()) + 1;  // masks of its own
    step_ = checkpoints_.resume(net_.module(), optimizer_, loss_);
    if (step_ > o_.steps)
      throw UsageError(
          cat("--steps: expected at least the ", step_, " steps in '", o_.checkpoint, "', got ", o_.steps));
  }

  // The exit status.
  int run() {
    const bool first = communicator_.rank() == 0;
    const bool chatty = first && !o_.quiet && !o_.json;
    if (chatty) {
      std::int64_t parameters = 0;
      for (const Parameter& parameter : net_.parameters()) parameters += element_count(parameter.shape());
      say("%zu characters, %zu different ones; %lld parameters; %d ranks (%s) on %s%s", text_.size(),
          text_.vocabulary().size(), static_cast<long long>(parameters), communicator_.size(), communicator_.backend(),
          to_string(communicator_.device().type()).c_str(),
          step_ > 0 ? format("; resumed after step %lld", static_cast<long long>(step_)).c_str() : "");
      say("  step      loss   tokens/s");
    }
    ProgressBar bar(o_.steps, chatty && !o_.no_progress);
    const std::int64_t begin = step_, tokens_per_step = o_.batch_size * o_.context;
    const std::int64_t every = std::max<std::int64_t>(1, o_.steps / 10);
    Stopwatch watch;
    const auto rate = [&] { return static_cast<double>((step_ - begin) * tokens_per_step) / watch.seconds(); };
    const std::int64_t mine = std::max<std::int64_t>(0, o_.steps - communicator_.rank() * o_.fewer);
    const auto train = [&] {
      while (step_ < mine) {
        const Tensor loss = train_step();
        const bool last = step_ == o_.steps;
        if (step_ % 10 == 0 || step_ % every == 0 || last) {  // the same steps on every rank: it is a collective
          loss_ = mean_loss_.of(loss);
          bar.update(step_, format("loss %.4f, %.0f tokens/s", loss_, rate()));
          if (chatty && (step_ % every == 0 || last)) {
            bar.clear();
            say("%6lld  %8.4f  %9.0f", static_cast<long long>(step_), loss_, rate());
          }
        }
        if (checkpoints_.after_step(step_, last, net_.module(), optimizer_, loss_)) break;
      }
    };
    if (o_.fewer > 0)
      join({net_, mean_loss_}, train);
    else
      train();
    const double tokens_per_second = step_ > begin ? rate() : 0;
    bar.clear();
    communicator_.barrier();  // an error of another rank is this one's too
    if (first && step_ == o_.steps)
      finish(tokens_per_second);
    else if (first)
      say("ended after step %lld, which is saved", static_cast<long long>(step_));
    return 0;
  }

 private:
  template <class... Values>
  static void say(const char* pattern, Values... values) {
    std::printf("%s\n", format(pattern, values...).c_str());
    std::fflush(stdout);
  }

  Gpt make_model() const {
    manual_seed(static_cast<std::uint64_t>(o_.seed));
    return Gpt(static_cast<std::int64_t>(text_.vocabulary().size()), o_);
  }

  // This rank's share of a step's sequences: what is read, and the characters that come next.
  std::pair<Tensor, Tensor> batch() const {
    const std::int64_t share = o_.batch_size / communicator_.size();
    std::vector<std::int64_t> ids, next;
    for (std::int64_t i = communicator_.rank() * share; i < (communicator_.rank() + 1) * share; ++i) {
      const std::uint64_t place =
          mixed(mixed(mixed(static_cast<std::uint64_t>(o_.seed)) + static_cast<std::uint64_t>(step_)) +
                static_cast<std::uint64_t>(i));
      const std::size_t start = place % (text_.size() - static_cast<std::size_t>(o_.context));
      for (std::size_t t = 0; t < static_cast<std::size_t>(o_.context); ++t) {
        ids.push_back(text_.number(start + t));
        next.push_back(text_.number(start + t + 1));
      }
    }
    const Device device = communicator_.device();
    return {from_data(ids, {share, o_.context}).to(device), from_data(next, {share * o_.context}).to(device)};
  }

  Tensor train_step() {
    const auto [ids, next] = batch();
    optimizer_.zero_grad();
    const Tensor scores = net_(ids);
    const Tensor loss = cross_entropy(scores.reshape({-1, scores.size(2)}), next);
    loss.backward();
    clip_grad_norm(net_.parameters(), 1.0);
    ++step_;
    optimizer_.set_lr(o_.learning_rate * std::min(1.0, static_cast<double>(step_) / 20));
    optimizer_.step();
    hook_.after_step(net_);
    return loss;
  }

  // ---- the model alone, for programs that use it

  void save_file() const {
    std::vector<NamedTensor> tensors;
    for (const NamedTensor& named : net_.module().state_dict())
      tensors.push_back({"model." + named.name, named.tensor});
    save_safetensors(o_.save, tensors, setting(o_, text_.vocabulary()));
  }

  // ---- the end

  std::string sample() const {
    const NoGrad no_grad;
    const TrainingScope evaluation(false);
    std::vector<std::int64_t> written{text_.number(0)};
    std::string characters;
    for (std::int64_t i = 0; i < o_.sample; ++i) {
      const auto length = std::min<std::size_t>(written.size(), static_cast<std::size_t>(o_.context));
      const std::vector<std::int64_t> seen(written.end() - static_cast<std::ptrdiff_t>(length), written.end());
      const Tensor scores =
          net_.module()(from_data(seen, {1, static_cast<std::int64_t>(length)}).to(communicator_.device()));
      const Tensor chances =
          softmax(scores.select(0, 0).select(0, static_cast<std::int64_t>(length) - 1) * (1 / o_.temperature), 0);
      double left =
          static_cast<double>(mixed(mixed(static_cast<std::uint64_t>(o_.seed)) ^ static_cast<std::uint64_t>(i)) >> 11) *
          0x1p-53;
      const auto each = chances.to_vector<float>();
      std::size_t choice = 0;
      while (choice + 1 < each.size() && (left -= static_cast<double>(each[choice])) > 0) ++choice;
      written.push_back(static_cast<std::int64_t>(choice));
      characters += text_.vocabulary()[choice];
    }
    return characters;
  }

  void finish(double tokens_per_second) const {
    if (!o_.save.empty()) save_file();
    const std::string hash = parameters_sha256(net_.module());
    const std::string characters = sample();
    const auto print = [&](const char* pattern) {
      std::printf(pattern, communicator_.size(), communicator_.backend(), static_cast<long long>(step_), loss_,
                  tokens_per_second, hash.c_str());
    };
    if (o_.json) {
      print(
          "{\"ranks\":%d,\"backend\":\"%s\",\"steps\":%lld,\"loss\":%.9g,\"tokens_per_second\":%.6g,"
          "\"parameters_sha256\":\"%s\",\"sample\":\"");
      for (const char c : characters) {  // bytes as Latin-1: whatever the text's encoding is, this is JSON
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x20 || byte > 0x7e || byte == '"' || byte == '\\')
          std::printf("\\u%04x", byte);
        else
          std::putchar(c);
      }
      std::printf("\"}\n");
    } else {
      if (!o_.quiet && !characters.empty()) std::printf("\n%s\n\n", characters.c_str());
      print("train_text: ranks=%d backend=%s steps=%lld loss=%.6g tokens_per_second=%.0f parameters_sha256=%s\n");
    }
    if (std::fflush(stdout) != 0 || std::ferror(stdout)) throw Error("expected to write the results, got an error");
  }

  const TextOptions& o_;
  const Text& text_;
  Communicator& communicator_;
  DistributedDataParallel<Gpt> net_;
  TextHook hook_;
  MeanLoss mean_loss_;
  AdamW optimizer_;
  TextCheckpoints checkpoints_;
  std::int64_t step_ = 0;
  double loss_ = 0;
};

int train(const TextOptions& options, const Text& text, Communicator& communicator) {
  if (options.batch_size % communicator.size() != 0)
    throw UsageError(
        cat("--batch-size: expected a multiple of the ", communicator.size(), " ranks, got ", options.batch_size));
  return Training(options, text, communicator).run();
}

int run(const TextOptions& options) {
  const Text text(options.data);
  if (text.size() <= static_cast<std::size_t>(options.context))
    throw UsageError(
        cat("--data: expected more than the ", options.context, " characters of --context, got ", text.size()));
  if (!options.checkpoint.empty() && std::filesystem::exists(options.checkpoint) &&
      !std::filesystem::is_directory(options.checkpoint))
    throw UsageError(cat("--checkpoint: expected a folder, got the file '", options.checkpoint, "'"));
  const auto timeout = std::chrono::seconds(options.stall_seconds);
  if (options.threads > 0) {
    // Virtual devices cost nothing until they are used.
    if (!std::getenv("LOCKSTEP_HOST_DEVICES")) configure_host({.devices = std::max(8, options.threads)});
    run_ranks(options.threads, [&](Communicator& communicator) { train(options, text, communicator); },
              {.timeout = timeout});
    return 0;
  }
  std::optional<Device> device;
  if (!options.device.empty()) device = Device::parse(options.device);
  const auto communicator = make_communicator({.device = device, .timeout = timeout});
  return train(options, text, *communicator);
}

}  // namespace
}  // namespace example

// Exits with 0, or 1 when something failed, 2 when the command line, the data or the checkpoint is not right.
int main(int argc, char** argv) {
  return example::run_program("train_text", [&] {
    const auto options = example::parse_text_options(argc, argv);
    return options ? example::run(*options) : 0;
  });
}
