// Layers that ranks divide among them compute what one device does, forward and backward.
#include "lockstep/parallel/tensor_parallel/parallel_attention.h"
#include "lockstep/parallel/tensor_parallel/rank_ops.h"
#include "lockstep/parallel/tensor_parallel/vocabulary.h"
#include "lockstep/tensor/nn/norm.h"
#include "parallel/tensor_parallel/support.h"

using namespace parallel_test;

namespace {

// What all ranks' modules give for x, and the gradients of a sum with uneven weights.
template <class M>
Results results_of(const M& module, Tensor x, Communicator& ranks) {
  Results results;
  if (is_floating(x.dtype())) x.set_requires_grad();
  const Tensor y = module(x);
  sum(y * noise(y.shape(), 77, y.device()).to(y.dtype())).backward();
  results["output"] = values(y);
  if (x.requires_grad()) results["x.grad"] = values(x.grad());
  for (const auto& [name, parameter] : module.named_parameters())
    results[name] = values(whole_gradient(parameter, ranks));
  return results;
}

// All ranks' modules against that of one rank alone, which begins with the same numbers.
template <class F>
void check_layer(F make, const Tensor& x) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const auto body = [&](Communicator& ranks) {
      const DefaultDType scope(dtype);
      manual_seed(ranks.rank() == 0 ? 5 : 99);  // rank 0's numbers are everybody's
      auto module = make(ranks);
      module.to(ranks.device());
      const Tensor own = x.to(ranks.device());
      return results_of(module, is_floating(x.dtype()) ? own.to(dtype) : own, ranks);
    };
    const Results alone = run_ranks(1, body, {.make = make_loopback})[0];
    for (const RankGroup& group : groups()) {
      if (dtype == DType::f32 && group.ranks != 3) continue;
      INFO(group.name << ", " << group.ranks << " ranks, " << to_string(dtype));
      const auto all = run_ranks(group.ranks, body, {.make = group.make});
      for (const Results& each : all) {
        CHECK(each == all[0]);
        CHECK(largest_difference(each, alone) <= (dtype == DType::f32 ? 1e-5 : 1e-12));
      }
    }
  }
}

struct ParallelBlock : Module<ParallelBlock> {
  explicit ParallelBlock(Communicator& ranks)
      : before(24),
        attention(ranks, 24, 12, {.groups = 12, .head_size = 4, .causal = true}),
        after(24),
        up(ranks, 24, 36, {.activation = Activation::gelu_tanh}),
        down(ranks, 36, 24) {}
  Tensor forward(const Tensor& x) const {
    const Tensor mixed = x + attention(before(x));
    return mixed + down(up(after(mixed)));
  }
  void members(Members& m) override {
    m("before", before), m("attention", attention), m("after", after), m("up", up), m("down", down);
  }
  LayerNorm before;
  ParallelAttention attention;
  LayerNorm after;
  ColumnParallelLinear up;
  RowParallelLinear down;
};

}  // namespace

TEST_CASE("divided layers compute what one device does") {
  const Tensor x = noise({5, 2, 24}, 3), narrowed = noise({7, 24, 3}, 4).transpose(1, 2);
  SECTION("columns, gathered") {
    const auto make = [](Communicator& ranks) {
      return ColumnParallelLinear(ranks, 24, 36, {.activation = Activation::relu, .gather_output = true});
    };
    check_layer(make, narrowed);
  }
  SECTION("rows, of what is whole") {
    check_layer([](Communicator& ranks) { return RowParallelLinear(ranks, 24, 7, {.split_input = true}); }, narrowed);
  }
  SECTION("attention, with fewer heads of keys and values") {
    const auto make = [](Communicator& ranks) {
      return ParallelAttention(ranks, 24, 24, {.groups = 12, .head_size = 3, .causal = true});
    };
    check_layer(make, x);
  }
  SECTION("a transformer block") {
    check_layer([](Communicator& ranks) { return ParallelBlock(ranks); }, x);
  }
  SECTION("words, of which there are more and fewer than ranks divide") {
    const std::int64_t words = GENERATE(5, 12, 13);
    const Tensor ids = from_data(std::vector<std::int64_t>{0, 1, 4, 2, 2, 3}, {2, 3});
    check_layer([words](Communicator& ranks) { return VocabularyParallelEmbedding(ranks, words, 6); }, ids);
  }
}

TEST_CASE("operations over ranks take tensors with any strides, and are each other's adjoints") {
  for (const RankGroup& group : groups()) {
    INFO(group.name << ", " << group.ranks << " ranks");
    const auto said = run_ranks(
        group.ranks,
        [](Communicator& ranks) {
          const Tensor of_all = noise({4, 3, 2}, 1, ranks.device());
          const double p = ranks.size();
          std::vector<std::string> wrong;
          const auto check = [&](const char* what, bool right) {
            if (!right) wrong.emplace_back(what);
          };
          Tensor x = (of_all * (ranks.rank() + 1.0)).transpose(0, 2);
          x = x.detach().set_requires_grad();
          const Tensor before = x.detach().clone(), total = of_all.transpose(0, 2) * (p * (p + 1) / 2);
          const Tensor y = sum_over_ranks(x, ranks);
          check("a sum", largest_difference(y, total) < 1e-12);
          check("x stays", largest_difference(x, before) == 0);
          const Tensor weight = noise({2, 4, 3}, 2, ranks.device()).transpose(1, 2);
          y.backward(weight);
          check("the gradient of a sum", largest_difference(x.grad(), weight) == 0);

          Tensor z = noise({2, 3, 4}, 5, ranks.device()).set_requires_grad();
          copy_to_ranks(z, ranks).backward(weight * (ranks.rank() + 1.0));
          check("the gradient of a copy", largest_difference(z.grad(), weight * (p * (p + 1) / 2)) < 1e-12);

          // [.., 12]: the parts of all are the whole again.
          Tensor wide = noise({12, 5}, 6, ranks.device()).transpose(0, 1).detach().set_requires_grad();
          const Tensor part = split_to_ranks(wide, ranks);
          check("the size of a part", part.size(-1) == 12 / ranks.size());
          const Tensor again = gather_from_ranks(part, ranks);
          check("what is split and gathered", largest_difference(again, wide) == 0);
          const Tensor seed = noise({12, 5}, 7, ranks.device()).transpose(0, 1);
          again.backward(seed);
          check("its gradient", largest_difference(wide.grad(), seed) == 0);

          // Derivatives of derivatives: of (sum over ranks of r x)^2, through the gradient.
          Tensor w = full({}, 3, {.dtype = DType::f64, .device = ranks.device()}).set_requires_grad();
          const Tensor s = sum_over_ranks(copy_to_ranks(w, ranks) * (ranks.rank() + 1.0), ranks);
          const Tensor first = grad(s * s, {w}, {.create_graph = true})[0];
          const double factor = p * (p + 1) / 2;
          check("a first derivative", std::abs(first.item<double>() - 6 * factor * factor) < 1e-9);
          check("a second derivative", std::abs(grad(first, {w})[0].item<double>() - 2 * factor * factor) < 1e-9);
          return wrong;
        },
        {.make = group.make});
    for (const auto& wrong : said) CHECK(wrong == std::vector<std::string>{});
  }
}

TEST_CASE("whatever the number of ranks, the weights are those of one device") {
  manual_seed(3);
  const Linear whole(8, 12);
  const Embedding words(13, 4);
  const auto state = [](int count) {
    return run_ranks(count, [](Communicator& ranks) {
      manual_seed(static_cast<std::uint64_t>(ranks.rank()) + 3);
      const ColumnParallelLinear up(ranks, 8, 12);
      const VocabularyParallelEmbedding table(ranks, 13, 4);
      // Further draws are this thread's own again, as far on.
      const bool own = thread_context().random_seed == static_cast<std::uint64_t>(ranks.rank()) + 3 &&
                       thread_context().random_counter == 3;
      if (up.weight.shape() != Shape{12 / ranks.size(), 8} || !own) throw Error("holds more than its part");
      std::vector<Doubles> all;
      for (const ModuleBase* each : {static_cast<const ModuleBase*>(&up), static_cast<const ModuleBase*>(&table)}) {
        const_cast<ModuleBase*>(each)->to(ranks.device());
        for (const NamedTensor& named : whole_state(*each, ranks)) all.push_back(values(named.tensor.to(DType::f64)));
      }
      return all;
    })[0];
  };
  const auto expected = [&] {
    std::vector<Doubles> all;
    for (const NamedTensor& named : whole.state_dict()) all.push_back(values(named.tensor.detach().to(DType::f64)));
    all.push_back(values(words.weight.tensor().detach().to(DType::f64)));
    return all;
  }();
  for (const int ranks : {1, 2, 3, 4}) CHECK(state(ranks) == expected);
}

TEST_CASE("divided layers name what does not divide") {
  const auto said = [](auto make) { return messages_of_ranks(2, [make](Communicator& ranks) { make(ranks); })[1]; };
  using Catch::Matchers::Contains;
  CHECK_THAT(said([](Communicator& r) { ColumnParallelLinear(r, 4, 5); }),
             Contains("[ColumnParallelLinear] expected a size that 2 ranks divide evenly, got 5"));
  CHECK_THAT(said([](Communicator& r) {
               ColumnParallelLinear(r, 4, 6, {.sections = {3, 3}});
             }),
             Contains("2 ranks divide evenly, got 3"));
  CHECK_THAT(said([](Communicator& r) {
               ColumnParallelLinear(r, 4, 8, {.sections = {2, 2}});
             }),
             Contains("sections of 8 outputs together, got 4"));
  CHECK_THAT(said([](Communicator& r) {
               ColumnParallelLinear(r, 4, 8, {.gather_output = true, .sections = {4, 4}});
             }),
             Contains("one section where the output is gathered, got 2"));
  CHECK_THAT(said([](Communicator& r) { RowParallelLinear(r, 5, 4); }),
             Contains("[RowParallelLinear] expected a size that 2 ranks divide evenly, got 5"));
  CHECK_THAT(
      said([](Communicator& r) { ParallelAttention(r, 8, 4, {.groups = 1}); }),
      Contains("[ParallelAttention] expected heads of queries and of keys and values that 2 ranks divide evenly, "
               "got 4 and 1"));
  CHECK_THAT(said([](Communicator& r) {
               split_to_ranks(zeros({2, 3}, {.device = r.device()}), r);
             }),
             Contains("[split_to_ranks] expected a last dimension that 2 ranks divide evenly"));
  CHECK_THAT(said([](Communicator& r) { sum_over_ranks(zeros({2}), r); }),
             Contains("[sum_over_ranks] expected a tensor on host:1"));
  CHECK_THAT(said([](Communicator& r) { gather_from_ranks(zeros({}, {.device = r.device()}), r); }),
             Contains("[gather_from_ranks] expected at least 1 dimension"));
  CHECK_THAT(said([](Communicator& r) { VocabularyParallelEmbedding(r, 0, 4); }), Contains("at least one word"));
  CHECK_THAT(said([](Communicator& r) {
               ColumnParallelLinear up(r, 4, 8);
               up.to(r.device());
               own_parts(up, {{"weight", zeros({4, 4})}});
             }),
             Contains("[own_parts] expected all of 'weight', [8, 4], of which rank 1 of 2 has a part, got f32[4, 4]"));
}

TEST_CASE("a rank that throws between divided layers is an error on all ranks") {
  const bool in_backward = GENERATE(false, true);
  const auto body = [in_backward](Communicator& ranks) {
    ParallelBlock block(ranks);
    block.to(ranks.device());
    Tensor x = noise({2, 3, 24}, 1, ranks.device()).to(DType::f32).set_requires_grad();
    const Tensor y = block(x);
    const auto fail = [&] {
      if (ranks.rank() == 1) throw Error("rank 1 has had enough");
    };
    if (in_backward) y.register_hook([&](Tensor&) { fail(); });
    if (!in_backward) fail();
    sum(y).backward();
    if (!in_backward) block(x);
    synchronize(ranks.device());
  };
  for (const Make& make : {Make(), Make(make_peers)}) {
    const std::string message =
        support::message_of<CommError>([&] { run_ranks(3, body, {.timeout = Milliseconds{20000}, .make = make}); });
    CHECK_THAT(message, Catch::Matchers::Contains("rank 1 has had enough"));
    for (const Device device : accelerators()) drain(device);
  }
}
