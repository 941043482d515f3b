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

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/parallel/openmmlab/data_preprocessor.h"
#include "lockstep/parallel/openmmlab/model_output.h"
#include "lockstep/parallel/openmmlab/optim_wrapper.h"
#include "lockstep/tensor/nn/module.h"

namespace lockstep {

// The usual two fields of a batch.
template <class Inputs, class Samples>
struct ModelData {
  Inputs inputs;
  Samples data_samples;
  void fields(auto& f) { f(inputs, data_samples); }
};

// The sum of the losses (of every name that contains "loss": a tensor's mean, a list's sum of means), and what is to be
// logged: "loss", the sum, first, then every name with its value; a model's own "loss" beside others is logged as
// "loss_". Throws InvalidArgument, naming it, for what is neither a tensor nor a list of tensors, and where no name
// contains "loss".
LOCKSTEP_API std::pair<Tensor, LogVars> parse_losses(const Losses& losses);

// Calls `model` with the fields of `data` and the mode. See the functions of the same name in mmengine.
template <class M, class Data>
auto run_forward(const M& model, Data data, Mode mode);

// `Derived` has a const forward(fields of the data…, Mode) that returns a ModelOutput.
template <class Derived, class Preprocessor = BaseDataPreprocessor>
class BaseModel : public Module<Derived> {
 public:
  BaseModel() = default;
  explicit BaseModel(Preprocessor preprocessor) : data_preprocessor(std::move(preprocessor)) {}

  // Of the first parameter; cpu without one.
  Device device() const;
  template <class Data>
  auto preprocess(const Data& data, bool training) const {
    return data_preprocessor(data, device(), training);
  }
  std::pair<Tensor, LogVars> parse_losses(const Losses& losses) const { return lockstep::parse_losses(losses); }

  // One step of the optimizer on one batch; returns what is to be logged.
  template <class Data>
  LogVars train_step(const Data& data, OptimWrapper& optim_wrapper) const;
  // Predictions. Neither switches the mode of the module nor gradients off: whoever runs the loop does.
  template <class Data>
  auto val_step(const Data& data) const;
  template <class Data>
  auto test_step(const Data& data) const;

  Preprocessor data_preprocessor;
};

}  // namespace lockstep
