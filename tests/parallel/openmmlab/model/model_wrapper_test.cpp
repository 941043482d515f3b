// Which modules are wrappers.
#include "lockstep/parallel/openmmlab/model/model_wrapper.h"

#include "parallel/ddp/support.h"
#include "support/devices.h"

using namespace parallel_test;
using Catch::Matchers::Contains;
using support::first_devices;

namespace {

struct PlainModule : Module<PlainModule> {
  Tensor forward(const Tensor& x) const { return x; }
};

// Wraps without saying so.
struct Quiet : Module<Quiet> {
  Affine inner{2, 2, 1};
  Tensor forward(const Tensor& x) const { return inner(x); }
  void members(Members& m) override { m("inner", inner); }
};

// Says so, as users' wrappers may.
struct Loud : Module<Loud> {
  Affine inner{2, 2, 1};
  Tensor forward(const Tensor& x) const { return inner(x); }
  const ModuleBase* wrapped_module() const override { return &inner; }
};

}  // namespace

TEST_CASE("wrappers say what they wrap") {
  CHECK_FALSE(is_model_wrapper(PlainModule{}));
  CHECK(PlainModule{}.wrapped_module() == nullptr);
  const Loud loud;
  CHECK(is_model_wrapper(loud));

  const DataParallel parallel(Affine(2, 2, 1), {.devices = first_devices(2)});
  CHECK(is_model_wrapper(parallel));
  CHECK(parallel.wrapped_module() == &parallel.module());
  CHECK_FALSE(is_model_wrapper(parallel.module()));
  const DataParallel copy = parallel;
  CHECK(copy.wrapped_module() == &copy.module());

  const std::vector<bool> said = run_ranks(2, [](Communicator& communicator) {
    const DistributedDataParallel distributed(Affine(2, 2, 1), communicator);
    return is_model_wrapper(distributed) && distributed.wrapped_module() == &distributed.module();
  });
  CHECK(said == std::vector<bool>{true, true});
}

TEST_CASE("users register wrappers of their own") {
  const Quiet quiet;
  const PlainModule plain;
  CHECK_FALSE(is_model_wrapper(quiet));
  CHECK(model_wrappers().empty());
  register_model_wrapper("Never", [](const ModuleBase&) { return false; });
  // A predicate may use the registry.
  register_model_wrapper("Quiet",
                         [&](const ModuleBase& module) { return model_wrappers().size() == 2 && &module == &quiet; });
  CHECK(model_wrappers() == std::vector<std::string>{"Never", "Quiet"});
  CHECK(is_model_wrapper(quiet));
  CHECK_FALSE(is_model_wrapper(plain));

  CHECK_THAT(message_of<InvalidArgument>([] { register_model_wrapper("Quiet", [](const auto&) { return true; }); }),
             Contains("[register_model_wrapper] expected a name that is not registered, got 'Quiet'"));
  CHECK_THAT(message_of<InvalidArgument>([] { register_model_wrapper("Empty", nullptr); }),
             Contains("expected a predicate for 'Empty', got none"));
  CHECK_THAT(message_of<InvalidArgument>([] { unregister_model_wrapper("Quite"); }),
             Contains("[unregister_model_wrapper] expected a name out of (Never, Quiet), got 'Quite'"));
  CHECK_FALSE(is_model_wrapper(plain));  // what failed changed nothing

  unregister_model_wrapper("Never");
  unregister_model_wrapper("Quiet");
  CHECK(model_wrappers().empty());
  CHECK_FALSE(is_model_wrapper(quiet));
}

TEST_CASE("the registry may be used by many threads") {
  const Quiet quiet;
  const std::vector<int> found = run_ranks(4, [&](Communicator& communicator) {
    const std::string name = cat("Wrapper", communicator.rank());
    int wrappers = 0;
    for (int i = 0; i < 50; ++i) {
      register_model_wrapper(name, [&](const ModuleBase& module) { return &module == &quiet; });
      wrappers += is_model_wrapper(quiet);
      unregister_model_wrapper(name);
    }
    return wrappers;
  });
  CHECK(found == std::vector<int>{50, 50, 50, 50});
  CHECK(model_wrappers().empty());
}
