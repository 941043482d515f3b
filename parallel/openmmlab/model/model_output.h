// What the forward of a model gives: a model of OpenMMLab's kind computes one of three things, by its mode.
#pragma once

#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/parallel/openmmlab/model/named_values.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tensor/tree.h"

namespace lockstep {

// tensor: what the network gives, as it is. loss: the losses, for training. predict: the predictions.
enum class Mode { tensor, loss, predict };
inline const char* to_string(Mode mode) {
  return mode == Mode::tensor ? "tensor" : mode == Mode::loss ? "loss" : "predict";
}

// Of Mode::loss: the losses alone, or with predictions, or with predictions and masks to look at.
struct LossOutput {
  LossOutput() = default;
  LossOutput(Losses losses_of_call) : losses(std::move(losses_of_call)) {}  // NOLINT: a map of losses is enough
  LossOutput(Losses losses_of_call, Value predictions)
      : losses(std::move(losses_of_call)), preds(std::move(predictions)) {}
  LossOutput(Losses losses_of_call, Value predictions, Value of_masks)
      : losses(std::move(losses_of_call)), preds(std::move(predictions)), masks(std::move(of_masks)) {}

  Losses losses;
  std::optional<Value> preds, masks;
  void fields(auto& f) { f(losses, preds, masks); }
};

// One of the three. `Raw` is what the model gives in Mode::tensor, `Predictions` what it predicts.
template <class Raw = Tensor, class Predictions = std::vector<Tensor>>
class ModelOutput {
 public:
  ModelOutput(Raw raw) : content_(std::in_place_index<0>, std::move(raw)) {}               // NOLINT: any of the three
  ModelOutput(LossOutput losses) : content_(std::in_place_index<1>, std::move(losses)) {}  // NOLINT
  ModelOutput(Losses losses) : ModelOutput(LossOutput(std::move(losses))) {}               // NOLINT
  ModelOutput(Predictions predictions)                                                     // NOLINT
      requires(!std::is_same_v<Raw, Predictions>)
      : content_(std::in_place_index<2>, std::move(predictions)) {}

  Mode mode() const { return static_cast<Mode>(content_.index()); }
  // Throw InvalidArgument, naming both modes, when forward ran in another one.
  Raw& tensor() { return get<0>(); }
  LossOutput& loss() { return get<1>(); }
  Predictions& predictions() {
    if constexpr (std::is_same_v<Raw, Predictions>)
      if (content_.index() == 0) return std::get<0>(content_);  // what it was made of does not tell them apart
    return get<2>();
  }

  template <class F>
  void for_each_tensor(F&& f) {
    std::visit([&](auto& value) { lockstep::for_each_tensor(value, f); }, content_);
  }

 private:
  template <std::size_t I>
  auto& get() {
    LOCKSTEP_CHECK(content_.index() == I, "[ModelOutput] expected what forward gives in mode '",
                   to_string(static_cast<Mode>(I)), "', got that of mode '", to_string(mode()), "'");
    return std::get<I>(content_);
  }
  std::variant<Raw, LossOutput, Predictions> content_;
};

}  // namespace lockstep
