// Whole states and norms of modules of which each rank has a part.
#include <limits>

#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/parallel/tensor_parallel/parallel_linear.h"
#include "lockstep/parallel/tensor_parallel/vocabulary.h"
#include "lockstep/tensor/nn/norm.h"
#include "parallel/tensor_parallel/support.h"

using namespace parallel_test;

namespace {

struct Parted : Module<Parted> {
  explicit Parted(Communicator& ranks)
      : words(ranks, 13, 6), norm(6), fused(ranks, 6, 48, {.sections = {24, 24}}), down(ranks, 24, 6) {}
  Tensor forward(const Tensor& ids) const {
    const std::vector<Tensor> both = chunk(fused(norm(words(ids))), 2, 1);
    return down(silu(both[0]) * both[1]);
  }
  void members(Members& m) override { m("words", words), m("norm", norm), m("fused", fused), m("down", down); }
  VocabularyParallelEmbedding words;
  LayerNorm norm;
  ColumnParallelLinear fused;
  RowParallelLinear down;
};

Tensor ids_on(Device device) { return from_data(std::vector<std::int64_t>{1, 12, 7, 7, 0}, {5}, {.device = device}); }

}  // namespace

TEST_CASE("a state from p ranks is one for q ranks") {
  std::map<int, std::vector<NamedTensor>> saved;
  for (const int p : {1, 2, 3})
    saved[p] = run_ranks(p, [](Communicator& ranks) {
                 manual_seed(21);
                 Parted module(ranks);
                 module.to(ranks.device());
                 return whole_state(module, ranks, ranks.size() - 1);
               }).back();
  for (const auto& [p, state] : saved) {
    REQUIRE(state.size() == saved[1].size());
    for (std::size_t i = 0; i < state.size(); ++i) {
      CHECK(state[i].name == saved[1][i].name);
      CHECK(largest_difference(state[i].tensor, saved[1][i].tensor) == 0);
    }
    for (const int q : {1, 2, 4}) {
      const auto outputs = run_ranks(q, [state = state](Communicator& ranks) {
        manual_seed(22);
        Parted module(ranks);
        Parted copy = deep_copy(module);
        copy.to(ranks.device());
        copy.load_state_dict(own_parts(copy, state));
        return std::pair(values(copy(ids_on(ranks.device()))), whole_state(copy, ranks));
      });
      const auto& again = outputs[0].second;
      REQUIRE(again.size() == state.size());
      for (std::size_t i = 0; i < state.size(); ++i) CHECK(largest_difference(again[i].tensor, state[i].tensor) == 0);
    }
  }
}

TEST_CASE("gradients are clipped by the norm of the whole model, on every rank alike") {
  for (const double type : {2.0, 3.0, std::numeric_limits<double>::infinity()}) {
    const auto body = [type](Communicator& ranks) {
      const DefaultDType f64(DType::f64);
      manual_seed(8);
      Parted module(ranks);
      module.to(ranks.device());
      sum(square(module(ids_on(ranks.device())))).backward();
      Results results;
      const std::vector<Parameter> parameters = module.parameters();
      const Tensor norm = ranks.size() == 1 ? clip_grad_norm(parameters, 0.5, {.norm_type = type})
                                            : clip_grad_norm(parameters, 0.5, ranks, {.norm_type = type});
      results["norm"] = values(norm);
      for (const auto& [name, parameter] : module.named_parameters())
        results[name] = values(whole_gradient(parameter, ranks));
      return results;
    };
    const Results alone = run_ranks(1, body)[0];
    for (const int count : {2, 3}) {
      INFO("norm " << type << ", " << count << " ranks");
      for (const Results& each : run_ranks(count, body))
        CHECK(largest_difference(each, alone) <= 1e-12 * alone.at("norm")[0]);
    }
  }
}

TEST_CASE("parts of divided parameters are not clipped by a rank alone") {
  for (const std::string& each : run_ranks(2, [](Communicator& ranks) {
         manual_seed(24);
         Parted module(ranks);
         module.to(ranks.device());
         sum(square(module(ids_on(ranks.device())))).backward();
         const std::vector<double> words = values(module.words.weight.grad()),
                                   scale = values(module.norm.weight.grad());
         const std::string said =
             missing(message_of<InvalidArgument>([&] { clip_grad_norm(module.parameters(), 1e-3); }),
                     {cat("parameter 0, [7, 6], is the part of rank ", ranks.rank(), " of 2"),
                      "(parameters, max_norm, ranks)"});
         if (values(module.words.weight.grad()) != words || values(module.norm.weight.grad()) != scale)
           return said + " and a gradient has changed";
         clip_grad_norm(module.norm.parameters(), 1e-3);  // which all ranks have
         return values(module.norm.weight.grad()) == scale ? said + " and the norm's was not clipped" : said;
       }))
    CHECK(each == "");
}

TEST_CASE("ranks that divide a model and others that divide its batch train as one device does") {
  const auto ids_of = [](int begin, int count, Device device) {
    return from_data(std::vector<std::int64_t>{1, 12, 7, 7, 0, 3}, {6}).narrow(0, begin, count).contiguous().to(device);
  };
  const auto train = [](auto& net, const std::vector<Parameter>& parameters, const Tensor& ids) {
    SGD sgd(parameters, {.lr = 0.5});
    for (int step = 0; step < 3; ++step) {
      sgd.zero_grad();
      mean(square(net(ids))).backward();
      sgd.step();
    }
  };
  const auto state_of = [](const ModuleBase& module, Communicator& ranks) {
    std::vector<Doubles> all;
    for (const NamedTensor& each : whole_state(module, ranks)) all.push_back(values(each.tensor));
    return all;
  };
  const auto alone = run_ranks(1, [&](Communicator& ranks) {
    const DefaultDType f64(DType::f64);
    manual_seed(31);
    Parted module(ranks);
    module.to(ranks.device());
    train(module, module.parameters(), ids_of(0, 6, ranks.device()));
    return state_of(module, ranks);
  })[0];
  const auto together = run_ranks(4, [&](Communicator& all) {
    const DefaultDType f64(DType::f64);
    manual_seed(31);
    const int replica = all.rank() / 2;
    const auto model_ranks = all.split(replica), data_ranks = all.split(all.rank() % 2);
    Parted module(*model_ranks);
    module.to(all.device());
    DistributedDataParallel<Parted> net(std::move(module), *data_ranks, small_buckets());
    train(net, net.parameters(), ids_of(3 * replica, 3, all.device()));
    return state_of(net.module(), *model_ranks);
  });
  for (const int rank : {0, 2}) {  // the others have sent theirs
    const auto& got = together[static_cast<std::size_t>(rank)];
    REQUIRE(got.size() == alone.size());
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(largest_difference(got[i], alone[i]) < 1e-12);
  }
}
