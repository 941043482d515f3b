// gather: structured outputs and their static types.
#include <array>

#include "parallel/support.h"

using namespace parallel_test;

namespace {

struct Detection {
  Tensor boxes;
  std::optional<Tensor> masks;
  std::vector<Tensor> levels;
  void fields(auto& f) { f(boxes, masks, levels); }
};

struct GatheredReport {
  Tensor logits;
  std::vector<double> accuracy;
  std::vector<std::string> notes;
  void fields(auto& f) { f(logits, accuracy, notes); }
};
struct Report {
  using gathered = GatheredReport;
  Tensor logits;
  double accuracy = 0;
  std::string note;
  void fields(auto& f) { f(logits, accuracy, note); }
};

template <class R, class G>
constexpr bool gathers_to = std::is_same_v<gathered_t<R>, G>;

static_assert(gathers_to<Tensor, Tensor>);
static_assert(gathers_to<Value, Value>);
static_assert(gathers_to<float, std::vector<float>>);
static_assert(gathers_to<bool, std::vector<bool>>);
static_assert(gathers_to<std::string, std::vector<std::string>>);
static_assert(gathers_to<std::tuple<Tensor, int>, std::tuple<Tensor, std::vector<int>>>);
static_assert(gathers_to<std::pair<Tensor, double>, std::pair<Tensor, std::vector<double>>>);
static_assert(gathers_to<std::array<Tensor, 3>, std::array<Tensor, 3>>);
static_assert(gathers_to<std::vector<double>, std::vector<std::vector<double>>>);
static_assert(gathers_to<std::map<std::string, double>, std::map<std::string, std::vector<double>>>);
static_assert(gathers_to<std::unordered_map<int, Tensor>, std::unordered_map<int, Tensor>>);
static_assert(gathers_to<std::optional<int>, std::optional<std::vector<int>>>);
static_assert(gathers_to<Detection, Detection>);
static_assert(gathers_to<std::vector<Report>, std::vector<GatheredReport>>);
static_assert(std::is_void_v<gathered_t<void>>);

Tensor on(int device, double first) { return counting({2}, device_at(device), first); }

}  // namespace

TEST_CASE("numbers and strings: a vector with one per replica, for every number of replicas") {
  CHECK(gather(std::vector<int>{4, 5}, Device::cpu()) == std::vector<int>{4, 5});
  CHECK(gather(std::vector<bool>{true, false}, Device::cpu()) == std::vector<bool>{true, false});
  CHECK(gather(std::vector<double>{1.5}, Device::cpu()) == Doubles{1.5});
  CHECK(gather(std::vector<std::string>{"a", "b"}, Device::cpu()) == std::vector<std::string>{"a", "b"});
}

TEST_CASE("containers are gathered element by element") {
  using Output = std::tuple<Tensor, int, std::vector<Tensor>, std::array<Tensor, 1>, std::pair<Tensor, std::string>>;
  const std::vector<Output> outputs{{on(0, 1), 7, {on(0, 10), on(0, 20)}, {on(0, 30)}, {on(0, 40), "a"}},
                                    {on(1, 3), 8, {on(1, 12), on(1, 22)}, {on(1, 32)}, {on(1, 42), "b"}}};
  const auto joined = gather(outputs, device_at(3));
  CHECK(values(std::get<0>(joined)) == Doubles{1, 2, 3, 4});
  CHECK(std::get<0>(joined).device() == device_at(3));
  CHECK(std::get<1>(joined) == std::vector<int>{7, 8});
  CHECK(values(std::get<2>(joined)[1]) == Doubles{20, 21, 22, 23});
  CHECK(values(std::get<3>(joined)[0]) == Doubles{30, 31, 32, 33});
  CHECK(values(std::get<4>(joined).first) == Doubles{40, 41, 42, 43});
  CHECK(std::get<4>(joined).second == std::vector<std::string>{"a", "b"});

  const std::vector<std::vector<bool>> flags{{true, false}, {false, false}};
  CHECK(gather(flags, Device::cpu()) == std::vector<std::vector<bool>>{{true, false}, {false, false}});
}

TEST_CASE("lists of different lengths are an error that names the replica and both") {
  const std::vector<std::vector<Tensor>> outputs{{on(0, 1)}, {on(1, 1), on(1, 2)}};
  CHECK(missing(message_of<InvalidArgument>([&] { gather(outputs, Device::cpu()); }),
                {"1 from replica 0", "2 from replica 1"}) == "");
}

TEST_CASE("maps with different keys are an error that names them") {
  using Map = std::map<std::string, Tensor>;
  const std::vector<Map> outputs{{{"loss", on(0, 1)}, {"aux", on(0, 2)}}, {{"loss", on(1, 1)}, {"extra", on(1, 2)}}};
  CHECK(missing(message_of<InvalidArgument>([&] { gather(outputs, Device::cpu()); }),
                {"'aux'", "'extra'", "replica 1"}) == "");
  const std::vector<Map> fitting{{{"loss", on(0, 1)}}, {{"loss", on(1, 3)}}};
  CHECK(values(gather(fitting, Device::cpu()).at("loss")) == Doubles{1, 2, 3, 4});
  const std::vector<std::unordered_map<int, Tensor>> unordered{{{1, on(0, 1)}, {2, on(0, 5)}},
                                                               {{2, on(1, 7)}, {1, on(1, 3)}}};
  CHECK(values(gather(unordered, Device::cpu()).at(2)) == Doubles{5, 6, 7, 8});
}

TEST_CASE("optionals: all, none, or an error that names the replicas") {
  support::needs_devices(3);
  using Optional = std::optional<Tensor>;
  CHECK(values(*gather(std::vector<Optional>{on(0, 1), on(1, 3)}, Device::cpu())) == Doubles{1, 2, 3, 4});
  CHECK_FALSE(gather(std::vector<Optional>(2), Device::cpu()).has_value());
  CHECK(missing(message_of<InvalidArgument>([] {
                  gather(std::vector<Optional>{on(0, 1), std::nullopt, on(2, 3), std::nullopt}, Device::cpu());
                }),
                {"[0, 2]", "[1, 3]"}) == "");
}

TEST_CASE("a struct of tensors gathers to itself") {
  const std::vector<Detection> outputs{{on(0, 1), on(0, 10), {on(0, 20)}}, {on(1, 3), on(1, 12), {on(1, 22)}}};
  const Detection joined = gather(outputs, device_at(2));
  CHECK(values(joined.boxes) == Doubles{1, 2, 3, 4});
  CHECK(values(*joined.masks) == Doubles{10, 11, 12, 13});
  CHECK(values(joined.levels[0]) == Doubles{20, 21, 22, 23});
}

TEST_CASE("a struct with numbers gathers to the struct it names") {
  const std::vector<Report> outputs{{on(0, 1), 0.25, "a"}, {on(1, 3), 0.5, "b"}};
  const GatheredReport joined = gather(outputs, device_at(0));
  CHECK(values(joined.logits) == Doubles{1, 2, 3, 4});
  CHECK(joined.accuracy == Doubles{0.25, 0.5});
  CHECK(joined.notes == std::vector<std::string>{"a", "b"});
  CHECK(gather(std::vector<Report>{outputs[0]}, device_at(0)).accuracy == Doubles{0.25});
}

TEST_CASE("run-time values") {
  const auto output = [](int device, double first, std::string note) {
    return Value(Value::Map{{"x", on(device, first)}, {"n", Value::List{device, std::move(note), Value()}}});
  };
  const Value joined = gather(std::vector{output(0, 1, "a"), output(1, 3, "b")}, device_at(1));
  CHECK(values(joined.at("x").as_tensor()) == Doubles{1, 2, 3, 4});
  CHECK(joined.at("n").at(0).at(1).as_integer() == 1);
  CHECK(joined.at("n").at(1).at(0).as_string() == "a");
  CHECK(joined.at("n").at(2).is(Value::Type::nothing));
  CHECK(missing(message_of<InvalidArgument>([] {
                  gather(std::vector<Value>{3, "text"}, Device::cpu());
                }),
                {"integer", "replica 0", "string", "replica 1"}) == "");
  CHECK_THROWS_AS(gather(std::vector<Value>{Value::List{1}, Value::List{1, 2}}, Device::cpu()), InvalidArgument);
  CHECK_THROWS_AS(gather(std::vector<Value>{Value::Map{{"a", 1}}, Value::Map{{"b", 1}}}, Device::cpu()),
                  InvalidArgument);
}

TEST_CASE("scatter and gather are inverse to each other") {
  for (const auto& devices : device_sets()) {
    const std::vector<Value> batch{counting({11, 2}, devices[0]), counting({11}, Device::cpu(), 50)};
    const auto joined = gather(scatter(batch, devices), Device::cpu());
    CHECK(values(joined[0].as_tensor()) == values(batch[0].as_tensor()));
    CHECK(values(joined[1].as_tensor()) == values(batch[1].as_tensor()));
  }
}
