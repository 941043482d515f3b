// DataContainer by itself, and what collate makes of it.
#include "lockstep/parallel/openmmlab/data/data_container.h"

#include "lockstep/parallel/openmmlab/data/data_sample.h"
#include "lockstep/tensor/data/collate.h"
#include "parallel/support.h"

using namespace parallel_test;

namespace {

using Images = DataContainer<Tensor>;

struct ImageSample {
  Images image;
  std::map<std::string, Images> more;
  std::vector<DataContainer<int>> numbers;
  std::optional<DataContainer<std::string>> name;
  void fields(auto& f) { f(image, more, numbers, name); }
};

// [channels, height, width], all elements alike.
Tensor image(double value, std::int64_t height, std::int64_t width, std::int64_t channels = 1) {
  return full({channels, height, width}, value, {.dtype = DType::f64});
}
std::vector<Images> images(int count, DataContainerOptions options) {
  std::vector<Images> samples;
  for (int i = 0; i < count; ++i) samples.emplace_back(image(i, 2, 2), options);
  return samples;
}
std::string collate_error(const std::vector<Images>& samples) {
  return message_of<InvalidArgument>([&] { collate(samples, 2); });
}

}  // namespace

TEST_CASE("a container holds a value and says how it is batched") {
  const Images plain(counting({2, 3}));
  CHECK_FALSE(plain.stack());
  CHECK(plain.padding_value() == 0);
  CHECK_FALSE(plain.cpu_only());
  CHECK(plain.pad_dims() == 2);
  CHECK(plain.datatype() == "f64 tensor");
  CHECK(plain.size() == Shape{2, 3});
  CHECK(plain.size(-1) == 3);
  CHECK(plain.dim() == 2);
  CHECK(values(plain.data()) == Doubles{1, 2, 3, 4, 5, 6});
  CHECK_FALSE(plain.is_batch());
  CHECK(plain.sample_count() == 1);

  const DataContainer set(std::string("text"), {.stack = true, .padding_value = 7, .cpu_only = true, .pad_dims = {}});
  CHECK(set.stack());
  CHECK(set.padding_value() == 7);
  CHECK(set.cpu_only());
  CHECK_FALSE(set.pad_dims().has_value());
  CHECK(set.data() == "text");

  for (const int dims : {1, 2, 3}) CHECK(Images(counting({1}), {.pad_dims = dims}).pad_dims() == dims);
  for (const int dims : {-1, 0, 4})
    CHECK(missing(message_of<InvalidArgument>([&] { Images(counting({1}), {.pad_dims = dims}); }),
                  {"[DataContainer] expected pad_dims of none, 1, 2 or 3, got " + std::to_string(dims)}) == "");
}

TEST_CASE("what a container does not hold is an error that says what it does") {
  const DataContainer<ImageMeta> meta{ImageMeta()};
  CHECK(meta.datatype() == "lockstep::ImageMeta");
  CHECK(missing(message_of<InvalidArgument>([&] { (void)meta.size(); }),
                {"[DataContainer] expected a tensor for size, got lockstep::ImageMeta"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { (void)meta.size(0); }), {"for size, got lockstep::ImageMeta"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { (void)DataContainer(5).dim(); }), {"for dim, got int"}) == "");
  CHECK(missing(message_of<InvalidArgument>([] { (void)Images().dim(); }), {"for dim, got undefined tensor"}) == "");

  const Images sample(counting({2}));
  for (const std::string& message : {message_of<InvalidArgument>([&] { (void)sample.list(); }),
                                     message_of<InvalidArgument>([&] { (void)sample.stacked(); }),
                                     message_of<InvalidArgument>([&] { (void)sample.group_count(); })})
    CHECK(missing(message, {"[DataContainer] expected a batch", "got one of a sample, of type f64 tensor"}) == "");

  const Images lists = Images::of_lists({{counting({2})}, {counting({3}), counting({1})}});
  CHECK(lists.is_batch());
  CHECK(lists.group_count() == 2);
  CHECK(lists.sample_count() == 3);
  CHECK(lists.list(1).size() == 2);
  CHECK(missing(message_of<InvalidArgument>([&] { (void)lists.stacked(); }),
                {"expected a batch of stacked tensors for stacked, got a batch of 2 lists"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { (void)lists.data(); }),
                {"expected a sample's container for data, got a batch of 2 lists"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { (void)lists.list(2); }), {"a group below 2, got 2"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { (void)lists.size(0); }), {"got a batch of 2 lists"}) == "");

  const Images stacks = Images::of_stacks({counting({4, 1})});
  CHECK(stacks.sample_count() == 4);
  CHECK(stacks.stacked().shape() == Shape{4, 1});
  CHECK(missing(message_of<InvalidArgument>([&] { (void)stacks.list(); }),
                {"expected a batch of lists for list, got a batch of 1 stacked tensors"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { (void)stacks.stacked(1); }), {"a group below 1, got 1"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { Images::of_lists({}); }), {"at least one group"}) == "");
}

TEST_CASE("collate makes a group for every samples_per_device samples, the last may be smaller") {
  for (const int count : {1, 4, 5})
    for (const int per_device : {1, 2, 3, 9}) {
      CAPTURE(count, per_device);
      const Images lists = collate(images(count, {}), per_device);
      const Images kept = collate(images(count, {.stack = true, .cpu_only = true}), per_device);
      const Images stacks = collate(images(count, {.stack = true}), per_device);
      const auto groups = static_cast<std::size_t>((count + per_device - 1) / per_device);
      REQUIRE(std::vector{lists.group_count(), kept.group_count(), stacks.group_count()} ==
              std::vector{groups, groups, groups});
      CHECK(stacks.is_stacked());
      int next = 0;
      for (std::size_t group = 0; group < groups; ++group) {
        const int size = std::min(per_device, count - static_cast<int>(group) * per_device);
        REQUIRE(static_cast<int>(lists.list(group).size()) == size);
        REQUIRE(static_cast<int>(kept.list(group).size()) == size);
        REQUIRE(stacks.stacked(group).shape() == Shape{size, 1, 2, 2});
        for (int i = 0; i < size; ++i, ++next) {
          const auto at = static_cast<std::size_t>(i);
          CHECK(values(lists.list(group)[at]) == Doubles(4, next));
          CHECK(values(kept.list(group)[at]) == Doubles(4, next));
          CHECK(values(stacks.stacked(group)[i]) == Doubles(4, next));
        }
      }
      CHECK(next == count);
      CHECK(stacks.sample_count() == count);
    }
  CHECK(collate(images(3, {})).group_count() == 3);  // one sample per device unless told otherwise
  for (const int per_device : {0, -1})
    CHECK(missing(message_of<InvalidArgument>([&] { collate(images(2, {}), per_device); }),
                  {"[collate] expected at least one sample per device, got " + std::to_string(per_device)}) == "");
}

TEST_CASE("values that are not stacked go into their lists as they are") {
  for (const bool cpu_only : {false, true}) {
    const auto samples = images(3, {.stack = cpu_only, .cpu_only = cpu_only});
    const Images batch = collate(samples, 2);
    CHECK(batch.list(0)[1].identity() == samples[1].data().identity());
    CHECK(batch.list(1)[0].identity() == samples[2].data().identity());
  }
  ImageMeta a, b;
  a.img_path = "a.jpg";
  b.flip = true;
  const auto metas = collate(std::vector{DataContainer(a, {.cpu_only = true}), DataContainer(b, {.cpu_only = true})});
  CHECK(metas.list(0) == std::vector{a});
  CHECK(metas.list(1) == std::vector{b});
}

TEST_CASE("stacked tensors are padded to the largest of their group, at the end") {
  const std::vector<Images> samples{Images(image(1, 1, 3), {.stack = true, .padding_value = 0.5}),
                                    Images(image(2, 2, 2), {.stack = true, .padding_value = -1}),
                                    Images(image(3, 1, 1), {.stack = true})};
  const Images batch = collate(samples, 2);
  CHECK(batch.stacked(0).shape() == Shape{2, 1, 2, 3});
  CHECK(values(batch.stacked(0)) == Doubles{1, 1, 1, 0.5, 0.5, 0.5, /**/ 2, 2, -1, 2, 2, -1});
  CHECK(batch.stacked(1).shape() == Shape{1, 1, 1, 1});  // not the batch's largest
  CHECK(values(batch.stacked(1)) == Doubles{3});

  // All three dims at once, in the dtype of the tensors.
  const auto bytes = [](Shape shape, std::uint8_t value) {
    return DataContainer(full(shape, value, {.dtype = DType::u8}),
                         {.stack = true, .padding_value = 255, .pad_dims = 3});
  };
  const Images clips = collate(std::vector{bytes({1, 1, 2, 1}, 7), bytes({1, 2, 1, 2}, 9)}, 2);
  CHECK(clips.stacked().dtype() == DType::u8);
  CHECK(clips.stacked().shape() == Shape{2, 1, 2, 2, 2});
  CHECK(clips.stacked().to_vector<std::uint8_t>() ==
        std::vector<std::uint8_t>{7, 255, 7, 255, 255, 255, 255, 255, /**/ 9, 9, 255, 255, 9, 9, 255, 255});

  // Only the last dim.
  const auto row = [](Shape shape, double value) {
    return Images(full(shape, value, {.dtype = DType::f64}), {.stack = true, .padding_value = 5, .pad_dims = 1});
  };
  CHECK(values(collate(std::vector{row({2, 1}, 1), row({2, 2}, 2)}, 2).stacked()) == Doubles{1, 5, 1, 5, 2, 2, 2, 2});
  // Without elements.
  CHECK(values(collate(std::vector{row({1, 0}, 1), row({1, 2}, 2)}, 2).stacked()) == Doubles{5, 5, 2, 2});
  CHECK(collate(std::vector{row({0, 1}, 1), row({0, 2}, 2)}, 2).stacked().shape() == Shape{2, 0, 2});

  // No dims to pad: any rank.
  const Images numbers = collate(std::vector{Images(tensor({1}, {}), {.stack = true, .pad_dims = {}}),
                                             Images(tensor({2}, {}), {.stack = true, .pad_dims = {}})},
                                 2);
  CHECK(values(numbers.stacked()) == Doubles{1, 2});
}

TEST_CASE("tensors that cannot be stacked") {
  const auto of = [](const Tensor& x, std::optional<int> pad_dims) {
    return Images(x, {.stack = true, .pad_dims = pad_dims});
  };
  CHECK(missing(collate_error({of(counting({2, 3}), 1), of(counting({3}), 1)}),
                {"[collate] expected tensors of more than 1 dimensions", "f64[3]", "sample 1 of the batch"}) == "");
  CHECK(missing(collate_error({of(counting({4, 3}), 2)}), {"more than 2 dimensions", "f64[4, 3]", "sample 0"}) == "");
  CHECK(collate_error({of(counting({1, 4, 3}), 2), of(counting({1, 2, 9}), 2)}) == "no error");
  // The third and fourth sample are a group of their own, which need not fit the first.
  CHECK(missing(collate_error({of(counting({1, 4, 3}), 2), of(counting({1, 4, 3}), 2), of(counting({2, 4, 3}), 2),
                               of(counting({3, 4, 3}), 2)}),
                {"one shape but for the last 2 dimensions", "f64[2, 4, 3] on cpu in sample 2",
                 "f64[3, 4, 3] on cpu in sample 3 of the batch"}) == "");
  CHECK(missing(collate_error({of(counting({1, 4, 3}), 2), of(counting({1, 1, 4, 3}), 2)}),
                {"f64[1, 4, 3]", "f64[1, 1, 4, 3]"}) == "");
  CHECK(missing(collate_error({of(counting({4, 3}), {}), of(counting({4, 2}), {})}),
                {"one dtype and device and one shape, got f64[4, 3] on cpu in sample 0 and f64[4, 2]"}) == "");
  CHECK(missing(collate_error({of(counting({2, 3}), 1), of(counting({2, 3}).to(DType::f32), 1)}),
                {"f64[2, 3]", "f32[2, 3]"}) == "");
  CHECK(missing(collate_error({of(counting({2, 3}), 1), of(counting({2, 3}, Device::host(1)), 1)}),
                {"[collate] expected tensors of one dtype and device", "on cpu", "on host:1"}) == "");
  CHECK(missing(collate_error({of(counting({2, 3}), 1), of(Tensor(), 1)}),
                {"expected tensors to stack, got an undefined one in sample 1"}) == "");
  const auto bytes = [](std::int64_t width, double value) {
    return Images(zeros({1, 1, width}, {.dtype = DType::u8}), {.stack = true, .padding_value = value});
  };
  CHECK(collate_error({bytes(2, 0), bytes(3, 255)}) == "no error");
  CHECK(collate_error({bytes(2, 0), bytes(3, -1)}) == "[collate] expected padding that u8 has, got -1");
  CHECK(missing(message_of<InvalidArgument>([&] { collate(std::vector{DataContainer(1.5, {.stack = true})}); }),
                {"expected a tensor for collate with stack = true, got double"}) == "");
}

TEST_CASE("the flags of a batch agree, and carry over") {
  const DataContainerOptions options{.stack = true, .padding_value = 3, .pad_dims = 1};
  const auto of = [](DataContainerOptions flags) { return Images(counting({2, 2, 2, 2}), flags); };
  const Images batch = collate(std::vector{of(options), of({.stack = true, .padding_value = 4, .pad_dims = 1})});
  CHECK(batch.stack());
  CHECK(batch.pad_dims() == 1);
  CHECK(batch.padding_value() == 3);
  CHECK_FALSE(batch.cpu_only());
  CHECK(collate(std::vector{of({.cpu_only = true, .pad_dims = 3})}).cpu_only());
  CHECK(collate(std::vector{of({.cpu_only = true, .pad_dims = 3})}).pad_dims() == 3);

  const std::string first = "{stack = true, cpu_only = false, pad_dims = 1} in sample 0";
  CHECK(missing(collate_error({of(options), of(options), of({.stack = false, .pad_dims = 1})}),
                {"[collate] expected containers with the same stack, cpu_only and pad_dims, got " + first,
                 "{stack = false, cpu_only = false, pad_dims = 1} in sample 2 of the batch"}) == "");
  CHECK(missing(collate_error({of(options), of({.stack = true, .cpu_only = true, .pad_dims = 1})}),
                {first, "{stack = true, cpu_only = true, pad_dims = 1} in sample 1"}) == "");
  CHECK(missing(collate_error({of(options), of({.stack = true, .pad_dims = {}})}),
                {first, "{stack = true, cpu_only = false, pad_dims = none} in sample 1"}) == "");
  CHECK(missing(collate_error({batch}), {"expected a sample's container", "got a batch of 2 stacked tensors"}) == "");
}

TEST_CASE("containers in containers are collated element by element") {
  using Row = std::tuple<ImageSample, double, std::string, std::pair<Images, Tensor>>;
  std::vector<Row> rows;
  for (int i = 0; i < 3; ++i) {
    const Images stacked(image(i, 1 + i, 1), {.stack = true});
    rows.emplace_back(ImageSample{stacked,
                                  {{"x", Images(image(10 + i, 1, 1))}},
                                  {DataContainer(i), DataContainer(-i)},
                                  DataContainer(std::to_string(i), {.cpu_only = true})},
                      i / 2.0, std::string(1, 'a' + static_cast<char>(i)), std::pair(stacked, tensor({1.0 * i}, {})));
  }
  const std::tuple<ImageSample, Tensor, std::vector<std::string>, std::pair<Images, Tensor>> batch = collate(rows, 2);
  const ImageSample& sample = std::get<0>(batch);
  CHECK(sample.image.stacked(0).shape() == Shape{2, 1, 2, 1});
  CHECK(sample.image.stacked(1).shape() == Shape{1, 1, 3, 1});
  CHECK(values(sample.more.at("x").list(1)[0]) == Doubles{12});
  CHECK(sample.numbers[1].list(0) == std::vector{0, -1});
  CHECK(sample.name->list(1) == std::vector<std::string>{"2"});
  CHECK(values(std::get<1>(batch)) == Doubles{0, 0.5, 1});
  CHECK(std::get<2>(batch) == std::vector<std::string>{"a", "b", "c"});
  CHECK(std::get<3>(batch).first.group_count() == 2);
  CHECK(values(std::get<3>(batch).second) == Doubles{0, 1, 2});
}

TEST_CASE("padding and stacking are differentiable") {
  const Tensor a = counting({1, 1, 2}).set_requires_grad(), b = counting({1, 2, 1}).set_requires_grad();
  const Images batch =
      collate(std::vector{Images(a, {.stack = true, .padding_value = 9}), Images(b, {.stack = true})}, 2);
  CHECK(values(batch.stacked().detach()) == Doubles{1, 2, 9, 9, 1, 0, 2, 0});
  const Tensor y = batch.stacked();
  sum(y * y * y).backward();
  CHECK(values(a.grad()) == Doubles{3, 12});
  CHECK(values(b.grad()) == Doubles{3, 12});
}
