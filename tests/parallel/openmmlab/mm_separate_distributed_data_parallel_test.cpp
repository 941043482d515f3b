// Children that are averaged each by itself, by optimizers of their own.
#include "lockstep/parallel/openmmlab/mm_separate_distributed_data_parallel.h"

#include "lockstep/parallel/openmmlab/model/model_wrapper.h"
#include "lockstep/parallel/openmmlab/optim/optim_wrapper_dict.h"
#include "lockstep/tensor/nn/layers.h"
#include "parallel/openmmlab/training_support.h"
#include "support/watched.h"

using namespace parallel_test;

namespace {

struct Gan : Module<Gan> {
  Mlp generator;
  Affine discriminator{2, 1, 5}, features{2, 2, 6};  // the last one frozen
  Gan() { features.set_requires_grad(false); }

  Tensor discriminator_loss(const Batch& batch) const {
    Tensor fake;
    {
      const NoGrad no_grad;
      fake = generator(batch.first);
    }
    const Tensor real = discriminator(features(batch.second)) - 1.0, made = discriminator(features(fake));
    return mean(real * real) + mean(made * made);
  }
  Tensor generator_loss(const Batch& batch) const {
    const Tensor made = discriminator(features(generator(batch.first))) - 1.0;
    return mean(made * made);
  }

  // The discriminator's step, then the generator's.
  LogVars train_step(const Batch& batch, OptimWrapperDict& optims) const {
    const Device device = generator.first.weight.device();
    const Batch data(batch.first.to(device), batch.second.to(device));
    optims["discriminator"].zero_grad();
    auto [discriminator_total, log] = parse_losses({{"loss_d", discriminator_loss(data)}});
    optims["discriminator"].update_params(discriminator_total);
    auto [generator_total, more] = parse_losses({{"loss_g", generator_loss(data)}});
    optims["generator"].update_params(generator_total);
    log["loss_g"] = more.at("loss_g");
    return std::move(log);
  }
  Tensor val_step(const Tensor& noise) const { return generator(noise.to(generator.first.weight.device())); }
  Tensor test_step(const Tensor& noise) const { return val_step(noise) * 2; }
  void members(Members& m) override {
    m("generator", generator), m("discriminator", discriminator), m("features", features);
  }
};

// Two heads, each with losses of its own; contexts of the children, or of the whole.
struct Heads : Module<Heads> {
  std::vector<Affine> heads{Affine(3, 2, 1), Affine(3, 2, 2)};
  bool of_root = false;
  LogVars train_step(const Batch& batch, OptimWrapperDict& optims) const {
    const Device device = heads[0].weight.device();
    const Tensor x = batch.first.to(device), y = batch.second.to(device);
    for (std::size_t i = 0; i < 2; ++i) {
      OptimWrapper& optim = optims[cat(i)];
      Tensor loss;
      {
        const OptimContext context = of_root ? optim.optim_context(*this) : optim.optim_context(heads[i]);
        const Tensor difference = heads[i](x) - y;
        loss = mean(difference * difference);
      }
      optim.update_params(loss);
    }
    return {};
  }
  void members(Members& m) override { m("heads", heads); }
};

OptimWrapperDict& add(OptimWrapperDict& optims, const char* name, std::vector<Parameter> parameters, double lr,
                      std::int64_t window = 1) {
  optims.add(name, std::make_unique<OptimWrapper>(SGD(std::move(parameters), {.lr = lr, .momentum = 0.5}),
                                                  OptimWrapperOptions{.accumulative_counts = window}));
  return optims;
}

constexpr int kSeparateSteps = 10;

Doubles plain_gan(int ranks) {
  Gan model;
  SGD generator(model.generator.parameters(), {.lr = 0.05, .momentum = 0.5});
  SGD discriminator(model.discriminator.parameters(), {.lr = 0.1, .momentum = 0.5});
  for (int i = 0; i < kSeparateSteps; ++i) {
    discriminator.zero_grad();
    model.discriminator_loss(whole_batch(i, ranks)).backward();
    discriminator.step();
    generator.zero_grad();
    model.generator_loss(whole_batch(i, ranks)).backward();
    generator.step();
  }
  return all_parameters(model);
}

struct SeparateResult {
  Doubles parameters, figures;
};

struct Rooted : Module<Rooted> {
  Affine child{3, 2, 1};
  Parameter scale{counting({2})}, shift{counting({2})}, fixed{counting({2})};
  Rooted() { fixed.set_requires_grad(false); }
  void members(Members& m) override { m("child", child), m("scale", scale), m("shift", shift), m("fixed", fixed); }
};
struct Tied : Module<Tied> {
  Affine left{3, 2, 1}, right{3, 2, 2};
  Tied() { right.bias = left.bias; }
  void members(Members& m) override { m("left", left), m("right", right); }
};
struct Frozen : Module<Frozen> {
  Affine child{3, 2, 1};
  Frozen() { child.set_requires_grad(false); }
  void members(Members& m) override { m("child", child); }
};
// Buffers and frozen parameters of its own are moved like the rest.
struct Buffered : Module<Buffered> {
  Affine child{3, 2, 1};
  Parameter fixed{counting({2})};
  Buffer steps{zeros({1}, {.dtype = DType::f64})};
  Buffered() { fixed.set_requires_grad(false); }
  void members(Members& m) override { m("child", child), m("fixed", fixed), m("steps", steps); }
};

template <class M>
std::string separate_refusal(const DistributedDataParallelOptions& options = {}) {
  const auto said = messages_of_ranks(
      2, [&](Communicator& communicator) { MMSeparateDistributedDataParallel<M>(M{}, communicator, options); });
  return said[0] == said[1] ? said[0] : said[0] + " but " + said[1];
}

}  // namespace

TEST_CASE("children with optimizers of their own train as on one device") {
  for (const int ranks : {1, 2, 3}) {
    if (support::watched() && ranks != 2) continue;
    INFO(ranks << " ranks");
    const auto result = run_ranks(ranks, [&](Communicator& communicator) {
      Gan gan;
      if (communicator.rank() > 0) gan.generator.first.weight.tensor().detach().mul_(tensor({2}, {}));
      MMSeparateDistributedDataParallel<Gan> model(std::move(gan), communicator);
      OptimWrapperDict optims;
      add(optims, "generator", model.module().generator.parameters(), 0.05);
      add(optims, "discriminator", model.module().discriminator.parameters(), 0.1);
      SeparateResult mine;
      for (int i = 0; i < kSeparateSteps; ++i) {
        const LogVars log = model.train_step(share_of_batch(i, communicator.rank(), ranks), optims);
        mine.figures.push_back(static_cast<double>(log.count()));
      }
      mine.figures.push_back(static_cast<double>(model.module().features.weight.device() == communicator.device()));
      mine.parameters = all_parameters(model.module());
      return mine;
    });
    for (const SeparateResult& rank : result) CHECK(rank.parameters == result[0].parameters);
    CHECK(largest_difference(result[0].parameters, plain_gan(ranks)) < 1e-10);
    Doubles figures(kSeparateSteps, 3);
    figures.push_back(1);
    CHECK(result[0].figures == figures);
  }
}

TEST_CASE("validation and test are the module's own, on one rank alone") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    MMSeparateDistributedDataParallel<Gan> model(Gan{}, communicator);
    Doubles seen{static_cast<double>(is_model_wrapper(model)),
                 static_cast<double>(model.wrapped_module() == &model.module())};
    const NoGrad no_grad;
    if (communicator.rank() == 0) {
      const Tensor noise = counting({1, 3});
      const Tensor one = model.val_step(noise), two = model.test_step(noise);
      seen.push_back(largest_difference(one * 2, two));
    }
    communicator.barrier();
    return seen;
  });
  CHECK(result[0] == Doubles{1, 1, 0});
}

TEST_CASE("contexts of a child and of the whole keep gradients on their rank") {
  for (const bool of_root : {false, true}) {
    INFO("context of the whole: " << of_root);
    const auto result = run_ranks(2, [&](Communicator& communicator) {
      Heads heads;
      heads.of_root = of_root;
      MMSeparateDistributedDataParallel<Heads> model(std::move(heads), communicator);
      OptimWrapperDict optims;
      for (std::size_t i = 0; i < 2; ++i)
        add(optims, i == 0 ? "0" : "1", model.module().heads[i].parameters(), 0.1, i == 0 ? 1 : 2);
      for (int i = 0; i < 6; ++i) model.train_step(share_of_batch(i, communicator.rank(), 2), optims);
      SeparateResult mine{all_parameters(model.module()), {}};
      for (const std::string& name : model.names())
        mine.figures.push_back(static_cast<double>(model.logging_data(name).iteration));
      return mine;
    });
    for (const SeparateResult& rank : result) {
      CHECK(rank.figures == Doubles{6, 3});
      CHECK(rank.parameters == result[0].parameters);
    }
    Heads plain;
    OptimWrapperDict optims;
    for (std::size_t i = 0; i < 2; ++i)
      add(optims, i == 0 ? "0" : "1", plain.heads[i].parameters(), 0.1, i == 0 ? 1 : 2);
    for (int i = 0; i < 6; ++i) plain.train_step(whole_batch(i, 2), optims);
    CHECK(largest_difference(result[0].parameters, all_parameters(plain)) < 1e-10);
  }
}

TEST_CASE("no_sync covers all children") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    MMSeparateDistributedDataParallel<Heads> model(Heads{}, communicator);
    const Tensor x = full({1, 3}, communicator.rank() + 1.0, {.dtype = DType::f64, .device = communicator.device()});
    const auto backward = [&] {
      for (const Affine& head : model.module().heads) sum(head(x)).backward();
      Doubles grads;
      for (const Affine& head : model.module().heads) grads.push_back(head.weight.grad()[0][0].item<double>());
      return grads;
    };
    SeparateResult mine;
    {
      const auto scopes = model.no_sync();
      mine.parameters = backward();  // each rank's own
    }
    mine.figures = backward();  // the average of the sums
    return mine;
  });
  CHECK(result[0].parameters == Doubles{1, 1});
  CHECK(result[1].parameters == Doubles{2, 2});
  for (const SeparateResult& rank : result) CHECK(rank.figures == Doubles{3, 3});
}

TEST_CASE("what is not in a child, or in two") {
  CHECK(missing(separate_refusal<Rooted>(),
                {"[MMSeparateDistributedDataParallel]", "'scale', 'shift'", "module itself"}) == "");
  CHECK(separate_refusal<Rooted>().find("fixed") == std::string::npos);
  CHECK(missing(separate_refusal<Tied>(), {"one child", "'left.bias'", "'right.bias'"}) == "");
  CHECK(missing(separate_refusal<Frozen>(),
                {"a child with a parameter that requires a gradient", "1 children without"}) == "");
  CHECK(missing(separate_refusal<Buffered>({.ignore = {"other.weight"}}), {"ignored", "'other.weight'"}) == "");
  const auto biases = run_ranks(2, [](Communicator& communicator) {
    Buffered buffered;
    buffered.child.bias.assign(full({2}, communicator.rank() + 1.0));
    MMSeparateDistributedDataParallel<Buffered> model(std::move(buffered), communicator, {.ignore = {"child.bias"}});
    return values(model.module().child.bias.tensor());
  });
  CHECK(biases == std::vector<Doubles>{{1, 1}, {2, 2}});
  const auto where = run_ranks(1, [](Communicator& communicator) {
    const MMSeparateDistributedDataParallel<Buffered> model(Buffered{}, communicator);
    return Doubles{static_cast<double>(model.module().fixed.device() == communicator.device()),
                   static_cast<double>(model.module().steps.device() == communicator.device()),
                   static_cast<double>(model.module().child.bias.name() == "child.bias")};
  });
  CHECK(where[0] == Doubles{1, 1, 1});
  const auto unknown = messages_of_ranks(1, [](Communicator& communicator) {
    MMSeparateDistributedDataParallel<Heads>(Heads{}, communicator).logging_data("head");
  });
  CHECK(missing(unknown[0], {"(heads.0, heads.1)", "'head'"}) == "");
}

TEST_CASE("an ignored name is of the child before its dot, and of no child whose name begins alike") {
  struct Nested : Module<Nested> {
    Affine tail{3, 2, 1};
    void members(Members& m) override { m("2", tail); }
  };
  // What is ignored of gen.2 would be gen_2.bias's rest for a child gen.
  struct Alike : Module<Alike> {
    Nested gen;
    Affine gen_2{3, 2, 2};
    void members(Members& m) override { m("gen", gen), m("gen_2", gen_2); }
  };
  const auto biases = run_ranks(2, [](Communicator& communicator) {
    Alike module;
    module.gen.tail.bias.assign(full({2}, communicator.rank() + 1.0));
    module.gen_2.bias.assign(full({2}, communicator.rank() + 1.0));
    const MMSeparateDistributedDataParallel<Alike> model(std::move(module), communicator, {.ignore = {"gen_2.bias"}});
    return values(model.module().gen.tail.bias.tensor())[0] * 10 + values(model.module().gen_2.bias.tensor())[0];
  });
  CHECK(biases == Doubles{11, 12});
  CHECK(missing(separate_refusal<Alike>({.ignore = {"gen2.bias"}}), {"ignored", "'gen2.bias'"}) == "");
}

TEST_CASE("children that differ between ranks are an error on every rank") {
  const auto said = messages_of_ranks(2, [](Communicator& communicator) {
    Heads heads;
    if (communicator.rank() == 1) heads.heads.pop_back();
    MMSeparateDistributedDataParallel<Heads>(std::move(heads), communicator);
  });
  for (const std::string& rank : said)
    CHECK(missing(rank, {"same children", "on rank 0 heads.0 (averaged), heads.1 (averaged)", "on rank 1"}) == "");
  const auto one_at_fault = messages_of_ranks(2, [](Communicator& communicator) {
    Heads heads;
    if (communicator.rank() == 1)
      for (Affine& head : heads.heads) head.set_requires_grad(false);
    MMSeparateDistributedDataParallel<Heads>(std::move(heads), communicator);
  });
  CHECK(missing(one_at_fault[0], {"rank 1:", "2 children without"}) == "");
  CHECK(missing(one_at_fault[1], {"2 children without"}) == "");
}

TEST_CASE("a rank that fails in a step is an error on the others") {
  const auto said = messages_of_ranks(2, [](Communicator& communicator) {
    MMSeparateDistributedDataParallel<Heads> model(Heads{}, communicator);
    OptimWrapperDict optims;
    for (std::size_t i = 0; i < 2; ++i) add(optims, i == 0 ? "0" : "1", model.module().heads[i].parameters(), 0.1);
    for (int i = 0; i < 4; ++i) {
      const Batch batch = share_of_batch(i, communicator.rank(), 2);
      // Targets that do not fit.
      model.train_step(i == 1 && communicator.rank() == 1 ? Batch(batch.first, batch.first) : batch, optims);
      synchronize(communicator.device());
    }
  });
  CHECK(missing(said[0], {"CommError", "rank 1"}) == "");
  CHECK(missing(said[1], {"[2, 3]"}) == "");
}

TEST_CASE("a module that was wrapped is as it was, and its copies do not follow") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    const Tensor x = full({1, 3}, communicator.rank() + 1.0, {.dtype = DType::f64, .device = communicator.device()});
    std::vector<Affine> copies;
    Doubles seen;
    {
      MMSeparateDistributedDataParallel<Heads> model(Heads{}, communicator);
      copies.push_back(deep_copy(model.module().heads[0]));
      const Tensor output = sum(model.module().heads[0](x));
      sum(copies[0](x)).backward();  // is no call of the child
      output.backward();
      seen.push_back(model.module().heads[0].weight.grad()[0][0].item<double>());
      copies.push_back(model.module().heads[0]);
    }
    copies[1].zero_grad();
    for (const Affine& copy : copies) {
      copy.weight.zero_grad();
      sum(copy(x)).backward();
      seen.push_back(copy.weight.grad()[0][0].item<double>());
    }
    return seen;
  });
  CHECK(result[0] == Doubles{1.5, 1, 1});
  CHECK(result[1] == Doubles{1.5, 2, 2});
}
