// OptimWrapper: an optimizer with what surrounds its step (gradient accumulation, clipping, mixed precision), behind
// one call: update_params(loss). After mmengine's class of that name.
//
//   OptimWrapper optim(SGD(net.parameters(), {.lr = 0.1}),
//                      {.accumulative_counts = 4, .clip_grad = ClipGrad{.max_norm = 1}});
//   for (const auto& [images, labels] : loader) {
//     Tensor loss;
//     {
//       const auto context = optim.optim_context(net);   // no_sync while gradients only accumulate
//       loss = cross_entropy(net(images), labels);
//     }
//     optim.update_params(loss);
//   }
//
// A window is as many losses as there are to a step: accumulative_counts, but of the last one what is left of
// max_counts. Losses are divided by the number of those in their window, so that a step is one on their mean.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/optim/clip.h"
#include "lockstep/tensor/optim/optimizer.h"

namespace lockstep {

// How gradients are bounded before a step. type "norm" needs max_norm, "value" needs clip_value; a config without
// either is an InvalidArgument.
struct ClipGrad {
  std::string type = "norm";
  std::optional<double> max_norm = std::nullopt;    // above 0
  double norm_type = 2;                             // see ClipNormOptions
  bool error_if_nonfinite = false;                  // see ClipNormOptions
  std::optional<double> clip_value = std::nullopt;  // above 0
  // In place of clip_grad_norm of the optimizer's parameters, where these are a part of what the norm is of:
  // FullyShardedDataParallel's clipping().
  std::function<Tensor(double max_norm, const ClipNormOptions&)> clips_norm = {};
};

struct OptimWrapperOptions {
  std::int64_t accumulative_counts = 1;  // losses per step, above 0
  std::optional<ClipGrad> clip_grad = std::nullopt;
};

namespace detail {

// While it lives, gradients that backwards of `model`'s forwards in this thread give stay on this rank, where it is a
// part of a module that somebody else wraps (MMSeparateDistributedDataParallel) and has no no_sync() of its own.
class LOCKSTEP_API LocalGradients {
 public:
  explicit LocalGradients(const ModuleBase& model);
  LocalGradients(const LocalGradients&) = delete;
  LocalGradients& operator=(const LocalGradients&) = delete;
  ~LocalGradients();
  static bool of(const ModuleBase& model);

 private:
  const ModuleBase* model_;
};

}  // namespace detail

// What holds while a model computes the loss of a step: see OptimWrapper::optim_context.
class [[nodiscard]] OptimContext {
 public:
  OptimContext(std::shared_ptr<void> no_sync, std::unique_ptr<Autocast> autocast)
      : no_sync_(std::move(no_sync)), autocast_(std::move(autocast)) {}

 private:
  std::shared_ptr<void> no_sync_;
  std::unique_ptr<Autocast> autocast_;
};

// Learning rates or momentums by group, under a name.
using NamedNumbers = std::vector<std::pair<std::string, std::vector<double>>>;

// Used by one thread at a time.
class LOCKSTEP_API OptimWrapper {
 public:
  // Throws InvalidArgument for options that make no sense.
  explicit OptimWrapper(std::unique_ptr<Optimizer> optimizer, OptimWrapperOptions options = {});
  template <std::derived_from<Optimizer> O>
  explicit OptimWrapper(O optimizer, OptimWrapperOptions options = {})
      : OptimWrapper(std::make_unique<O>(std::move(optimizer)), std::move(options)) {}
  virtual ~OptimWrapper() = default;
  OptimWrapper(const OptimWrapper&) = delete;
  OptimWrapper& operator=(const OptimWrapper&) = delete;

  // Divides the loss by the losses of its window, differentiates it, and where the window ends steps and makes the
  // gradients undefined. After an error gradients are unspecified until zero_grad().
  virtual void update_params(const Tensor& loss);
  virtual Tensor scale_loss(const Tensor& loss) const;
  virtual void backward(const Tensor& loss);  // counts
  virtual void step();                        // clips, then steps
  virtual void zero_grad();
  virtual bool should_update() const;  // the window has ended
  virtual bool should_sync() const;    // the next loss ends it

  // For the forward of one loss: while it lives, the ranks do not average gradients unless the loss ends its window
  // (`model.no_sync()`, or where a wrapper of a model around this one averages), and autocast is on where the wrapper
  // is one for mixed precision.
  template <class M>
  OptimContext optim_context(const M& model) const {
    check_context();
    std::shared_ptr<void> quiet;
    if constexpr (requires { model.no_sync(); }) {
      using Scope = decltype(model.no_sync());
      if (!should_sync()) quiet = std::shared_ptr<Scope>(new Scope(model.no_sync()));
    } else if constexpr (IsModule<M>) {
      if (!should_sync()) quiet = std::make_shared<detail::LocalGradients>(model);
    }
    return {std::move(quiet), autocast()};
  }

  // Where a training begins (losses so far) and ends (losses in all; -1: nobody knows), so that the last window, which
  // may be shorter, is divided by its own length and stepped. Logs a warning where `init_counts` lies inside a window,
  // whose first gradients are lost then, and where gradients accumulate in a model with batch norm, whose statistics
  // are still those of each single loss. Throws InvalidArgument for counts below 0 (-1) or init_counts above
  // max_counts.
  virtual void initialize_count_status(const ModuleBase& model, std::int64_t init_counts, std::int64_t max_counts);
  std::int64_t inner_count() const { return inner_count_; }  // losses so far
  std::int64_t max_counts() const { return max_counts_; }    // -1: nobody knows

  // Learning rates and momentums (SGD's, beta1 of the Adam family, else 0) of all groups, by name: "lr", "momentum"
  // (and "name.lr" of an OptimWrapperDict).
  virtual NamedNumbers get_lr() const;
  virtual NamedNumbers get_momentum() const;
  // Norm of the gradients before the last clipping by norm; undefined before it.
  const Tensor& grad_norm() const { return grad_norm_; }

  // The optimizer's state_dict(), "inner_count" and "max_counts".
  virtual std::vector<NamedTensor> state_dict() const;
  // Takes that of any wrapper of such an optimizer, or the optimizer's own: without counts they begin anew (0 and -1),
  // and what only another wrapper has ("loss_scaler.…") is passed over. Throws InvalidArgument, before anything is
  // changed, for a state that does not fit; `state` stays as it is.
  virtual void load_state_dict(const std::vector<NamedTensor>& state);

  // `f` gets every optimizer and its name: "" of the only one, else those of an OptimWrapperDict.
  using OptimizerFunction = std::function<void(const std::string& name, Optimizer& optimizer)>;
  virtual void for_each_optimizer(const OptimizerFunction& f) { f("", optimizer()); }

  // Throw NotSupported for a wrapper without an optimizer of its own.
  Optimizer& optimizer();
  const Optimizer& optimizer() const;
  const OptimWrapperOptions& options() const { return options_; }

 protected:
  struct WithoutOptimizer {};
  explicit OptimWrapper(WithoutOptimizer /*tag*/) {}
  OptimWrapper(OptimWrapper&&) = default;  // of derived classes: nothing is cut off
  OptimWrapper& operator=(OptimWrapper&&) = default;
  virtual void check_context() const {}
  virtual std::unique_ptr<Autocast> autocast() const { return nullptr; }
  void clip_grad();
  // The entries of a state that are this class's own, and the rest.
  struct Counts {
    std::int64_t inner = 0, max = -1;
    std::vector<NamedTensor> rest;
  };
  static constexpr std::string_view kScalerPrefix = "loss_scaler.";  // of AmpOptimWrapper's entries
  static Counts take_counts(const std::vector<NamedTensor>& state);
  void load(const Counts& counts);  // whose rest is the optimizer's; throws before anything is changed

 private:
  bool window_ends_at(std::int64_t count) const;

  std::unique_ptr<Optimizer> optimizer_;
  OptimWrapperOptions options_;
  std::int64_t inner_count_ = 0, max_counts_ = -1;
  Tensor grad_norm_;
};

}  // namespace lockstep
