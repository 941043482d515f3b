// ReplicaPool: how inputs of various types become a batch and its result answers; preparing, warming up, statistics.
#include <cmath>

#include "parallel/serving/served.h"

using namespace parallel_test;
using namespace std::chrono_literals;
using Catch::Matchers::Contains;

namespace {

struct Query {
  Tensor image, mask;
  std::optional<Tensor> extra;
  double scale = 1;
  std::string mode;
  void fields(auto& f) { f(image, mask, extra, scale, mode); }
};
struct Found {
  Tensor scores;
  std::vector<Tensor> levels;
  int calls = 0;
  void fields(auto& f) { f(scores, levels, calls); }
};
struct Detector : Module<Detector> {
  std::shared_ptr<Control> control = std::make_shared<Control>();
  Found forward(const Query& query) const {
    control->enter(query.image);
    Found found;
    found.scores = query.image * query.scale + query.mask;
    found.levels = {query.image.narrow(1, 0, 1), query.extra ? *query.extra : query.mask};
    found.calls = control->entered;
    return found;
  }
};

}  // namespace

TEST_CASE("structs are joined tensor by tensor where all else is the same, and answers are divided alike") {
  Detector net;
  ReplicaPool pool(net, {.devices = first_devices(1)});
  net.control->hold();
  const auto query = [](double x, double scale, const char* mode, bool extra = false) {
    Query q{.image = row(x), .mask = tensor({x}, {1, 1}), .scale = scale, .mode = mode};
    if (extra) q.extra = row(2 * x);
    return q;
  };
  auto first = pool.submit(query(0, 1, "a"));
  net.control->await_held(1);
  std::vector<Answer<Found>> answers;
  answers.push_back(pool.submit(query(1, 2, "a")));
  answers.push_back(pool.submit(query(2, 2, "a")));
  answers.push_back(pool.submit(query(3, 3, "a")));        // another number
  answers.push_back(pool.submit(query(4, 2, "b")));        // another string
  answers.push_back(pool.submit(query(5, 2, "a", true)));  // one that has what the others have not
  answers.push_back(pool.submit(query(6, 2, "a")));
  net.control->hold(false);
  const double scales[] = {2, 2, 3, 2, 2, 2};
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const auto x = static_cast<double>(i + 1);
    const Found found = answers[i].get();
    CHECK(values(found.scores) == Doubles{x * scales[i] + x, (x + 1) * scales[i] + x});
    CHECK(values(found.levels.at(0)) == Doubles{x});
    CHECK(values(found.levels.at(1)) == (i == 4 ? Doubles{2 * x, 2 * x + 1} : Doubles{x}));
    CHECK(found.calls > 1);
  }
  CHECK(net.control->batches() == std::vector<std::int64_t>{1, 3, 1, 1, 1});
  Query uneven = query(1, 1, "a");
  uneven.mask = tensor({1, 2}, {2, 1});
  CHECK_THAT(message_of<InvalidArgument>([&] { pool.submit(uneven); }),
             Contains("expected 1 samples") && Contains("[2, 1]"));
}

TEST_CASE("sequences of different lengths are padded, to listed sizes or to the longest, and cropped again") {
  struct Model : Module<Model> {
    std::shared_ptr<Control> control = std::make_shared<Control>();
    std::vector<Tensor> forward(const Tensor& tokens, const Tensor& lengths) const {
      control->enter(tokens);
      return {tokens * 2.0, tokens.sum({1}, true), lengths * 1.0};
    }
  };
  const auto sequence = [](std::int64_t length, double value) {
    return std::tuple(full({1, length}, value, {.dtype = DType::f64}), tensor({static_cast<double>(length)}, {1, 1}));
  };
  for (const bool listed : {false, true}) {
    Model net;
    Padding padding{.value = 0.5, .cropped = {0}};
    if (listed) padding.sizes = {4, 8};
    ReplicaPool pool(net, {.devices = first_devices(1), .padding = padding});
    net.control->hold();
    auto first = pool.submit(sequence(1, 1));
    net.control->await_held(1);
    std::vector<Answer<std::vector<Tensor>>> answers;
    const std::int64_t lengths[] = {3, 5, 2, 9, 4};
    for (const std::int64_t length : lengths)
      answers.push_back(pool.submit(sequence(length, static_cast<double>(length))));
    net.control->hold(false);
    for (std::size_t i = 0; i < answers.size(); ++i) {
      const auto length = static_cast<double>(lengths[i]);
      const double padded = !listed ? 9 : lengths[i] > 8 ? 9 : lengths[i] > 4 ? 8 : 4;
      const auto answer = answers[i].get();
      CHECK(values(answer[0]) == Doubles(static_cast<std::size_t>(lengths[i]), 2 * length));
      CHECK(values(answer[1]) == Doubles{length * length + (padded - length) * 0.5});
      CHECK(values(answer[2]) == Doubles{length});
    }
    CHECK(first.get()[0].shape() == Shape{1, 1});
    const std::vector<Shape> shapes =
        listed ? std::vector<Shape>{{1, 4}, {3, 4}, {1, 8}, {1, 9}} : std::vector<Shape>{{1, 1}, {5, 9}};
    CHECK(net.control->shapes == shapes);
    CHECK_THROWS_WITH(pool.submit(std::tuple(ones({1, 2}, {.dtype = DType::i64}), ones({1, 1}))),
                      Contains("[ReplicaPool] expected padding that i64 has, got 0.5 for i64[1, 2]"));
  }
}

TEST_CASE("what nobody can join is computed alone, whatever its sizes: values, packed sequences, types of one's own") {
  struct Options {
    std::vector<int> more;  // of no type that is known here
    double add;
  };
  struct Net : Module<Net> {
    std::shared_ptr<Control> control = std::make_shared<Control>();
    Tensor forward(const Value& value, const PackedSequence& packed, const Options& options,
                   const Tensor& scalar) const {
      control->enter(packed.data);
      return value.at("x").as_tensor().sum() + packed.data.sum() + options.add + scalar;
    }
  };
  Net net;
  ReplicaPool pool(net, {.devices = first_devices(1), .max_delay = 0us});
  const PackedSequence packed = pack_sequence({tensor({1, 2}, {2, 1}), tensor({3}, {1, 1})});
  net.control->hold();
  std::vector<Answer<Tensor>> answers;
  for (int i = 0; i < 3; ++i)
    answers.push_back(pool.submit(std::tuple(Value::Map{{"x", counting({2, 2})}}, packed,
                                             Options{{1}, static_cast<double>(i)}, tensor({100}, {}))));
  net.control->await_held(1);
  net.control->hold(false);
  for (std::size_t i = 0; i < answers.size(); ++i)
    CHECK(values(answers[i].get()) == Doubles{10 + 6 + static_cast<double>(i) + 100});
  CHECK(net.control->entered == 3);

  struct Squares : Module<Squares> {
    Tensor forward(double x) const { return tensor({x * x}, {1}); }
  };
  ReplicaPool numbers(Squares(), {.devices = first_devices(1), .max_batch_samples = 2, .max_delay = 50us});
  std::vector<Answer<Tensor>> squares;
  for (int i = 0; i < 8; ++i) squares.push_back(numbers.submit(3.0));
  for (auto& answer : squares) CHECK(values(answer.get()) == Doubles{9});
  CHECK(numbers.stats().split == 0);  // without tensors nothing is divided
}

TEST_CASE("answers have memory of their own: neither inputs, parameters nor neighbours see what is written into them") {
  struct Plain : Module<Plain> {
    Parameter weight{tensor({1, 2}, {1, 2}), false};
    std::shared_ptr<Control> control = std::make_shared<Control>();
    std::vector<Tensor> forward(const Tensor& x) const {
      control->enter(x);
      return {x, weight.on(x.device())};
    }
    void members(Members& m) override { m("weight", weight); }
  } net;
  ReplicaPool pool(net, {.devices = {Device::cpu()}});
  const Tensor x = row(3);
  std::vector<Tensor> answer = pool.submit(x).get();
  answer[0].fill_(0);
  answer[1].fill_(0);
  CHECK(values(x) == Doubles{3, 4});
  CHECK(values(pool.submit(x).get()[1]) == Doubles{1, 2});
}

TEST_CASE("inputs may be on devices, and answers too: what writes and reads them there comes in order") {
  const auto devices = first_devices(2);
  ReplicaPool pool(Mlp{}, {.devices = devices, .output_device = devices.back()});
  const Mlp net;
  const NoGrad no_grad;
  const Stream own(devices.back());  // not the stream that answers are brought on
  const StreamScope scope(own);
  std::vector<Answer<Tensor>> answers;
  std::vector<Tensor> expected, twice;
  const auto input = [&](int i) {
    const Tensor x = noise({2, 3}, static_cast<std::uint64_t>(i));
    expected.push_back(net(x) * 2.0);
    // Computed on the submitter's stream, and perhaps not yet.
    return i % 3 == 2 ? x : x.to(devices[static_cast<std::size_t>(i % 2)]) * 1.0;
  };
  for (int i = 0; i < 12; ++i) answers.push_back(pool.submit(input(i)));
  for (auto& answer : answers) {
    const Tensor y = answer.get();
    CHECK(y.device() == devices.back());
    twice.push_back(y * 2.0);
  }
  // An answer that is let go is still read: the next one must not be written into its memory before.
  for (int i = 12; i < 40; ++i) twice.push_back(pool.submit(input(i)).get() * 2.0);
  for (std::size_t i = 0; i < twice.size(); ++i)
    CHECK(largest_difference(twice[i].to(Device::cpu()), expected[i]) < 1e-12);
}

TEST_CASE(
    "each replica computes on a stream of its own, which is done before a request that failed lets its inputs go") {
  struct Streams : Module<Streams> {
    std::shared_ptr<Control> control = std::make_shared<Control>();
    std::shared_ptr<std::vector<Stream>> seen = std::make_shared<std::vector<Stream>>();
    Parameter weight{tensor({2}, {1}), false};
    Tensor forward(const Tensor& x) const {
      {
        const std::lock_guard lock(control->mutex);
        seen->push_back(current_stream(x.device()));
      }
      control->enter(x);
      Tensor y = x;
      for (int i = 0; i < 20; ++i) y = x * weight.on(x.device());
      if (x.size(1) == 3) throw std::runtime_error("on the way");
      return y;
    }
    void members(Members& m) override { m("weight", weight); }
  } net;
  const Device device = device_at(0);
  ReplicaPool pool(net, {.devices = {device, device}, .max_batch_samples = 1});
  net.control->hold();
  auto a = pool.submit(row(1)), b = pool.submit(row(2));
  net.control->await_held(2);
  net.control->hold(false);
  CHECK(values(a.get()) == Doubles{2, 4});
  CHECK(values(b.get()) == Doubles{4, 6});
  REQUIRE(net.seen->size() == 2);
  CHECK_FALSE(net.seen->at(0) == net.seen->at(1));
  for (const Stream& stream : *net.seen) CHECK_FALSE(stream == default_stream(device));
  for (int i = 0; i < 10; ++i) {
    auto bad = pool.submit(full({1, 3}, i, {.dtype = DType::f64, .device = device}));
    CHECK_THROWS_AS(bad.get(), std::runtime_error);
    full({1, 3}, -1, {.dtype = DType::f64, .device = device});  // perhaps where the inputs were
  }
}

TEST_CASE("an answer without the samples of its inputs is an error that names both") {
  struct Sum : Module<Sum> {
    Tensor forward(const Tensor& x) const { return x.sum({0}); }
  };
  ReplicaPool pool(Sum(), {.devices = first_devices(1)});
  auto answer = pool.submit(counting({3, 2}));
  CHECK_THAT(message_of<InvalidArgument>([&] { answer.get(); }), Contains("3 samples") && Contains("[2]"));
}

TEST_CASE("a prepared pool folds norms, and folds anew after an update") {
  struct Net : Module<Net> {
    Conv2d conv{2, 3, 3};
    BatchNorm2d norm{3};
    Tensor forward(const Tensor& x) const { return relu(norm(conv(x))); }
    void members(Members& m) override { m("conv", conv), m("norm", norm); }
  };
  manual_seed(3);
  Net net;
  const auto devices = first_devices(2);
  ReplicaPool pool(net, {.devices = devices, .prepared = true});
  const auto check = [&] {
    const InferenceMode no_gradients;
    const TrainingScope evaluation(false);
    for (int i = 0; i < 4; ++i) {
      const Tensor x = randn({1, 2, 6, 6});
      const Tensor expected = net(x.to(devices[0])).to(Device::cpu()).to(DType::f64);
      CHECK(largest_difference(pool.submit(x).get().to(DType::f64), expected) < 1e-5);
    }
  };
  check();
  Net other;
  other.norm.running_mean.tensor().fill_(0.5);
  other.norm.running_var.tensor().fill_(3);
  pool.update([&](Net& module) { module.load_state_dict(other.state_dict()); });
  check();
}

TEST_CASE("an update that throws behind a load leaves all replicas with the same weights") {
  struct Halves : Module<Halves> {
    std::shared_ptr<Control> control = std::make_shared<Control>();
    Parameter first{tensor({1}, {1}), false}, second{tensor({1}, {1}), false};
    Tensor forward(const Tensor& x) const {
      control->enter(x);
      return cat({x * first.on(x.device()), x * second.on(x.device())}, 1);
    }
    void members(Members& m) override { m("first", first), m("second", second); }
  };
  const Halves net;
  ReplicaPool pool(net, {.devices = first_devices(2), .max_batch_samples = 1});
  const auto fails_half_way = [](Halves& module) {
    module.first.assign(tensor({5}, {1}));
    throw std::runtime_error("no second half");
  };
  CHECK_THROWS_WITH(pool.update(fails_half_way), "no second half");
  CHECK(pool.stats().updates == 0);
  net.control->hold();
  Answer<Tensor> a = pool.submit(tensor({1}, {1, 1})), b = pool.submit(tensor({1}, {1, 1}));
  net.control->await_held(2);  // one on each replica
  net.control->hold(false);
  CHECK(values(a.get()) == Doubles{5, 1});
  CHECK(values(b.get()) == Doubles{5, 1});
  // One inside of another is one more step.
  pool.update([&](Halves& module) {
    module.first.assign(tensor({2}, {1}));
    pool.update([](Halves& inside) { inside.second.assign(tensor({3}, {1})); });
  });
  CHECK(values(pool.submit(tensor({1}, {1, 1})).get()) == Doubles{2, 3});
  CHECK(pool.stats().updates == 2);
  const auto is_empty = Contains("expected a function, got an empty one");
  CHECK_THROWS_WITH(pool.update(std::function<void(Halves&)>()), is_empty);
  void (*const none)(Halves&) = nullptr;
  CHECK_THROWS_AS(pool.update(none), InvalidArgument);
  // An answer that nobody gets is a mistake.
  const std::uint64_t before = pool.stats().submitted;
  CHECK_THROWS_WITH(pool.submit(tensor({1}, {1, 1}), {}, std::function<void(Answer<Tensor>)>()), is_empty);
  CHECK(pool.stats().submitted == before);
}

TEST_CASE("warming up runs each example on each replica, and throws what the first one throws") {
  Served net;
  const auto devices = first_devices(2);
  ReplicaPool pool(net, {.devices = devices});
  pool.warm_up(std::tuple(counting({5, 2})));
  pool.warm_up({std::tuple(counting({1, 2})), std::tuple(counting({3, 2}))});
  CHECK(net.control->entered == static_cast<int>(3 * devices.size()));
  CHECK(pool.stats().submitted == 0);
  CHECK_THROWS_AS(pool.warm_up(std::tuple(row(-1))), std::runtime_error);
  CHECK(values(pool.submit(row(1)).get()) == answer_to(1));
  pool.close();
  CHECK_THROWS_AS(pool.warm_up(std::tuple(row(1))), Refused);
}

TEST_CASE("statistics are lines of Prometheus' text format") {
  Histogram histogram(Histogram::seconds());
  CHECK(histogram.quantile(0.5) == 0);
  for (int i = 0; i < 10; ++i) histogram.add(i < 5 ? 1e-3 : 0.2);
  CHECK(histogram.quantile(0.5) == Approx(1e-3));
  CHECK(histogram.quantile(0.75) == Approx(0.1 + 0.15 / 2));
  histogram.add(1e9);
  CHECK(histogram.quantile(1) == 100);
  CHECK(histogram.counts.back() == 1);

  ManualClock clock;
  ReplicaPool pool(Served{}, {.devices = first_devices(1), .max_batch_samples = 1, .clock = &clock});
  pool.submit(row(1)).get();
  CHECK_THROWS(pool.submit(row(-1)).get());
  CHECK(pool.drain());
  const std::string text = to_prometheus(pool.stats(), "digits \"a\"\\\n");
  const std::string pool_label = R"(pool="digits \"a\"\\\n")";
  const auto has = [&](const std::string& line) { return ("\n" + text).find("\n" + line + "\n") != std::string::npos; };
  CHECK(has("# TYPE lockstep_pool_requests_total counter"));
  CHECK(has("lockstep_pool_requests_total{" + pool_label + ",outcome=\"answered\"} 1"));
  CHECK(has("lockstep_pool_requests_total{" + pool_label + ",outcome=\"failed\"} 1"));
  CHECK(has("# TYPE lockstep_pool_batch_samples histogram"));
  CHECK(has("lockstep_pool_batch_samples_bucket{" + pool_label + ",le=\"1\"} 2"));
  CHECK(has("lockstep_pool_batch_samples_bucket{" + pool_label + ",le=\"4096\"} 2"));
  CHECK(has("lockstep_pool_batch_samples_bucket{" + pool_label + ",le=\"+Inf\"} 2"));
  CHECK(has("lockstep_pool_batch_samples_sum{" + pool_label + "} 2"));
  CHECK(has("lockstep_pool_batch_samples_count{" + pool_label + "} 2"));
  CHECK(has("lockstep_pool_replica_up{" + pool_label + ",replica=\"0\",device=\"" + device_name(0) + "\"} 1"));
  CHECK(has("lockstep_pool_latency_seconds_bucket{" + pool_label + ",le=\"5e-05\"} 1"));
  CHECK(text.back() == '\n');
  const std::string latin1 = to_prometheus(pool.stats(), "caf\xE9 \xE2\x82\xAC");
  CHECK(latin1.find("{pool=\"caf\uFFFD \u20AC\",outcome=\"answered\"} 1\n") != std::string::npos);
  // Of two pools one group of lines for each metric.
  const std::vector<std::pair<std::string, ReplicaPoolStats>> two{{"a", pool.stats()}, {"b", pool.stats()}};
  const std::string both = to_prometheus(two);
  CHECK(both.find("# TYPE lockstep_pool_requests_total") == both.rfind("# TYPE lockstep_pool_requests_total"));
  CHECK(both.find("pool=\"b\"") != std::string::npos);
}
