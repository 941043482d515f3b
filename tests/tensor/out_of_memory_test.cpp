// Steps and modules on a device that runs out of memory halfway.
#include <functional>
#include <memory>

#include "lockstep/runtime/host/faults.h"
#include "lockstep/tensor/io/safetensors.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/optim/adam.h"
#include "lockstep/tensor/optim/rmsprop.h"
#include "lockstep/tensor/optim/sgd.h"
#include "lockstep/tensor/optim/sparse_adam.h"
#include "support/temporary_folder.h"
#include "tensor/optim/optim_support.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

constexpr std::int64_t kColumns = 80'000;  // every row is more than is carved out of a segment
const Device kDevice = Device::host(1);

struct Faults {
  ~Faults() { detail::host_faults().clear(); }
};

Parameter matrix(double value) { return Parameter(full({2, kColumns}, value, {.device = kDevice})); }
void give_gradient(const Parameter& p, double value) {
  p.set_grad(transpose(full({kColumns, 2}, value, {.device = kDevice}), 0, 1));  // not contiguous
}
void give_rows(const Parameter& p, double value) {
  const Tensor rows = full({3, kColumns}, value, {.device = kDevice});
  p.set_sparse_grad({from_data(std::vector<std::int64_t>{1, 0, 1}, {3}, {.device = kDevice}), rows, p.shape()});
}

// Sums, which differ when anything does: all elements of a row are alike.
Doubles sums(const std::vector<Parameter>& parameters, const Optimizer& optimizer) {
  Doubles found;
  for (const Parameter& parameter : parameters)
    for (const double sum : values(sum(parameter.tensor().detach(), {1}))) found.push_back(sum);
  for (const NamedTensor& entry : optimizer.state_dict()) found.push_back(sum(entry.tensor).item<double>());
  return found;
}

using Made = std::unique_ptr<Optimizer>;
struct Kind {
  const char* name;
  bool rows[2];  // whether the gradient of the first and second parameter is one of rows
  std::function<Made(const Parameter&, const Parameter&)> make;
};
const Kind kKinds[] = {
    {"SGD",
     {false, false},
     [](const Parameter& a, const Parameter& b) {
       return std::make_unique<SGD>(std::vector<SgdGroup>{{.parameters = {a}}, {.parameters = {b}, .lr = 0.5}},
                                    SgdOptions{.lr = 0.25, .momentum = 0.5});
     }},
    {"SGD with rows",
     {false, true},
     [](const Parameter& a, const Parameter& b) {
       return std::make_unique<SGD>(std::vector<Parameter>{a, b}, SgdOptions{.lr = 0.25});
     }},
    {"Adam",
     {false, false},
     [](const Parameter& a, const Parameter& b) {
       return std::make_unique<Adam>(std::vector<AdamGroup>{{.parameters = {a}}, {.parameters = {b}, .lr = 0.5}},
                                     AdamOptions{.amsgrad = true});
     }},
    {"RMSprop",
     {false, false},
     [](const Parameter& a, const Parameter& b) {
       return std::make_unique<RMSprop>(std::vector<RMSpropGroup>{{.parameters = {a}}, {.parameters = {b}, .lr = 0.5}},
                                        RMSpropOptions{.momentum = 0.5, .centered = true});
     }},
    {"SparseAdam",
     {true, true},
     [](const Parameter& a, const Parameter& b) {
       return std::make_unique<SparseAdam>(std::vector<Parameter>{a, b});
     }},
};

}  // namespace

TEST_CASE("a step that runs out of memory has moved nothing, and is made by the next call") {
  const Faults faults;
  empty_cache(kDevice);  // else segments that other cases have left, and parameters lie in then, would serve a step
  for (const Kind& kind : kKinds) {
    INFO(kind.name);
    for (const bool first_step : {true, false}) {
      Doubles expected;
      int failures = 0;
      for (int count = 0;; ++count) {  // 0: no allocation fails
        INFO("allocation " << count);
        const std::vector<Parameter> parameters{matrix(1), matrix(2)};
        const Made optimizer = kind.make(parameters[0], parameters[1]);
        for (int i = 0; i < 2; ++i)
          kind.rows[i] ? give_rows(parameters[i], i + 3) : give_gradient(parameters[i], i + 3);
        if (!first_step) optimizer->step();
        const Doubles before = sums(parameters, *optimizer);
        empty_cache(kDevice);
        bool failed = false;
        if (count > 0) detail::host_faults().fail_allocation(count);
        try {
          optimizer->step();
        } catch (const OutOfMemory&) {
          failed = true;
        }
        detail::host_faults().clear();
        if (failed) {
          ++failures;
          CHECK(sums(parameters, *optimizer) == before);
          optimizer->step();
        }
        if (count == 0) expected = sums(parameters, *optimizer);
        CHECK(sums(parameters, *optimizer) == expected);
        if (count > 0 && !failed) break;
      }
      CHECK(failures >= 2);
    }
  }
}

TEST_CASE("a module that runs out of memory while it is moved or converted stays as it was") {
  const Faults faults;
  const auto kinds = [](const ModuleBase& module) {
    std::vector<std::pair<Device, DType>> found;
    for (const auto& [name, parameter] : module.named_parameters())
      for (const Tensor& part : {parameter.tensor(), parameter.grad()}) found.emplace_back(part.device(), part.dtype());
    return found;
  };
  for (const bool converted : {false, true}) {
    Sequential net(Linear(300, 300), Linear(300, 300));
    if (converted) net.to(kDevice);
    for (const Parameter& parameter : net.parameters()) parameter.set_grad(ones_like(parameter.tensor().detach()));
    const auto before = kinds(net);
    const auto change = [&] { converted ? net.to(DType::f64) : net.to(kDevice); };
    int count = 0;
    for (bool failed = true; failed;) {
      INFO("allocation " << count + 1);
      empty_cache(kDevice);
      detail::host_faults().fail_allocation(++count);
      try {
        change();
        failed = false;
      } catch (const OutOfMemory&) {
        CHECK(kinds(net) == before);
      }
      detail::host_faults().clear();
    }
    CHECK(count > 4);
    CHECK(kinds(net) != before);
  }
}

TEST_CASE("a model that runs out of memory while it is loaded in another dtype stays as it was") {
  const Faults faults;
  const TemporaryFolder folder;
  Sequential saved(Linear(300, 300), Linear(300, 600));
  saved.to(DType::f64);
  save_model(saved, folder / "model");
  Sequential net(Linear(300, 300), Linear(300, 600));
  net.to(kDevice);
  for (const Parameter& parameter : net.parameters()) parameter.tensor().detach().fill_(0);
  bool failed = true;
  for (int count = 1; failed; ++count) {
    INFO("allocation " << count);
    empty_cache(kDevice);
    detail::host_faults().fail_allocation(count);
    failed = false;
    try {
      load_model(net, folder / "model");
    } catch (const OutOfMemory&) {
      failed = true;
    }
    detail::host_faults().clear();
    for (const Parameter& parameter : net.parameters())
      CHECK((sum(abs(parameter.tensor().detach())).item<double>() > 0) == !failed);
  }
}
