// What happens to a batch between the loader and the model. After mmengine's data preprocessors.
//
//   const ImgDataPreprocessor preprocessor({.mean = {123.7, 116.3, 103.5}, .std = {58.4, 57.1, 57.4},
//                                           .pad_size_divisor = 32, .bgr_to_rgb = true});
//   auto [inputs, samples] = preprocessor(std::tuple(images, samples_of_batch), device, true);   // [n, 3, h, w]
#pragma once

#include <concepts>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/parallel/openmmlab/data/data_container.h"
#include "lockstep/tensor/tree.h"
#include "lockstep/tensor/value.h"

namespace lockstep {

// Casts a batch to the device of the model: every tensor in it, at any depth, but for what is in a DataContainer that
// is cpu_only; the rest stays as it is.
class BaseDataPreprocessor {
 public:
  template <class Data>
  Data operator()(Data data, Device device, [[maybe_unused]] bool training) const {
    for_each_tensor(data, [&](Tensor& tensor) { tensor = tensor.to(device); });
    return data;
  }
};

struct ImgDataPreprocessorOptions {
  std::vector<double> mean = {}, std = {};  // both or neither; one value, or one for each of three channels
  std::int64_t pad_size_divisor = 1;
  double pad_value = 0;
  bool bgr_to_rgb = false, rgb_to_bgr = false;  // not both
};

namespace detail {

// Images as the first field of a batch may have them.
template <class T>
concept Images =
    std::same_as<T, Tensor> || std::same_as<T, std::vector<Tensor>> || std::same_as<T, DataContainer<Tensor>>;

// The type of a batch whose images have become one tensor. Of images it is a tensor, of a list of arguments the list
// with a tensor in front; a struct template whose first parameter is the type of its images becomes that of Tensor, and
// another struct stays itself unless it says `using preprocessed = Other;`.
template <class Data>
struct Preprocessed {
  static auto choose() {
    if constexpr (Images<Data>)
      return std::type_identity<Tensor>{};
    else if constexpr (requires { typename Data::preprocessed; })
      return std::type_identity<typename Data::preprocessed>{};
    else
      return std::type_identity<Data>{};
  }
  using type = typename decltype(choose())::type;
};
template <template <class...> class Struct, Images First, class... Rest>
requires tree::HasFields<Struct<First, Rest...>> || tree::IsTuple<Struct<First, Rest...>>
struct Preprocessed<Struct<First, Rest...>> {
  using type = Struct<Tensor, Rest...>;
};

}  // namespace detail

// Casts a batch to the device and makes its images one tensor [n, channels, height, width] of f32: channels swapped,
// normalised, then padded with pad_value on the right and at the bottom to a multiple of the divisor.
//
// The images are the first field of a tuple, of a struct with fields or of a Value that is a list, or "inputs" of a
// Value that is a map (which gets "data_samples", nothing, where it has none); or all there is. They are a list of
// [channels, height, width] of any sizes, a tensor of four dimensions, or the one group of a collated DataContainer.
// Differentiable in the images; nothing blocks.
class LOCKSTEP_API ImgDataPreprocessor {
 public:
  // Throws InvalidArgument for both conversions at once, mean without std or the other way round, lengths other than 1
  // and 3, zeros in std and a divisor below 1.
  explicit ImgDataPreprocessor(ImgDataPreprocessorOptions options = {});
  const ImgDataPreprocessorOptions& options() const { return options_; }

  // Throws InvalidArgument for images of other ranks or channels than these, and for none.
  template <class Data>
  typename detail::Preprocessed<Data>::type operator()(Data data, Device device, bool training) const {
    data = BaseDataPreprocessor()(std::move(data), device, training);
    using Result = typename detail::Preprocessed<Data>::type;
    if constexpr (std::same_as<Data, Value>) {
      return preprocess(std::move(data));
    } else if constexpr (detail::Images<Data>) {
      return batch_of(data);
    } else if constexpr (std::same_as<Result, Data>) {
      with_fields(data, [&](auto& images, auto&...) { assign(images, batch_of(images)); });
      return data;
    } else {
      Result result;
      with_fields(data, [&](auto& images, auto&... rest) {
        with_fields(result, [&](auto& inputs, auto&... others) {
          static_assert(sizeof...(rest) == sizeof...(others), "`preprocessed` needs the same fields in the same order");
          assign(inputs, batch_of(images));
          ((others = std::move(rest)), ...);
        });
      });
      return result;
    }
  }

 private:
  template <class T, class F>
  static void with_fields(T& value, F&& f) {
    if constexpr (tree::HasFields<T>) {
      value.fields(f);
    } else {
      static_assert(tree::IsTuple<T>, "the images must be the first field of a tuple or of a struct with fields()");
      std::apply(f, value);
    }
  }
  template <class T>
  Tensor batch_of(const T& images) const {
    static_assert(detail::Images<T>, "the first field must be a Tensor, std::vector<Tensor> or DataContainer<Tensor>");
    if constexpr (std::same_as<T, Tensor>)
      return batch(images);
    else if constexpr (std::same_as<T, DataContainer<Tensor>>)
      return of_container(images);
    else
      return of_list(images);
  }
  template <class T>
  static void assign(T& field, Tensor images) {
    static_assert(!std::same_as<T, std::vector<Tensor>>,
                  "the images of this struct become one tensor: give it `using preprocessed = Other;`, a struct with "
                  "the same fields in the same order and a Tensor in front");
    if constexpr (std::same_as<T, DataContainer<Tensor>>)
      field = T::of_stacks({std::move(images)}, field.options());
    else
      field = std::move(images);
  }

  Tensor batch(const Tensor& images) const;
  Tensor of_list(const std::vector<Tensor>& images) const;
  Tensor of_container(const DataContainer<Tensor>& images) const;
  Value preprocess(Value data) const;
  // Of [.., channels, height, width].
  Tensor converted(const Tensor& images) const;

  ImgDataPreprocessorOptions options_;
};

}  // namespace lockstep
