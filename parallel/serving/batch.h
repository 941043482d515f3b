// Requests become a batch, and its result becomes answers: what depends on the types of inputs and answers.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/parallel/serving/replica_pool_options.h"
#include "lockstep/parallel/serving/request.h"
#include "lockstep/tensor/tree.h"

namespace lockstep::detail {

// Writes down what must be the same in requests that are computed together.
class LOCKSTEP_API BatchKey {
 public:
  explicit BatchKey(const std::optional<Padding>& padding) : padding_(padding) {}
  void add(const Tensor& tensor);
  void add(const void* bytes, std::size_t count) { text_.append(static_cast<const char*>(bytes), count); }
  void add(std::int64_t number);  // as one byte where it is small: most keys are then no allocation
  void set_alone() { alone_ = true; }
  void follow(const Tensor& tensor);  // its writers come first

  // Fills in what the request says of itself. Throws InvalidArgument for tensors without dimensions or with different
  // numbers of samples, where it could be computed with others.
  void finish(ServingRequest& request);

 private:
  const std::optional<Padding>& padding_;
  std::string text_ = "t";  // "a": computed alone
  std::size_t tensors_ = 0;
  std::int64_t samples_ = -1;
  bool alone_ = false;
  std::string wrong_;
  std::vector<Event> written_;
};

// Goes through a value as for_each_tensor does. Numbers, strings, lengths and keys count too; a value with parts of a
// type that nobody knows here is computed alone.
template <class T>
void describe_inputs(const T& value, BatchKey& key) {
  if constexpr (std::is_same_v<T, Tensor>) {
    key.add(static_cast<std::int64_t>(value.defined()));
    if (value.defined()) key.add(value);
  } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
    key.add(&value, sizeof value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    key.add(static_cast<std::int64_t>(value.size()));
    key.add(value.data(), value.size());
  } else if constexpr (std::is_same_v<T, std::vector<bool>>) {
    key.add(static_cast<std::int64_t>(value.size()));
    for (const bool bit : value) key.add(&bit, sizeof bit);
  } else if constexpr (requires(T & node, tree::Probe & f) { node.for_each_tensor(f); }) {
    key.set_alone();
    for_each_tensor(value, [&](const Tensor& tensor) { key.follow(tensor); });
  } else if constexpr (tree::HasFields<T>) {
    const auto each = [&](auto&... fields) { (describe_inputs(fields, key), ...); };
    const_cast<T&>(value).fields(each);  // NOLINT: fields() is not const; only reads
  } else if constexpr (tree::IsTuple<T>) {
    std::apply([&](const auto&... parts) { (describe_inputs(parts, key), ...); }, value);
  } else if constexpr (tree::IsList<T>) {
    key.add(static_cast<std::int64_t>(value.size()));
    for (const auto& part : value) describe_inputs(part, key);
  } else if constexpr (tree::IsMap<T>) {
    key.add(static_cast<std::int64_t>(value.size()));
    for (const auto& [name, part] : value) {
      describe_inputs(name, key);
      describe_inputs(part, key);
    }
  } else if constexpr (tree::IsOptional<T>) {
    key.add(static_cast<std::int64_t>(value.has_value()));
    if (value) describe_inputs(*value, key);
  } else if constexpr (tree::is_variant<T>) {
    key.add(static_cast<std::int64_t>(value.index()));
    std::visit([&](const auto& part) { describe_inputs(part, key); }, value);
  } else if constexpr (!std::is_empty_v<T>) {
    key.set_alone();
  }
}

// The tensors of all requests of a batch, joined on a device, and the answers' parts of what comes out.
class LOCKSTEP_API BatchTensors {
 public:
  BatchTensors(std::span<const std::shared_ptr<ServingRequest>> batch, const ReplicaPoolOptions& options, Device device)
      : batch_(batch), options_(options), device_(device) {}

  // The current streams wait for what has written the requests' tensors.
  void await_writers() const;
  // `parts`: of each request the tensor number `index`.
  Tensor join(std::size_t index, std::span<const Tensor> parts);
  // Moves an output to where answers are. Throws InvalidArgument unless it has an element for each sample, or is of a
  // request that is computed alone.
  Tensor bring(const Tensor& output) const;
  // Request i's part of the output number `index`, in memory of its own. In order of requests.
  Tensor part(std::size_t index, const Tensor& output, std::size_t i) const;

 private:
  std::span<const std::shared_ptr<ServingRequest>> batch_;
  const ReplicaPoolOptions& options_;
  Device device_;
  std::vector<std::int64_t> own_sizes_;  // of each request in the padded dimension
};

template <class Inputs, class InputsOf>
Inputs join_inputs(std::size_t count, BatchTensors& tensors, InputsOf&& inputs_of) {
  tensors.await_writers();
  Inputs joined = inputs_of(0);
  std::vector<std::vector<Tensor>> columns;
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t index = 0;
    for_each_tensor(inputs_of(i), [&](const Tensor& tensor) {
      if (index == columns.size()) columns.emplace_back().reserve(count);
      columns[index++].push_back(tensor);
    });
  }
  std::size_t index = 0;
  for_each_tensor(joined, [&](Tensor& tensor) {
    tensor = tensors.join(index, columns[index]);
    ++index;
  });
  return joined;
}

template <class Output>
std::vector<Output> split_output(Output output, std::size_t count, const BatchTensors& tensors) {
  for_each_tensor(output, [&](Tensor& tensor) { tensor = tensors.bring(tensor); });
  std::vector<Output> answers;
  answers.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    auto& answer = i + 1 < count ? answers.emplace_back(output) : answers.emplace_back(std::move(output));
    std::size_t index = 0;
    for_each_tensor(answer, [&](Tensor& tensor) { tensor = tensors.part(index++, tensor, i); });
  }
  return answers;
}

}  // namespace lockstep::detail
