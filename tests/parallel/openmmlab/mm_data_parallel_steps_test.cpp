// train_step and val_step of MMDataParallel.
#include <memory>
#include <variant>

#include "lockstep/parallel/openmmlab/mm_data_parallel.h"
#include "lockstep/parallel/openmmlab/model/model_wrapper.h"
#include "lockstep/parallel/openmmlab/model/named_values.h"
#include "lockstep/tensor/optim/sgd.h"
#include "parallel/support.h"

using namespace parallel_test;

namespace {

using Rows = DataContainer<Tensor>;

// What a step returns, which nothing may change: it cannot even be copied.
struct StepResult {
  std::unique_ptr<int> samples;
  LogVars log;
  Tensor loss;
  const void* optimizer = nullptr;
};

struct Fit : Module<Fit> {
  Parameter weight{tensor({1, 2}, {2})};
  Tensor forward(const Rows& rows) const {
    const Tensor x = rows.stacked();
    return mean(x * weight.on(x.device()));
  }
  template <class Optimizers>
  StepResult step(const Rows& rows, const Optimizers& optimizers) const {
    StepResult result;
    result.loss = (*this)(rows);
    result.log = {{"loss", result.loss.detach()}};
    result.samples = std::make_unique<int>(static_cast<int>(rows.sample_count()));
    result.optimizer = &optimizers;
    return result;
  }
  StepResult train_step(const Rows& rows, SGD& optimizer) {
    optimizer.zero_grad();
    StepResult result = step(rows, optimizer);
    result.loss.backward();
    optimizer.step();
    ++steps;
    return result;
  }
  StepResult val_step(const Rows& rows, const std::map<std::string, SGD>& optimizers) const {
    return step(rows, optimizers);
  }
  void members(Members& m) override { m("weight", weight); }
  int steps = 0;
};

Rows rows(int count, std::int64_t samples_per_device) {
  std::vector<Rows> samples;
  for (int i = 0; i < count; ++i)
    samples.emplace_back(counting({2}, Device::cpu(), i), DataContainerOptions{.stack = true, .pad_dims = {}});
  return collate(samples, samples_per_device);
}
std::vector<std::vector<Device>> none_or_one() { return {{}, devices_at({2})}; }

}  // namespace

TEST_CASE("a step is the module's own, on one device or on none") {
  for (const auto& devices : none_or_one()) {
    CAPTURE(devices);
    const Device device = devices.empty() ? Device::cpu() : devices[0];
    const MMDataParallel net(Fit{}, {.devices = devices});
    SGD optimizer(net.module().parameters(), {.lr = 1});
    const StepResult result = net.train_step(rows(3, 3), optimizer);
    CHECK(*result.samples == 3);
    CHECK(result.loss.device() == device);
    CHECK(result.loss.rank() == 0);  // not gathered
    CHECK(result.log.begin()->first == "loss");
    CHECK(result.optimizer == &optimizer);
    // x = [0 1], [1 2], [2 3]: the mean of x * [1 2] is 15 / 6, its gradient [3 6] / 6.
    CHECK(result.loss.item<double>() == 2.5);
    CHECK(values(net.module().weight.on(device).detach()) == Doubles{0.5, 1});
    CHECK(net.module().steps == 1);

    std::map<std::string, SGD> optimizers;
    optimizers.emplace("all", SGD(net.module().parameters(), {.lr = 1}));
    const StepResult validated = net.val_step(rows(1, 1), optimizers);
    CHECK(validated.optimizer == &optimizers);
    CHECK(validated.loss.item<double>() == 0.5);
    CHECK(net.module().steps == 1);
    CHECK(is_model_wrapper(net));
  }
}

TEST_CASE("arguments of a step are scattered where they hold tensors, else handed over") {
  struct Seen {
    std::vector<std::string> devices;
    std::vector<const void*> places;
  };
  struct Looks : Module<Looks> {
    Tensor forward(const Tensor& x) const { return x; }
    Seen train_step(const Tensor& x, const std::tuple<std::vector<Tensor>, int>& list, const Value& value,
                    const std::variant<int, Tensor>& either, const std::string& text,
                    const std::vector<double>& numbers, std::unique_ptr<int>& handle) {
      ++*handle;
      return {{to_string(x.device()), to_string(std::get<0>(list)[0].device()),
               to_string(value.at("a").as_tensor().device()), to_string(std::get<Tensor>(either).device())},
              {&text, &numbers, &handle}};
    }
  };
  for (const auto& devices : none_or_one()) {
    CAPTURE(devices);
    const std::string there = devices.empty() ? "cpu" : "host:2";
    const MMDataParallel net(Looks{}, {.devices = devices});
    const std::string text = "text";
    const std::vector<double> numbers{1, 2};
    auto handle = std::make_unique<int>(4);
    const Seen seen = net.train_step(counting({2}), std::tuple(std::vector{counting({3})}, 5),
                                     Value(Value::Map{{"a", counting({2})}}), std::variant<int, Tensor>(counting({2})),
                                     text, numbers, handle);
    CHECK(seen.devices == std::vector<std::string>(4, there));
    CHECK(seen.places == std::vector<const void*>{&text, &numbers, &handle});
    CHECK(*handle == 5);
  }
}

TEST_CASE("a step on several devices, or in several groups") {
  const MMDataParallel net(Fit{}, {.devices = first_devices(2)});
  SGD optimizer(net.module().parameters(), {.lr = 1});
  const std::map<std::string, SGD> none;
  CHECK(missing(message_of<InvalidArgument>([&] { net.train_step(rows(2, 1), optimizer); }),
                {"[train_step] expected one device, got 2", "host:0, host:1", "MMDistributedDataParallel"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { net.val_step(rows(2, 1), none); }),
                {"[val_step] expected one device, got 2", "MMDistributedDataParallel"}) == "");
  CHECK(net.module().steps == 0);
  for (const auto& devices : none_or_one()) {
    const MMDataParallel one(Fit{}, {.devices = devices});
    CHECK(missing(message_of<InvalidArgument>([&] { one.train_step(rows(2, 1), optimizer); }),
                  {"divided into 1 to 1 parts", "got 2", "samples_per_device"}) == "");
  }
}

TEST_CASE("the module of a step is on devices[0]") {
  MMDataParallel net(Fit{}, {.devices = devices_at({1})});
  SGD optimizer(net.module().parameters(), {.lr = 1});
  const std::map<std::string, SGD> none;
  net.module().to(Device::host(2));
  const std::uint64_t before = detail::moved_bytes();
  for (const std::string& message : {message_of<InvalidArgument>([&] { net.train_step(rows(2, 2), optimizer); }),
                                     message_of<InvalidArgument>([&] { net.val_step(rows(2, 2), none); })})
    CHECK(missing(message, {"module must have its parameters and buffers on device host:1 (devices[0]) but found "
                            "'weight' on device host:2"}) == "");
  CHECK(detail::moved_bytes() == before);
  net.module().to(Device::host(1));
  CHECK(*net.train_step(rows(2, 2), optimizer).samples == 2);
}

TEST_CASE("a step from inside a replica is an error") {
  const auto inner = std::make_shared<MMDataParallel<Fit>>(Fit{}, DataParallelOptions{.devices = devices_at({1})});
  const DataParallel outer(Calling([inner](const Tensor& x, const Tensor&) {
                             (void)inner->val_step(rows(1, 1), std::map<std::string, SGD>());
                             return x;
                           }),
                           {.devices = first_devices(2)});
  CHECK_THROWS_AS(outer(counting({2})), ReplicaError);
}
