// What PowerSGD remembers of parameters whose gradients nobody takes, and of ranks that have run out of inputs.
#include "lockstep/parallel/ddp/hooks/basic_hooks.h"
#include "lockstep/parallel/ddp/hooks/power_sgd.h"
#include "lockstep/parallel/join/join.h"
#include "parallel/ddp/support.h"

using namespace parallel_test;

namespace {

constexpr int kPowerRanks = 2;

struct TwoBranches : Module<TwoBranches> {
  Parameter a{zeros({6, 4}, {.dtype = DType::f64})}, b{zeros({6, 4}, {.dtype = DType::f64})};
  Tensor forward(const Tensor& x, bool both) const {
    const Tensor second = sum(b.on(x.device()) * x);
    return both ? sum(a.on(x.device()) * x) + second : second;
  }
  void members(Members& m) override { m("a", a), m("b", b); }
};

// Is the gradient of a rank in a step.
Tensor input(int rank, int step, Device device) {
  return noise({6, 4}, 50 + static_cast<std::uint64_t>(10 * step + rank), device);
}

struct Sums {
  Doubles applied[2], error[2];  // of a and b: in all steps, and at the end
};
void add(Doubles& to, const Doubles& from, double factor = 1) {
  to.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i] += factor * from[i];
}

struct PowerTraining {
  DistributedDataParallelOptions options = {};
  int steps_of_last = 6;    // the other rank has 6
  bool wrapped = false;     // in a compression to f16
  bool keeps = false;       // gradients of `a` stay in the steps that do not use it
  bool late_start = false;  // gradients are averaged in the first steps
};

// Both ranks leave `a` out in odd steps.
std::vector<Sums> run(const PowerTraining& training) {
  return run_ranks(kPowerRanks, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    DistributedDataParallelOptions options = training.options;
    options.find_unused_parameters = true;
    options.bucket_cap_mb = options.first_bucket_mb = 1e-6;
    DistributedDataParallel<TwoBranches> net(TwoBranches{}, communicator, options);
    PowerSgd compression({.rank = 1, .start_iteration = training.late_start ? 2 : 0, .min_compression_rate = 0});
    net.register_comm_hook(training.wrapped ? f16_compress_wrapper(compression.hook()) : compression.hook());
    Sums sums;
    join({net}, [&] {
      for (int step = 0; step < (rank == kPowerRanks - 1 ? training.steps_of_last : 6); ++step) {
        const bool both = step % 2 == 0;
        if (both || !training.keeps) net.zero_grad();
        net.module().b.set_grad({});
        net(input(rank, step, communicator.device()), both).backward();
        if (both) add(sums.applied[0], values(net.module().a.grad()));
        add(sums.applied[1], values(net.module().b.grad()));
      }
    });
    for (const auto& [name, tensor] : compression.state_dict()) {
      if (name == "error.a") sums.error[0] = values(tensor);
      if (name == "error.b") sums.error[1] = values(tensor);
    }
    return sums;
  });
}

}  // namespace

TEST_CASE("PowerSGD loses nothing of parameters that no rank uses in some steps") {
  const PowerTraining variants[] = {{},
                                    {.options = {.gradient_as_bucket_view = false}},
                                    {.keeps = true},
                                    {.late_start = true},
                                    {.steps_of_last = 3},
                                    {.steps_of_last = 0}};
  for (const PowerTraining& training : variants) {
    INFO("view " << training.options.gradient_as_bucket_view << ", keeps " << training.keeps << ", late start "
                 << training.late_start << ", " << training.steps_of_last << " steps");
    const auto result = run(training);
    for (const int branch : {0, 1}) {
      const auto at = static_cast<std::size_t>(branch);
      Doubles truth(24), found = result[0].applied[at];
      for (int step = 0; step < 6; step += branch == 0 ? 2 : 1)
        for (int r = 0; r < kPowerRanks; ++r)
          if (r == 0 || step < training.steps_of_last)
            add(truth, values(input(r, step, Device::cpu())), 1.0 / kPowerRanks);
      for (const Sums& rank : result) add(found, rank.error[at], 1.0 / kPowerRanks);
      INFO("branch " << branch);
      CHECK(largest_difference(found, truth) < 1e-10);
      CHECK(largest_difference(result[0].applied[at], truth) > 1e-3);  // something is compressed
    }
  }
}

TEST_CASE("PowerSGD inside a compression to 16 bits hears which gradients nobody takes") {
  const auto result = run({.wrapped = true});
  Doubles truth(24), found = result[0].applied[0];
  for (int step = 0; step < 6; step += 2)
    for (int r = 0; r < kPowerRanks; ++r) add(truth, values(input(r, step, Device::cpu())), 1.0 / kPowerRanks);
  for (const Sums& rank : result) add(found, rank.error[0], 1.0 / kPowerRanks);
  CHECK(largest_difference(found, truth) < 0.01);
}

TEST_CASE("PowerSGD's error feedback is refused where the divisor is the current number of ranks") {
  for (const bool feedback : {true, false}) {
    for (const bool wrapped : {false, true}) {
      for (const int inputs_of_last : {0, 1}) {
        const auto said = messages_of_ranks(kPowerRanks, [&](Communicator& communicator) {
          DistributedDataParallel<TwoBranches> net(TwoBranches{}, communicator);
          PowerSgd compression({.rank = 1, .use_error_feedback = feedback});
          net.register_comm_hook(wrapped ? bf16_compress_wrapper(compression.hook()) : compression.hook());
          const bool last = communicator.rank() == kPowerRanks - 1;
          join({net}, {.divide_by_initial_world_size = false}, [&] {
            for (int i = 0; i < (last ? inputs_of_last : 1); ++i)
              net(input(communicator.rank(), i, communicator.device()), true).backward();
          });
          synchronize(communicator.device());
        });
        for (const std::string& each : said) {
          if (feedback) {
            CHECK(missing(each, {"[PowerSgd]", "use_error_feedback", "divide_by_initial_world_size"}) == "");
          } else {
            CHECK(each == "");
          }
        }
      }
    }
  }
}
