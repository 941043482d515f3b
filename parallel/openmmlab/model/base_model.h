// BaseModel: a module that knows how to make one step of training, validation and test. After mmengine's class.
//
//   struct Classifier : BaseModel<Classifier> {
//     Linear head{64, 10};
//     ModelOutput<Tensor, std::vector<Tensor>> forward(const Tensor& inputs, const Tensor& labels, Mode mode) const {
//       const Tensor scores = head(inputs);
//       if (mode == Mode::loss) return Losses{{"loss_cls", cross_entropy(scores, labels)}};
//       if (mode == Mode::predict) return std::vector<Tensor>{argmax(scores, 1)};
//       return scores;
//     }
//     void members(Members& m) override { m("head", head); }
//   };
//   auto log = classifier.train_step(std::tuple(images, labels), optim_wrapper);
#pragma once

#include <utility>

#include "lockstep/parallel/openmmlab/data/data_preprocessor.h"
#include "lockstep/parallel/openmmlab/model/parse_losses.h"
#include "lockstep/parallel/openmmlab/model/run_forward.h"
#include "lockstep/parallel/openmmlab/optim/optim_wrapper.h"

namespace lockstep {

namespace detail {

// Of the first parameter; cpu without one.
LOCKSTEP_API Device device_of(const ModuleBase& module);

// One step with `called`: the model itself or a wrapper of it, whose no_sync() and forward take part. `before_update`
// gets the loss.
template <class M, class Called, class Data, class F>
LogVars train_step(const M& model, const Called& called, const Data& data, OptimWrapper& optim_wrapper,
                   F&& before_update) {
  if constexpr (check_forward<M>()) {
    LossOutput output;
    {
      const OptimContext context = optim_wrapper.optim_context(called);
      output = losses_of(run_forward(called, model.preprocess(data, true), Mode::loss));
    }
    auto [loss, log] = model.parse_losses(output.losses);
    before_update(loss);
    optim_wrapper.update_params(loss);
    log_predictions(log, output);
    return std::move(log);
  } else {
    return {};
  }
}

// Predictions of the forward that is `called`: the model itself or a wrapper of it.
template <class M, class Called, class Data>
auto val_step(const M& model, const Called& called, const Data& data) {
  auto result = run_forward(called, model.preprocess(data, false), Mode::predict);
  if constexpr (requires { result.predictions(); })
    return std::move(result.predictions());
  else
    return result;
}

}  // namespace detail

// `Derived` has a const forward(fields of the data…, Mode) that returns a ModelOutput. For what data may be, see
// run_forward.
template <class Derived, class Preprocessor = BaseDataPreprocessor>
class BaseModel : public Module<Derived> {
 public:
  BaseModel() = default;
  explicit BaseModel(Preprocessor preprocessor) : data_preprocessor(std::move(preprocessor)) {}

  // Of the first parameter; cpu without one.
  Device device() const { return detail::device_of(*this); }
  template <class Data>
  auto preprocess(const Data& data, bool training) const {
    return data_preprocessor(data, device(), training);
  }
  // A model may have its own.
  std::pair<Tensor, LogVars> parse_losses(const Losses& losses) const { return lockstep::parse_losses(losses); }

  // One step of the optimizer on one batch; returns what is to be logged: that of parse_losses, and "vis_preds" and
  // "vis_masks" where forward gave predictions and masks with its losses. Throws what run_forward, parse_losses and
  // OptimWrapper::update_params throw.
  template <class Data>
  LogVars train_step(const Data& data, OptimWrapper& optim_wrapper) const {
    return detail::train_step(self(), self(), data, optim_wrapper, [](const Tensor&) {});
  }
  // Predictions. Neither switches the mode of the module nor gradients off: whoever runs the loop does.
  template <class Data>
  auto val_step(const Data& data) const {
    return detail::val_step(self(), self(), data);
  }
  template <class Data>
  auto test_step(const Data& data) const {
    return self().val_step(data);
  }

  Preprocessor data_preprocessor;

 private:
  const Derived& self() const { return static_cast<const Derived&>(*this); }
};

}  // namespace lockstep
