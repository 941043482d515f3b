// A program as a user writes it, one process for each GPU: collectives and whole steps of training in graphs, against
// the same without graphs, bit for bit.
//
// usage: lockstep-run -n 2 graphs (of more ranks NCCL, and the fake, may add in another order each time)
//   Each rank writes a line for what is not as expected, and "rank 0 of 2: as expected". Exits with 0, 1 for other
//   results, 4 for an error.
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

using Floats = std::vector<float>;

int wrong = 0;
void expect(bool as_expected, const std::string& what) {
  if (as_expected) return;
  ++wrong;
  std::printf("not as expected: %s\n", what.c_str());
}

std::string said_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing";
}
void expect_refused(const std::string& said, const std::string& why) {
  expect(
      said.find("expected what a capture can record, got") != std::string::npos && said.find(why) != std::string::npos,
      "refused for \"" + why + "\", but it said: " + said);
}

struct Net : Module<Net> {
  Linear a{6, 16}, b{16, 16}, c{16, 3};
  BatchNorm2d norm{4};
  Dropout dropout{0.2};
  Tensor forward(const Tensor& x) const {
    const Tensor y = norm(relu(a(x)).reshape({x.size(0), 4, 2, 2})).reshape({x.size(0), 16});
    return c(dropout(relu(b(y))));
  }
  void members(Members& m) override { m("a", a), m("b", b), m("c", c), m("norm", norm), m("dropout", dropout); }
};

struct Result {
  Floats losses, numbers;
  std::uint64_t iterations = 0;
  friend bool operator==(const Result&, const Result&) = default;
};

constexpr int kSteps = 7, kAsTheyAre = 2;  // before the capture

Result train(Communicator& communicator, const DistributedDataParallelOptions& options, bool captured) {
  const Device device = communicator.device();
  const Stream stream(device);
  const StreamScope scope(stream);
  manual_seed(3);
  DistributedDataParallel net(Net{}, communicator, options);
  Adam adam(net.parameters(), {.lr = 1e-2});
  Tensor x = zeros({5, 6}, {.device = device}), target = zeros({5, 3}, {.device = device}), loss;
  const auto step = [&] {
    adam.zero_grad();
    loss = mse_loss(net(x), target);
    loss.backward();
    (void)clip_grad_norm(net.parameters(), 0.5);
    adam.step();
  };
  Result result;
  Graph graph;
  for (int i = 0; i < kSteps; ++i) {
    manual_seed(static_cast<std::uint64_t>(100 * i + communicator.rank()));  // each rank has its own batches
    x.copy_(randn({5, 6}));
    target.copy_(randn({5, 3}));
    if (i == kSteps - 2) adam.set_lr(1e-3);
    if (captured && i < kAsTheyAre)
      expect_refused(said_by([&] { (void)capture(stream, step); }), cat("iteration ", i + 1, ", while the buckets"));
    if (captured && i == kAsTheyAre) {
      // What is refused in the middle of an iteration leaves everything as it was.
      expect_refused(said_by([&] {
                       (void)capture(stream, [&] {
                         loss = mse_loss(net(x), target);
                         loss.backward();
                         (void)loss.item<float>();
                       });
                     }),
                     "[copy]");
      const auto in_the_middle = [&] {
        adam.zero_grad();
        Tensor input = x.detach();
        input.set_requires_grad();
        input.register_hook([](const Tensor& gradient) { (void)gradient.to_vector<float>(); });
        sum(net(input)).backward();
      };
      expect_refused(said_by([&] { (void)capture(stream, in_the_middle); }), "[copy]");
      manual_seed(static_cast<std::uint64_t>(100 * i + communicator.rank()));
      (void)randn({5, 6}), (void)randn({5, 3});
      graph = capture(stream, step);
    }
    if (graph)
      graph.replay(stream);
    else
      step();
    result.losses.push_back(loss.item<float>());
  }
  for (const NamedTensor& entry : net.module().state_dict())
    for (const float value : entry.tensor.to(DType::f32).to_vector<float>()) result.numbers.push_back(value);
  for (const Parameter& parameter : net.parameters())
    for (const float value : parameter.tensor().grad().to_vector<float>()) result.numbers.push_back(value);
  result.iterations = net.logging_data().iteration;
  return result;
}

void training(Communicator& communicator) {
  // In two buckets and more.
  const DistributedDataParallelOptions small{.bucket_cap_mb = 1e-4, .first_bucket_mb = 1e-4};
  DistributedDataParallelOptions copies = small, mixed = small, fixed = small;
  copies.gradient_as_bucket_view = false;
  mixed.mixed_precision = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32};
  fixed.static_graph = true;
  for (const auto& [name, options] :
       {std::pair("buckets", small), {"copies", copies}, {"mixed precision", mixed}, {"a static graph", fixed}}) {
    const Result eager = train(communicator, options, false), replayed = train(communicator, options, true);
    expect(eager.losses == replayed.losses, cat("the losses of ", name));
    expect(eager == replayed, cat("a training with ", name));
    expect(eager.iterations == kSteps && eager.losses[4] != eager.losses[3], cat("a training with ", name, " at all"));
  }
}

// What the host has its hands in.
void refused(Communicator& communicator) {
  const Device device = communicator.device();
  const Stream stream(device);
  const StreamScope scope(stream);
  const Tensor x = ones({5, 6}, {.device = device});
  DistributedDataParallelOptions searches;
  searches.find_unused_parameters = true;
  DistributedDataParallel found(Net{}, communicator, searches), hooked(Net{}, communicator),
      joined(Net{}, communicator), held(Net{}, communicator);
  hooked.register_comm_hook(all_reduce_hook());
  held.register_buffer_hook({"nothing", [](std::span<const NamedParameter>, Communicator&) {}});
  const auto step = [&](auto& net) {
    for (const Parameter& parameter : net.parameters()) parameter.zero_grad();
    sum(square(net(x))).backward();
  };
  const auto said = [&](auto& net) { return said_by([&] { (void)capture(stream, [&] { step(net); }); }); };
  for (int i = 0; i < 3; ++i) step(found), step(hooked), step(joined), step(held);
  expect_refused(said(found), "find_unused_parameters");
  expect_refused(said(hooked), "the communication hook");
  expect_refused(said(held), "the buffer hook 'nothing'");
  std::string in_join;
  join({joined}, {}, [&] { in_join = said(joined); });
  expect_refused(in_join, "[join]");
  step(found), step(hooked), step(joined), step(held);  // nothing is broken
  expect(!communicator.broken(), "a communicator that works");
  const auto parts = communicator.split(0);
  expect_refused(said(joined), "beside another communicator");
}

void collectives(Communicator& communicator) {
  const Device device = communicator.device();
  const Stream stream(device);
  const StreamScope scope(stream);
  const NoGrad no_grad;
  Tensor x = zeros({3}, {.device = device}), all = zeros({3 * communicator.size()}, {.device = device});
  const auto step = [&] {
    const Tensor y = x * 2;  // the graph's own
    communicator.all_reduce(y);
    communicator.all_gather(y + x, all);
    return y + 1;
  };
  const auto batch = [&](int i) { x.copy_(full({3}, 0.1 * i + communicator.rank())); };
  std::vector<Floats> eager, replayed;
  for (int i = 0; i < 5; ++i) {
    batch(i);
    eager.push_back(step().to_vector<float>());
    eager.push_back(all.to_vector<float>());
  }
  auto [graph, y] = capture(stream, step);
  for (int i = 0; i < 5; ++i) {
    batch(i);
    graph.replay();
    replayed.push_back(y.to_vector<float>());
    replayed.push_back(all.to_vector<float>());
  }
  expect(eager == replayed, "collectives");
}

}  // namespace

int main() {
  try {
    const std::unique_ptr<Communicator> communicator = make_communicator({.timeout = Milliseconds(120'000)});
    expect(std::string(communicator->backend()) == "nccl", cat("nccl, not ", communicator->backend()));
    collectives(*communicator);
    training(*communicator);
    refused(*communicator);
    synchronize(communicator->device());
    empty_cache(communicator->device());  // what other streams have used too goes back while the library has threads
    if (wrong == 0) std::printf("rank %d of %d: as expected\n", communicator->rank(), communicator->size());
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    return 4;
  }
  return wrong == 0 ? 0 : 1;
}
