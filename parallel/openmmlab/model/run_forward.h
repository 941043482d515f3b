// run_forward: a model of OpenMMLab's kind is called with a batch of any form.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/parallel/openmmlab/model/model_output.h"
#include "lockstep/parallel/signature.h"
#include "lockstep/tensor/nn/module.h"
#include "lockstep/tensor/tree.h"
#include "lockstep/tensor/value.h"

namespace lockstep {

// The usual two fields of a batch.
template <class Inputs, class Samples>
struct ModelData {
  Inputs inputs;
  Samples data_samples;
  void fields(auto& f) { f(inputs, data_samples); }
};
template <class Inputs, class Samples>
ModelData(Inputs, Samples) -> ModelData<Inputs, Samples>;

namespace detail {

// The model whose forward has a signature: of a wrapper, what it wraps.
template <class M>
const auto& with_signature(const M& model) {
  if constexpr (HasOneForward<M>)
    return model;
  else if constexpr (requires { model.module(); })
    return with_signature(model.module());
  else
    return model;
}

template <class T>
struct ResultOf;
template <class R, class C, class... Args>
struct ResultOf<R (C::*)(Args...) const> {
  using type = R;
};
template <class R, class C, class... Args>
struct ResultOf<R (C::*)(Args...) const noexcept> {
  using type = R;
};

// Of a forward that is one function: whether the library can call it. Overloads and templates show when they are.
template <class F>
struct ForwardForm {
  static constexpr bool kConst = true, kHasMode = true;
};
template <bool IsConst, class... Args>
struct FormOfForward {
  static constexpr bool kConst = IsConst;
  static constexpr bool kHasMode = false;
};
template <bool IsConst, class First, class... Args>
struct FormOfForward<IsConst, First, Args...> {
  static constexpr bool kConst = IsConst;
  static constexpr bool kHasMode =
      std::is_same_v<std::remove_cvref_t<std::tuple_element_t<sizeof...(Args), std::tuple<First, Args...>>>, Mode>;
};
template <class R, class C, class... Args>
struct ForwardForm<R (C::*)(Args...)> : FormOfForward<false, Args...> {};
template <class R, class C, class... Args>
struct ForwardForm<R (C::*)(Args...) const> : FormOfForward<true, Args...> {};
template <class R, class C, class... Args>
struct ForwardForm<R (C::*)(Args...) noexcept> : FormOfForward<false, Args...> {};
template <class R, class C, class... Args>
struct ForwardForm<R (C::*)(Args...) const noexcept> : FormOfForward<true, Args...> {};

// Whether forward has the form that the steps need. Where it has not, the error is one line and nothing follows it.
template <class M>
consteval bool check_forward() {
  using Model = std::remove_cvref_t<decltype(with_signature(std::declval<const M&>()))>;
  if constexpr (HasOneForward<Model>) {
    using Form = ForwardForm<decltype(&Model::forward)>;
    static_assert(Form::kConst, "expected a model with forward(fields of the data..., Mode) const, got one not const");
    static_assert(Form::kHasMode, "expected a model with forward(fields of the data..., Mode) const, got no Mode");
    return Form::kConst && Form::kHasMode;
  } else {
    return true;
  }
}

inline constexpr std::size_t kMostFields = 8;

template <class M, class T, std::size_t... I>
constexpr bool takes(std::index_sequence<I...> /*fields*/) {
  return requires(const M& model, std::array<T, kMostFields> values, Mode mode) {
    with_signature(model).forward(std::move(values[I])..., mode);
  };
}
// Whether forward takes N values of type T, and the mode.
template <class M, class T, std::size_t N>
inline constexpr bool kTakes = takes<M, T>(std::make_index_sequence<N>());

template <class M, class T, std::size_t N = 0>
constexpr std::size_t fewest_fields() {
  if constexpr (N > kMostFields || kTakes<M, T, N>)
    return N;
  else
    return fewest_fields<M, T, N + 1>();
}

template <class M, class T, std::size_t... I>
auto call_with(const M& model, std::vector<T>& values, Mode mode, std::index_sequence<I...> /*fields*/) {
  return model(std::move(values[I])..., mode);
}

// Calls the model if forward takes as many values as there are; notes in `numbers` how many it takes, from N on.
template <std::size_t N, class M, class T, class Result>
void call_if_taken(const M& model, std::vector<T>& values, Mode mode, Result& result, std::string& numbers) {
  if constexpr (kTakes<M, T, N>) {
    if (values.size() == N) result.emplace(call_with(model, values, mode, std::make_index_sequence<N>()));
    numbers += cat(numbers.empty() ? "" : " or ", N);
  }
  if constexpr (N < kMostFields) call_if_taken<N + 1>(model, values, mode, result, numbers);
}

// Calls the model with all values; how many there are is known at run time only.
template <class M, class T>
auto call_with_all(const M& model, std::vector<T> values, Mode mode) {
  constexpr std::size_t kFewest = fewest_fields<M, T>();
  static_assert(kFewest <= kMostFields, "expected a model whose forward takes values of the data's type and a Mode");
  std::optional<decltype(call_with(model, values, mode, std::make_index_sequence<kFewest>()))> result;
  std::string numbers;
  call_if_taken<kFewest>(model, values, mode, result, numbers);
  LOCKSTEP_CHECK(result, "[run_forward] expected data of ", numbers, " values, as forward takes them, got ",
                 values.size());
  return std::move(*result);
}

// The same by the names that the parameters of forward have. Without data_samples forward gets an empty T.
template <class M, class Map>
auto call_by_key(const M& model, Map& data, Mode mode) {
  using T = typename Map::mapped_type;
  for (const auto& [key, value] : data)
    LOCKSTEP_CHECK(key == "inputs" || key == "data_samples",
                   "[run_forward] expected data with 'inputs' and 'data_samples', got '", key, "'");
  const auto inputs = data.find("inputs"), samples = data.find("data_samples");
  LOCKSTEP_CHECK(inputs != data.end(), "[run_forward] expected data with 'inputs', got none");
  std::vector<T> values;
  values.push_back(std::move(inputs->second));
  if (samples != data.end())
    values.push_back(std::move(samples->second));
  else if (!kTakes<M, T, 1>)
    values.emplace_back();
  return call_with_all(model, std::move(values), mode);
}

// Given to fields(): calls the model with all of them.
template <class M>
struct CallWithFields {
  using Forward = decltype(&std::remove_cvref_t<decltype(with_signature(std::declval<const M&>()))>::forward);
  const M& model;
  const Mode mode;
  std::optional<typename ResultOf<Forward>::type> result = {};
  template <class... Fields>
  void operator()(Fields&... fields) {
    LOCKSTEP_CHECK(!result, "[run_forward] expected a struct that lists its fields in one call, got several");
    result.emplace(model(std::move(fields)..., mode));
  }
};

template <class T>
inline constexpr bool kIsModelData = false;
template <class Inputs, class Samples>
inline constexpr bool kIsModelData<ModelData<Inputs, Samples>> = true;

template <class T>
concept HasStringKeys = tree::IsMap<T> && std::same_as<typename T::key_type, std::string>;

}  // namespace detail

// What run_forward takes.
template <class T>
concept ForwardData = std::same_as<T, Value> || tree::IsTuple<T> || tree::HasFields<T> || detail::HasStringKeys<T> ||
    (tree::IsList<T> && !std::same_as<T, std::vector<bool>>);

// Calls `model`, so that hooks and wrappers take part, with what is in `data`, and the mode:
// - a tuple, pair, array or struct with fields(): its elements, in order. A struct in a tuple of one is passed whole.
//   The forward of a model that gets the fields of a struct other than ModelData is one function, not several.
// - a vector, or a Value that is a list: its elements, in order (eight at most).
// - a map by std::string, or a Value that is a map: "inputs" and "data_samples"; without the latter an empty value.
// Throws InvalidArgument for a Value of another type, naming it, for other keys, and for a number of elements that
// forward does not take. Other static types do not compile.
template <class M, ForwardData Data>
auto run_forward(const M& model, Data data, Mode mode) {
  if constexpr (!detail::check_forward<M>()) {
    return std::vector<Tensor>();
  } else if constexpr (std::same_as<Data, Value>) {
    LOCKSTEP_CHECK(data.is(Value::Type::list) || data.is(Value::Type::map),
                   "[run_forward] expected data that is a map or a list, got ", data.type());
    if (data.is(Value::Type::map)) return detail::call_by_key(model, data.as_map(), mode);
    return detail::call_with_all(model, std::move(data.as_list()), mode);
  } else if constexpr (detail::kIsModelData<Data>) {
    return model(std::move(data.inputs), std::move(data.data_samples), mode);
  } else if constexpr (tree::IsTuple<Data>) {
    return std::apply([&](auto&... fields) { return model(std::move(fields)..., mode); }, data);
  } else if constexpr (tree::HasFields<Data>) {
    detail::CallWithFields<M> call{model, mode};
    data.fields(call);
    LOCKSTEP_CHECK(call.result, "[run_forward] expected a struct that lists fields, got one without");
    return std::move(*call.result);
  } else if constexpr (tree::IsMap<Data>) {
    return detail::call_by_key(model, data, mode);
  } else {
    return detail::call_with_all(model, std::move(data), mode);
  }
}

}  // namespace lockstep
