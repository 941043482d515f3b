#include "lockstep/tensor/data/collate.h"

#include "support/catch.h"

using namespace lockstep;

namespace {

struct Picture {
  Tensor image, mask;
  void fields(auto& f) { f(image, mask); }
};

struct LabelledBatch {
  Picture picture;
  Tensor label;
  std::vector<std::string> name;
  void fields(auto& f) { f(picture, label, name); }
};
struct Labelled {
  using collated = LabelledBatch;
  Picture picture;
  int label = 0;
  std::string name;
  void fields(auto& f) { f(picture, label, name); }
};

template <class T>
void check(const Tensor& tensor, DType dtype, const Shape& shape, const std::vector<T>& values) {
  CHECK(tensor.dtype() == dtype);
  CHECK(tensor.shape() == shape);
  CHECK(tensor.to_vector<T>() == values);
}

}  // namespace

TEST_CASE("collate: numbers become tensors of their own dtype") {
  check<float>(collate(std::vector<float>{1.5f, 2}), DType::f32, {2}, {1.5f, 2});
  check<double>(collate(std::vector<double>{1.5, 2}), DType::f64, {2}, {1.5, 2});
  check<std::int64_t>(collate(std::vector<std::int64_t>{1, -2}), DType::i64, {2}, {1, -2});
  check<std::int32_t>(collate(std::vector<int>{1, -2}), DType::i32, {2}, {1, -2});
  check<std::int64_t>(collate(std::vector<short>{1, -2}), DType::i64, {2}, {1, -2});
  check<std::uint8_t>(collate(std::vector<std::uint8_t>{1, 255}), DType::u8, {2}, {1, 255});
  CHECK(collate(std::vector<std::string>{"a", "b"}) == std::vector<std::string>{"a", "b"});
}

TEST_CASE("collate: tensors are stacked, at any depth of tuples, vectors, maps and optionals") {
  const auto row = [](double value) { return full({2}, value); };
  check<float>(collate(std::vector<Tensor>{row(1), row(2), row(3)}), DType::f32, {3, 2}, {1, 1, 2, 2, 3, 3});
  using Sample = std::tuple<std::pair<Tensor, bool>, std::vector<Tensor>, std::map<std::string, std::optional<Tensor>>,
                            std::array<double, 2>>;
  const auto sample = [&](double v) {
    return Sample{{row(v), v > 1}, {row(v + 10), row(v + 20)}, {{"a", row(v + 30)}, {"b", std::nullopt}}, {v, -v}};
  };
  const auto [pair, list, map, array] = collate(std::vector<Sample>{sample(1), sample(2)});
  check<float>(pair.first, DType::f32, {2, 2}, {1, 1, 2, 2});
  check<bool>(pair.second, DType::boolean, {2}, {false, true});
  REQUIRE(list.size() == 2);
  check<float>(list[1], DType::f32, {2, 2}, {21, 21, 22, 22});
  check<float>(*map.at("a"), DType::f32, {2, 2}, {31, 31, 32, 32});
  CHECK_FALSE(map.at("b"));
  check<double>(array[1], DType::f64, {2}, {-1, -2});
}

TEST_CASE("collate: structs, with tensors alone and with numbers") {
  const auto picture = [](double v) { return Picture{full({1, 2}, v), full({}, -v)}; };
  const Picture both = collate(std::vector<Picture>{picture(1), picture(2)});
  check<float>(both.image, DType::f32, {2, 1, 2}, {1, 1, 2, 2});
  check<float>(both.mask, DType::f32, {2}, {-1, -2});
  const LabelledBatch batch = collate(std::vector<Labelled>{{picture(1), 7, "x"}, {picture(2), 8, "y"}});
  check<float>(batch.picture.mask, DType::f32, {2}, {-1, -2});
  check<std::int32_t>(batch.label, DType::i32, {2}, {7, 8});
  CHECK(batch.name == std::vector<std::string>{"x", "y"});
}

TEST_CASE("collate: values") {
  const auto sample = [](std::int64_t v) {
    return Value(Value::Map{
        {"image", full({2}, static_cast<double>(v))}, {"label", v}, {"more", Value::List{0.5, v > 1, "t", Value()}}});
  };
  const Value batch = collate(std::vector<Value>{sample(1), sample(2)});
  check<float>(batch.at("image").as_tensor(), DType::f32, {2, 2}, {1, 1, 2, 2});
  check<std::int64_t>(batch.at("label").as_tensor(), DType::i64, {2}, {1, 2});
  const Value& more = batch.at("more");
  check<double>(more.at(0).as_tensor(), DType::f64, {2}, {0.5, 0.5});
  check<bool>(more.at(1).as_tensor(), DType::boolean, {2}, {false, true});
  CHECK(more.at(2).at(1).as_string() == "t");
  CHECK(more.at(3).is(Value::Type::nothing));
  CHECK_THROWS_AS(collate(std::vector<Value>{Value(1), Value("a")}), InvalidArgument);
}

TEST_CASE("collate: samples that differ are named") {
  const auto message = [](const auto& samples) {
    try {
      collate(samples);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("no exception");
  };
  CHECK(message(std::vector<Tensor>{ones({2}), ones({2}), ones({3})}) ==
        "[collate] expected tensors of one shape, dtype and device, got f32[2] on cpu in sample 0 and f32[3] on cpu in "
        "sample 2 of the batch");
  CHECK(message(std::vector<Tensor>{ones({2}), ones({2}).to(DType::f64)}).find("f64[2]") != std::string::npos);
  CHECK(message(std::vector<Tensor>{ones({2}), Tensor()}).find("undefined in sample 1") != std::string::npos);
  CHECK(message(std::vector<Tensor>{Tensor(), Tensor()}) ==
        "[collate] expected tensors, got an undefined one in sample 0 of the batch");
  CHECK(message(std::vector<std::vector<int>>{{1}, {1, 2}}) ==
        "[collate] expected lists of one length, got 1 in sample 0 and 2 in sample 1 of the batch");
  CHECK(message(std::vector<std::map<std::string, int>>{{{"a", 1}}, {{"b", 1}}}).find("same keys") !=
        std::string::npos);
  CHECK(message(std::vector<std::optional<int>>{1, std::nullopt}).find("optionals") != std::string::npos);
  CHECK(message(std::vector<Tensor>{}) != "no exception");
}
