// What happens to a batch between the loader and the model.
#include "lockstep/parallel/openmmlab/data/data_preprocessor.h"

#include "lockstep/parallel/openmmlab/data/data_sample.h"
#include "lockstep/parallel/openmmlab/model/base_model.h"
#include "parallel/support.h"

using namespace parallel_test;

namespace {

using Options = ImgDataPreprocessorOptions;
using Floats = std::vector<float>;
using ImageList = std::vector<Tensor>;

Floats floats(const Tensor& x) { return x.to_vector<float>(); }

// Bytes first, first + 1, …: [channels, height, width], or with another size in front.
Tensor bytes(const Shape& shape, int first = 0) {
  std::vector<std::uint8_t> values;
  for (std::int64_t i = 0; i < element_count(shape); ++i) values.push_back(static_cast<std::uint8_t>(first + i));
  return from_data(values, shape);
}

// What the preprocessor is to make of images, pixel by pixel.
Floats expected(const ImageList& images, const Options& options) {
  const auto up = [&](std::int64_t size) {
    return (size + options.pad_size_divisor - 1) / options.pad_size_divisor * options.pad_size_divisor;
  };
  std::int64_t height = 0, width = 0;
  for (const Tensor& image : images) {
    height = std::max(height, up(image.size(1)));
    width = std::max(width, up(image.size(2)));
  }
  Floats all;
  for (const Tensor& image : images) {
    const Doubles pixels = values(image.to(DType::f64));
    const std::int64_t channels = image.size(0), rows = image.size(1), columns = image.size(2);
    for (std::int64_t c = 0; c < channels; ++c)
      for (std::int64_t y = 0; y < height; ++y)
        for (std::int64_t x = 0; x < width; ++x) {
          if (y >= rows || x >= columns) {
            all.push_back(static_cast<float>(options.pad_value));
            continue;
          }
          const std::int64_t source = options.bgr_to_rgb || options.rgb_to_bgr ? channels - 1 - c : c;
          const auto of = [c](const Doubles& list) {
            return static_cast<float>(list[list.size() == 1 ? 0 : static_cast<std::size_t>(c)]);
          };
          auto value = static_cast<float>(pixels[static_cast<std::size_t>((source * rows + y) * columns + x)]);
          if (!options.mean.empty()) value = (value - of(options.mean)) / of(options.std);
          all.push_back(value);
        }
  }
  return all;
}

// A batch of the user's own.
struct PlainBatch {
  Tensor images;
  std::string name;
  void fields(auto& f) { f(images, name); }
};
struct Listed {
  ImageList images;
  std::string name;
  using preprocessed = PlainBatch;
  void fields(auto& f) { f(images, name); }
};
struct Contained {
  DataContainer<Tensor> images;
  DataContainer<ImageMeta> meta;
  void fields(auto& f) { f(images, meta); }
};

}  // namespace

TEST_CASE("the base preprocessor casts tensors at any depth, and nothing else") {
  const BaseDataPreprocessor cast;
  const Device there = Device::host(1);
  const Tensor x = counting({2}), kept = counting({3});
  const auto [list, map, text, meta, moved, value] =
      cast(std::tuple(std::vector{x, x}, std::map<std::string, std::optional<Tensor>>{{"a", x}, {"b", {}}},
                      std::string("text"), DataContainer(kept, {.cpu_only = true}), DataContainer(x),
                      Value(Value::Map{{"x", Value::List{x, 5, "text", Value()}}})),
           there, true);
  CHECK(list[1].device() == there);
  CHECK(values(list[1]) == Doubles{1, 2});
  CHECK(map.at("a")->device() == there);
  CHECK_FALSE(map.at("b").has_value());
  CHECK(text == "text");
  CHECK(meta.data().identity() == kept.identity());
  CHECK(moved.data().device() == there);
  CHECK(value.at("x").at(std::size_t{0}).as_tensor().device() == there);
  CHECK(value.at("x").at(std::size_t{1}).as_integer() == 5);
  CHECK(value.at("x").at(std::size_t{2}).as_string() == "text");
  CHECK(cast(x, Device::cpu(), false).identity() == x.identity());
}

TEST_CASE("images of different sizes become one tensor") {
  const ImageList images{bytes({3, 2, 3}), bytes({3, 3, 1}, 100), bytes({3, 1, 1}, 50)};
  for (const Options& options :
       {Options{}, Options{.mean = {3}, .std = {2}}, Options{.mean = {1, 2, 3}, .std = {4, 5, 6}, .bgr_to_rgb = true},
        Options{.mean = {1, 2, 3}, .std = {7}, .pad_size_divisor = 4, .pad_value = 9},
        Options{.mean = {1}, .std = {7, 3, 9}, .pad_size_divisor = 2, .pad_value = -1.5, .rgb_to_bgr = true},
        Options{.pad_size_divisor = 3, .pad_value = 114, .bgr_to_rgb = true}}) {
    CAPTURE(options.mean, options.std, options.pad_size_divisor, options.bgr_to_rgb, options.rgb_to_bgr);
    for (const Device device : {Device::cpu(), Device::host(1)}) {
      const Tensor batch = ImgDataPreprocessor(options)(images, device, true);
      const std::int64_t size = options.pad_size_divisor == 1 || options.pad_size_divisor == 3 ? 3 : 4;
      CHECK(batch.shape() == Shape{3, 3, size, size});
      CHECK(batch.dtype() == DType::f32);
      CHECK(batch.device() == device);
      CHECK(floats(batch) == expected(images, options));
    }
    // A tensor of four dimensions is padded too.
    const Tensor four = bytes({2, 3, 2, 5});
    const Tensor padded = ImgDataPreprocessor(options)(four, Device::host(1), false);
    CHECK(padded.size(0) == 2);
    CHECK(padded.size(2) % options.pad_size_divisor == 0);
    CHECK(floats(padded) == expected({four[0], four[1]}, options));
  }
  // Of other channels than three, with one value for all; of another dtype.
  const ImageList grey{counting({1, 2, 2}), counting({1, 1, 3})};
  const Tensor batch = ImgDataPreprocessor({.mean = {1}, .std = {4}})(grey, Device::cpu(), true);
  CHECK(batch.dtype() == DType::f32);
  CHECK(floats(batch) == expected(grey, {.mean = {1}, .std = {4}}));
}

TEST_CASE("padding comes after normalising, and is not normalised") {
  const ImgDataPreprocessor preprocessor({.mean = {1}, .std = {2}, .pad_value = 5});
  const Tensor batch = preprocessor(ImageList{bytes({1, 1, 1}, 3), bytes({1, 1, 2}, 7)}, Device::cpu(), true);
  CHECK(floats(batch) == Floats{1, 5, 3, 3.5f});
}

TEST_CASE("the images are the first field of a batch") {
  const ImgDataPreprocessor preprocessor({.pad_size_divisor = 2, .pad_value = 8});
  const Device there = Device::host(1);
  const ImageList images{bytes({1, 1, 1}, 3), bytes({1, 1, 2}, 7)};
  const Floats wanted = expected(images, preprocessor.options());
  REQUIRE(wanted.size() == 8);

  const auto [tensor_of_tuple, labels] = preprocessor(std::tuple(images, counting({2})), there, true);
  CHECK(floats(tensor_of_tuple) == wanted);
  CHECK(labels.device() == there);
  const std::pair<Tensor, int> pair = preprocessor(std::pair(images, 3), there, true);
  CHECK(floats(pair.first) == wanted);

  ModelData<ImageList, std::vector<DataSample>> data{images, {DataSample()}};
  data.data_samples[0].gt_instances = InstanceData{{"labels", counting({1})}};
  const ModelData<Tensor, std::vector<DataSample>> model_data = preprocessor(data, there, true);
  CHECK(floats(model_data.inputs) == wanted);
  CHECK(model_data.data_samples[0].gt_instances->labels().device() == there);
  const ModelData<Tensor, int> stacked = preprocessor(ModelData<Tensor, int>{bytes({1, 1, 1, 1}, 3), 4}, there, true);
  CHECK(floats(stacked.inputs) == Floats{3, 8, 8, 8});
  CHECK(stacked.data_samples == 4);

  const PlainBatch own = preprocessor(Listed{images, "name"}, there, true);
  CHECK(floats(own.images) == wanted);
  CHECK(own.name == "name");
  CHECK(floats(preprocessor(PlainBatch{bytes({1, 1, 1, 1}, 3), "same"}, there, true).images) == Floats{3, 8, 8, 8});
}

TEST_CASE("a container with one group is the images") {
  const ImgDataPreprocessor preprocessor({.mean = {1}, .std = {2}, .pad_size_divisor = 2, .pad_value = 8});
  const Device there = Device::host(1);
  const ImageList images{bytes({1, 1, 1}, 3), bytes({1, 1, 3}, 7)};
  const auto containers = [&](bool stack) {
    std::vector<Contained> samples;
    for (const Tensor& image : images)
      samples.push_back({DataContainer(image, {.stack = stack}), DataContainer(ImageMeta(), {.cpu_only = true})});
    return samples;
  };
  const Contained lists = preprocessor(collate(containers(false), 2), there, true);
  CHECK(floats(lists.images.stacked()) == expected(images, preprocessor.options()));
  CHECK(lists.images.stacked().device() == there);
  CHECK(lists.meta.list().size() == 2);
  // Stacked ones have been padded with zeros by collate, which are pixels to the preprocessor.
  const Contained stacks = preprocessor(collate(containers(true), 2), there, true);
  CHECK(floats(stacks.images.stacked()) == Floats{1, -0.5f, -0.5f, 8, 8, 8, 8, 8, /**/ 3, 3.5f, 4, 8, 8, 8, 8, 8});
  const auto [tensor_of_tuple, number] = preprocessor(std::tuple(collate(containers(true), 2).images, 5), there, true);
  CHECK(tensor_of_tuple.shape() == Shape{2, 1, 2, 4});
  CHECK(number == 5);

  for (const auto& [container, got] : {std::pair(collate(containers(true), 1).images, "got 2 groups"),
                                       std::pair(containers(true)[0].images, "sample")})
    CHECK(missing(message_of<InvalidArgument>([&] { preprocessor(container, there, true); }),
                  {"[ImgDataPreprocessor] expected a container of one group", got}) == "");
}

TEST_CASE("run-time values: a map with inputs, or a list") {
  const ImgDataPreprocessor preprocessor({.pad_value = 8});
  const Device there = Device::host(1);
  const Value::List images{bytes({1, 1, 1}, 3), bytes({1, 1, 2}, 7)};
  const Value map = preprocessor(Value(Value::Map{{"inputs", images}, {"more", counting({1})}}), there, true);
  CHECK(floats(map.at("inputs").as_tensor()) == Floats{3, 8, 7, 8});
  CHECK(map.at("data_samples").is(Value::Type::nothing));
  CHECK(map.at("more").as_tensor().device() == there);
  CHECK(map.as_map().size() == 3);
  const Value kept = preprocessor(Value(Value::Map{{"inputs", images}, {"data_samples", 5}}), there, true);
  CHECK(kept.at("data_samples").as_integer() == 5);
  const Value list = preprocessor(Value(Value::List{bytes({1, 1, 1, 2}, 3), "text"}), there, true);
  CHECK(floats(list.at(std::size_t{0}).as_tensor()) == Floats{3, 4});
  CHECK(list.at(std::size_t{1}).as_string() == "text");

  const auto error_of = [&](const Value& value) {
    return message_of<InvalidArgument>([&] { preprocessor(value, there, true); });
  };
  CHECK(missing(error_of(Value("text")), {"[ImgDataPreprocessor] expected a map or a list, got string"}) == "");
  CHECK(missing(error_of(Value(Value::Map{{"inputs", 5}})), {"a tensor or a list of tensors as inputs, got integer"}) ==
        "");
  CHECK(missing(error_of(Value(Value::Map{{"inputs", Value::List{bytes({1, 1, 1}), "text"}}})),
                {"expected tensors in the list of inputs, got string at 1"}) == "");
  CHECK(missing(error_of(Value(Value::Map{{"input", 5}})), {"one of the keys {'input'}, got 'inputs'"}) == "");
  CHECK(missing(error_of(Value(Value::List{})), {"an index below 0, got 0"}) == "");
}

TEST_CASE("options that make no sense") {
  const auto error_of = [](const Options& options) {
    return message_of<InvalidArgument>([&] { ImgDataPreprocessor preprocessor(options); });
  };
  CHECK(missing(error_of({.bgr_to_rgb = true, .rgb_to_bgr = true}),
                {"[ImgDataPreprocessor]", "bgr_to_rgb and rgb_to_bgr"}) == "");
  CHECK(missing(error_of({.mean = {1}}), {"mean and std or neither", "mean of 1 values and a std of 0"}) == "");
  CHECK(missing(error_of({.std = {1, 2, 3}}), {"mean of 0 values and a std of 3"}) == "");
  CHECK(missing(error_of({.mean = {1, 2}, .std = {1}}), {"1 or 3 values, got 2 for the mean"}) == "");
  CHECK(missing(error_of({.mean = {1}, .std = {1, 2, 3, 4}}), {"1 or 3 values, got 4 for the std"}) == "");
  CHECK(missing(error_of({.mean = {1}, .std = {1, 0, 3}}), {"a std other than zero, got 0 for channel 1"}) == "");
  CHECK(missing(error_of({.pad_size_divisor = 0}), {"pad_size_divisor of at least 1, got 0"}) == "");
}

TEST_CASE("images that do not fit") {
  const auto error_of = [](const auto& images, const Options& options = {}) {
    return message_of<InvalidArgument>([&] { ImgDataPreprocessor{options}(images, Device::cpu(), true); });
  };
  const Options three{.mean = {1, 2, 3}, .std = {1}};
  CHECK(missing(error_of(ImageList{bytes({1, 2, 2})}, three),
                {"3 channels for a mean or std of 3 values, got u8[1, 2, 2]"}) == "");
  CHECK(missing(error_of(bytes({1, 4, 2, 2}), {.mean = {1}, .std = {1, 2, 3}}), {"3 channels", "u8[1, 4, 2, 2]"}) ==
        "");
  CHECK(missing(error_of(ImageList{bytes({4, 2, 2})}, {.rgb_to_bgr = true}),
                {"3 channels to convert, got u8[4, 2, 2]"}) == "");
  CHECK(missing(error_of(bytes({3, 2, 2})), {"images [n, channels, height, width], got u8[3, 2, 2]"}) == "");
  CHECK(missing(error_of(Tensor()), {"images [n, channels, height, width], got undefined"}) == "");
  CHECK(missing(error_of(ImageList{}), {"at least one image, got an empty list"}) == "");
  CHECK(missing(error_of(ImageList{bytes({3, 2, 2}), bytes({2, 2})}),
                {"of one rank, got u8[3, 2, 2]", "at 1, u8[2, 2]"}) == "");
  CHECK(missing(error_of(ImageList{bytes({2, 2})}), {"images [channels, height, width], got u8[2, 2]", "at 0"}) == "");
  CHECK(missing(error_of(ImageList{bytes({3, 2, 2}), bytes({1, 2, 2})}),
                {"of as many channels, got u8[3, 2, 2]", "at 1, u8[1, 2, 2]"}) == "");
  CHECK(missing(error_of(ImageList{bytes({3, 2, 2}), Tensor()}), {"of one rank", "at 1, undefined"}) == "");
}

TEST_CASE("preprocessing is differentiable in the images") {
  const ImgDataPreprocessor preprocessor(
      {.mean = {1, 2, 3}, .std = {2, 4, 8}, .pad_size_divisor = 2, .pad_value = 9, .bgr_to_rgb = true});
  const Tensor a = counting({3, 1, 2}).to(DType::f32).set_requires_grad();
  const Tensor b = counting({3, 2, 1}).to(DType::f32).set_requires_grad();
  sum(preprocessor(ImageList{a, b}, Device::host(1), true)).backward();
  CHECK(floats(a.grad()) == Floats{0.125f, 0.125f, 0.25f, 0.25f, 0.5f, 0.5f});
  CHECK(floats(b.grad()) == Floats{0.125f, 0.125f, 0.25f, 0.25f, 0.5f, 0.5f});
  const Tensor c = counting({1, 3, 1, 1}).to(DType::f32).set_requires_grad();
  sum(preprocessor(c, Device::host(1), true)).backward();
  CHECK(floats(c.grad()) == Floats{0.125f, 0.25f, 0.5f});
}
