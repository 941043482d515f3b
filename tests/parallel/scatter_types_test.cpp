// scatter: structured values.
#include <any>
#include <array>
#include <deque>
#include <list>
#include <memory>
#include <variant>

#include "parallel/support.h"

using namespace parallel_test;

namespace {

struct TypedSample {
  Tensor image, mask;
  double scale = 1;
  void fields(auto& f) { f(image, mask, scale); }
};

// Not copied by anybody's rules but its own.
struct Opaque {
  std::shared_ptr<int> shared = std::make_shared<int>(7);
};

// A container that is divided already, as data containers are.
struct Divided {
  std::vector<Tensor> parts;
  template <class F>
  void for_each_tensor(F&& f) {
    if constexpr (requires { f.divided(*this); })
      f.divided(*this);
    else
      lockstep::for_each_tensor(parts, f);
  }
  std::size_t piece_count() const { return parts.size(); }
  void take_piece(std::size_t piece, Device device) { parts = {parts[piece].to(device)}; }
};

}  // namespace

TEST_CASE("containers are divided element by element and keep their types") {
  const auto devices = devices_at({1, 3});
  const Tensor x = counting({4}), y = counting({4, 2}, Device::cpu(), 10);

  const std::vector<std::tuple<Tensor, int>> tuples = scatter(std::tuple(x, 5), devices);
  REQUIRE(tuples.size() == 2);
  CHECK(values(std::get<0>(tuples[1])) == Doubles{3, 4});
  CHECK(std::get<1>(tuples[1]) == 5);

  const std::vector<std::pair<Tensor, Tensor>> pairs = scatter(std::pair(x, y), devices);
  CHECK(values(pairs[1].second) == Doubles{14, 15, 16, 17});
  CHECK(pairs[1].second.device() == device_at(3));

  const std::vector<std::vector<Tensor>> lists = scatter(std::vector{x, y}, devices);
  CHECK(values(lists[0][0]) == Doubles{1, 2});
  CHECK(values(lists[0][1]) == Doubles{10, 11, 12, 13});

  const std::vector<std::array<Tensor, 2>> arrays = scatter(std::array{x, y}, devices);
  CHECK(values(arrays[1][0]) == Doubles{3, 4});

  const std::vector<std::map<std::string, Tensor>> maps =
      scatter(std::map<std::string, Tensor>{{"x", x}, {"y", y}}, devices);
  CHECK(values(maps[1].at("x")) == Doubles{3, 4});

  const std::vector<std::optional<Tensor>> optionals = scatter(std::optional(x), devices);
  CHECK(values(*optionals[0]) == Doubles{1, 2});
  CHECK_FALSE(std::get<1>(scatter(std::tuple(x, std::optional<Tensor>()), devices)[1]).has_value());
}

TEST_CASE("structs with fields, nested in containers") {
  const std::map<std::string, std::vector<TypedSample>> batch{
      {"train", {TypedSample{counting({4}), counting({4, 1}), 0.5}, TypedSample{counting({3}), Tensor(), 2}}}};
  const auto pieces = scatter(batch, first_devices(2));
  REQUIRE(pieces.size() == 2);
  const TypedSample& first = pieces[1].at("train")[0];
  CHECK(values(first.image) == Doubles{3, 4});
  CHECK(first.mask.shape() == Shape{2, 1});
  CHECK(first.scale == 0.5);
  CHECK(values(pieces[1].at("train")[1].image) == Doubles{3});
  CHECK_FALSE(pieces[1].at("train")[1].mask.defined());
}

TEST_CASE("run-time values: lists and maps are divided, the rest is copied") {
  const Value batch = Value::Map{{"image", counting({4})},
                                 {"labels", Value::List{counting({4}, Device::cpu(), 5), "text", 3, true, Value()}},
                                 {"empty", Value::List{}}};
  const std::vector<Value> pieces = scatter(batch, first_devices(2));
  REQUIRE(pieces.size() == 2);
  CHECK(values(pieces[1].at("image").as_tensor()) == Doubles{3, 4});
  CHECK(pieces[1].at("image").as_tensor().device() == device_at(1));
  const Value& labels = pieces[1].at("labels");
  CHECK(values(labels.at(0).as_tensor()) == Doubles{7, 8});
  CHECK(labels.at(1).as_string() == "text");
  CHECK(labels.at(2).as_integer() == 3);
  CHECK(labels.at(3).as_bool());
  CHECK(labels.at(4).is(Value::Type::nothing));
  CHECK(pieces[0].at("empty").as_list().empty());
}

TEST_CASE("empty containers, numbers, strings and other types: a copy per piece") {
  support::needs_devices(3);
  CHECK(scatter(5, first_devices(3)) == std::vector<int>{5, 5, 5});
  CHECK(scatter(true, first_devices(2)) == std::vector<bool>{true, true});
  CHECK(scatter(std::string("a"), first_devices(2)) == std::vector<std::string>{"a", "a"});
  CHECK(scatter(std::vector<Tensor>{}, first_devices(3)).size() == 3);
  CHECK(scatter(std::vector<bool>{true, false}, first_devices(2))[1] == std::vector<bool>{true, false});
  CHECK(scatter(std::tuple<>(), first_devices(3)).size() == 3);
  const Opaque opaque;
  const std::vector<Opaque> copies = scatter(opaque, first_devices(2));
  CHECK(copies[1].shared == opaque.shared);  // a shared handle
}

TEST_CASE("a variant is divided when it holds a tensor") {
  using Either = std::variant<int, Tensor, std::vector<Tensor>>;
  const std::tuple<Either, Either, Either> value{counting({4, 1}), 7, std::vector{counting({4}), counting({4, 2})}};
  const auto pieces = scatter(value, first_devices(2));
  REQUIRE(pieces.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto& [tensor, number, list] = pieces[i];
    CHECK(std::get<Tensor>(tensor).device() == first_devices(2)[i]);
    CHECK(std::get<Tensor>(tensor).shape() == Shape{2, 1});
    CHECK(std::get<int>(number) == 7);
    CHECK(std::get<2>(list)[1].shape() == Shape{2, 2});
  }
  CHECK(values(std::get<Tensor>(std::get<0>(pieces[1]))) == Doubles{3, 4});
}

namespace {
struct Forgotten {
  Tensor image;
  double scale;
};
struct ForgottenDeep {
  std::string name;
  int sizes[3];
  std::map<std::string, std::vector<Forgotten>> samples;
};
struct Plain {
  std::string name;
  double scale;
  std::vector<int> labels;
};
struct Shared {
  std::shared_ptr<Tensor> handle;
};
struct Directory {
  std::string name;
  std::vector<Directory> inside;
  std::map<std::string, Directory> links;
};
struct Family {
  std::vector<Family> children;
  Tensor image;
};
struct Anything {
  std::any value;
  int number;
};
}  // namespace
// What would be copied whole to every replica in silence does not compile.
static_assert(tree::hides_tensors<Forgotten>());
static_assert(tree::hides_tensors<ForgottenDeep>());
static_assert(tree::hides_tensors<std::optional<Forgotten>>());
static_assert(tree::hides_tensors<std::variant<int, Forgotten>>());
static_assert(tree::hides_tensors<std::list<Tensor>>());
static_assert(tree::hides_tensors<std::deque<std::pair<int, Tensor>>>());
static_assert(!tree::hides_tensors<Plain>() && !tree::hides_tensors<Shared>() && !tree::hides_tensors<Value>());
static_assert(tree::hides_tensors<Family>() && !tree::hides_tensors<Directory>() && !tree::hides_tensors<Anything>());
static_assert(!tree::hides_tensors<std::string>() && !tree::hides_tensors<std::vector<bool>>());
static_assert(!tree::hides_tensors<std::tuple<Tensor, int, std::variant<int, Tensor>>>());

TEST_CASE("values without tensors follow the count of the tensors") {
  const auto pieces = scatter(std::tuple(std::string("a"), counting({2}), 3.5), first_devices(5));
  REQUIRE(pieces.size() == 2);
  CHECK(std::get<2>(pieces[1]) == 3.5);
}

TEST_CASE("tensors that give different counts are an error that names both") {
  support::needs_devices(4);
  const std::string message = message_of<InvalidArgument>([] {
    scatter(std::pair(counting({8, 3}), counting({2})), first_devices(4));
  });
  CHECK(missing(message, {"4 pieces", "f64[8, 3] on cpu", "2 pieces", "f64[2] on cpu"}) == "");
  // The same count from different sizes fits.
  CHECK(scatter(std::pair(counting({8}), counting({7})), first_devices(4)).size() == 4);
  // The same count on different devices does not.
  CHECK_THROWS_AS(scatter(std::pair(counting({1}), counting({10})), first_devices(2), 0, ScatterPolicy::sizes({1, 0})),
                  InvalidArgument);
}

TEST_CASE("nothing is moved when the value does not fit") {
  support::needs_devices(4);
  const std::uint64_t before = detail::moved_bytes();
  CHECK_THROWS_AS(scatter(std::pair(counting({8}, device_at(0)), counting({2})), first_devices(4)), InvalidArgument);
  CHECK(detail::moved_bytes() == before);
}

TEST_CASE("a container that is divided already gives its parts") {
  const Divided container{{counting({2}), counting({5})}};
  const auto pieces = scatter(std::tuple(container, counting({4})), devices_at({2, 1}));
  REQUIRE(pieces.size() == 2);
  REQUIRE(std::get<0>(pieces[1]).parts.size() == 1);
  CHECK(std::get<0>(pieces[1]).parts[0].shape() == Shape{5});
  CHECK(std::get<0>(pieces[1]).parts[0].device() == device_at(1));
  CHECK(scatter(container, first_devices(3)).size() == 2);
  const std::string message =
      message_of<InvalidArgument>([&] { scatter(std::tuple(container, counting({9})), first_devices(3)); });
  CHECK(missing(message, {"2 pieces", "3 pieces", "f64[9]"}) == "");
  CHECK_THROWS_AS(scatter(container, first_devices(1)), InvalidArgument);
}
