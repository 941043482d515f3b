// Norms whose statistics ranks share: as one norm of all their pieces.
#include "lockstep/parallel/sync_norm/rank_statistics.h"

#include "lockstep/parallel/comm/peer/peer_communicator.h"
#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/autograd/checkpoint.h"
#include "parallel/ddp/support.h"
#include "parallel/sync_norm/support.h"

using namespace parallel_test;

namespace {

template <class Norm>
NormResult whole_of(const NormCase& of) {
  Norm norm = make_norm<Norm>(of);
  return train_norm(norm, of.whole(1), of.whole(2));
}

template <class Norm>
NormResult piece_of(const NormCase& of, Communicator& communicator) {
  const auto rank = static_cast<std::size_t>(communicator.rank());
  const Device device = communicator.device();
  Norm norm = make_norm<Norm>(of);
  norm.to(device);
  convert_sync_batchnorm(norm, communicator);
  return train_norm(norm, of.piece(1, rank, device), of.piece(2, rank, device));
}

// What `body` gives with the norm of each rank, after conversion.
template <class Body>
auto with_norms(int ranks, const NormCase& of, Body body) {
  return run_ranks(ranks, [&](Communicator& communicator) {
    BatchNorm1d norm = make_norm<BatchNorm1d>(of);
    norm.to(communicator.device());
    convert_sync_batchnorm(norm, communicator);
    return body(norm, communicator);
  });
}

double largest_value(const Doubles& of) {
  double largest = 0;
  for (const double value : of) largest = std::max(largest, std::abs(value));
  return largest;
}

}  // namespace

TEST_CASE("ranks normalise by the statistics of all of them") {
  using Make = decltype(RunRanksOptions::make);
  const Make peers = [](std::span<const Device> devices, Milliseconds timeout) {
    return make_peer_group({devices.begin(), devices.end()}, {.timeout = timeout});
  };
  for (const auto& [kind, make] : {std::pair<const char*, Make>("shared memory", {}), {"peers", peers}}) {
    for (const NormCase& of : norm_cases()) {
      INFO(of.name << ", " << kind);
      const bool pictures = of.rest.rank() == 2;
      const auto pieces = run_ranks(3,
                                    [&](Communicator& communicator) {
                                      return pictures ? piece_of<BatchNorm2d>(of, communicator)
                                                      : piece_of<BatchNorm1d>(of, communicator);
                                    },
                                    {.make = make});
      const NormResult whole = pictures ? whole_of<BatchNorm2d>(of) : whole_of<BatchNorm1d>(of);
      CHECK(distance(together(pieces), whole) < 1e-10);
      for (const NormResult& piece : pieces) CHECK(piece.state == pieces[0].state);
    }
  }
}

TEST_CASE("one rank normalises as a norm by itself") {
  const NormCase of{"alone", {5}};
  const auto pieces = run_ranks(1, [&](Communicator& communicator) { return piece_of<BatchNorm1d>(of, communicator); });
  CHECK(distance(pieces[0], whole_of<BatchNorm1d>(of)) == 0);
}

TEST_CASE("ranks share statistics of f32 and of 16 bits") {
  for (const auto& [dtype, tolerance] : {std::pair(DType::f32, 5e-6), {DType::f16, 4e-3}, {DType::bf16, 4e-2}}) {
    NormCase of{"narrow", {4, 0, 3}, {5}};
    of.dtype = dtype;
    const auto pieces =
        run_ranks(3, [&](Communicator& communicator) { return piece_of<BatchNorm1d>(of, communicator); });
    // The same numbers, rounded as they are, in f64.
    NormCase wide = of;
    wide.dtype = DType::f64;
    BatchNorm1d norm = make_norm<BatchNorm1d>(of);
    norm.to(DType::f64);
    const NormResult whole = train_norm(norm, of.whole(1).to(DType::f64), of.whole(2).to(DType::f64));
    const NormResult all = together(pieces);
    INFO(cat(dtype));
    const auto near = [tolerance = tolerance](const Doubles& a, const Doubles& b) {
      return distance(a, b) / (tolerance * largest_value(b));
    };
    CHECK(near(all.y, whole.y) < 1);
    CHECK(near(all.dx, whole.dx) < 1);
    CHECK(near(all.dweight, whole.dweight) < 1);
    CHECK(near(all.dbias, whole.dbias) < 1);
    CHECK(near(all.state, whole.state) < 1);
  }
}

TEST_CASE("counts of elements are not those of 16 bits") {
  // 35,000 per channel on each rank: more than f16 can say.
  const auto states = run_ranks(2, [](Communicator& communicator) {
    BatchNorm1d norm(1, {.momentum = 1.0});
    norm.to(DType::f16);
    norm.to(communicator.device());
    convert_sync_batchnorm(norm, communicator);
    const double value = communicator.rank() == 0 ? 2 : 4;
    norm(full({700, 1, 50}, value, {.dtype = DType::f16, .device = communicator.device()}));
    return state_of(norm);
  });
  for (const Doubles& state : states) CHECK(state == Doubles{3, 1, 1});
}

TEST_CASE("inputs of 16 bits go with parameters of f32") {
  const auto results = run_ranks(2, [](Communicator& communicator) {
    BatchNorm1d norm(1);
    norm.to(communicator.device());
    convert_sync_batchnorm(norm, communicator);
    const double value = communicator.rank() == 0 ? -1 : 1;
    const Tensor y = norm(full({4, 1}, value, {.dtype = DType::f16, .device = communicator.device()}));
    y.backward(ones_like(y));
    Doubles result = wide_values(y);
    const Autocast casts(DType::f16);  // as one norm there: f32 comes out
    result.push_back(y.dtype() == DType::f16 && norm(y.detach()).dtype() == DType::f32);
    result.push_back(norm.bias.grad().dtype() == DType::f32);
    return result;
  });
  CHECK(results[0] == Doubles{-1, -1, -1, -1, 1, 1});
  CHECK(results[1] == Doubles{1, 1, 1, 1, 1, 1});
}

TEST_CASE("pieces without elements, or one in all, leave the running statistics alone") {
  for (const std::vector<std::int64_t>& rows : {std::vector<std::int64_t>{0, 0}, {0, 1}}) {
    NormCase of{"few", rows};
    for (const bool averages : {false, true}) {
      if (averages) of.options.momentum = std::nullopt;
      const auto pieces =
          run_ranks(2, [&](Communicator& communicator) { return piece_of<BatchNorm1d>(of, communicator); });
      for (const NormResult& piece : pieces) CHECK(piece.state == Doubles{0, 0, 0, 1, 1, 1, 0});
      CHECK(pieces[0].y.empty());
      CHECK(pieces[0].dx.empty());
      CHECK(pieces[0].dweight == Doubles{0, 0, 0});
      CHECK(pieces[0].dbias == Doubles{0, 0, 0});
      if (rows[1] == 0) continue;
      CHECK(pieces[1].y == wide_values(make_norm<BatchNorm1d>(of).bias.tensor()));
      CHECK(largest_value(pieces[1].dx) < 1e-10);
      CHECK(pieces[1].dbias == values(of.whole(2)));
    }
  }
}

TEST_CASE("a rank whose input wants no gradient takes part in the backward of the others") {
  const NormCase of{"mixed", {2, 3, 2}};
  for (const std::size_t without : {0u, 1u, 2u}) {
    const auto pieces = with_norms(3, of, [&](BatchNorm1d& norm, Communicator& communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      const Device device = communicator.device();
      return train_norm(norm, of.piece(1, rank, device), of.piece(2, rank, device), rank != without);
    });
    const NormResult whole = whole_of<BatchNorm1d>(of);
    std::int64_t begin = 0;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      const auto part = [&](std::int64_t at) { return whole.dx.begin() + at * kChannels; };
      if (rank != without) CHECK(distance(pieces[rank].dx, Doubles(part(begin), part(begin + of.rows[rank]))) < 1e-10);
      begin += of.rows[rank];
    }
    CHECK(distance(together(pieces).dweight, whole.dweight) < 1e-10);
  }
}

TEST_CASE("evaluation is each rank's own") {
  NormCase of{"evaluated", {2, 2}};
  for (const bool tracks : {true, false}) {
    of.options.track_running_stats = tracks;
    const auto results = with_norms(2, of, [&](BatchNorm1d& norm, Communicator& communicator) {
      if (tracks) norm(of.piece(3, static_cast<std::size_t>(communicator.rank()), communicator.device()));
      norm.eval();
      BatchNorm1d alone = deep_copy(norm);
      revert_sync_batchnorm(alone);
      if (communicator.rank() == 1) return true;  // the other does not come
      const Tensor x = of.piece(1, 0, communicator.device());
      return values(norm(x)) == values(alone(x));
    });
    CHECK(results[0]);
  }
}

TEST_CASE("second derivatives go through all ranks") {
  const NormCase of{"twice", {3, 0, 2}};
  const auto penalty = [&](const BatchNorm1d& norm, Tensor x, const Tensor& dy) {
    x.set_requires_grad();
    const Tensor dx = grad(sum(norm(x) * dy), {x}, {.create_graph = true})[0];
    sum(dx * dx).backward();
    return std::vector<Doubles>{values(x.grad()), values(norm.weight.grad())};
  };
  const auto pieces = with_norms(3, of, [&](BatchNorm1d& norm, Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    return penalty(norm, of.piece(1, rank, communicator.device()), of.piece(2, rank, communicator.device()));
  });
  BatchNorm1d norm = make_norm<BatchNorm1d>(of);
  const auto whole = penalty(norm, of.whole(1), of.whole(2));
  Doubles dx, dweight(kChannels);
  for (const auto& piece : pieces) {
    dx.insert(dx.end(), piece[0].begin(), piece[0].end());
    for (std::size_t c = 0; c < dweight.size(); ++c) dweight[c] += piece[1][c];
  }
  CHECK(distance(dx, whole[0]) < 1e-9);
  CHECK(distance(dweight, whole[1]) < 1e-9);
}

TEST_CASE("a checkpoint computes the norms of all ranks again") {
  const NormCase of{"again", {2, 0, 3}};
  const auto pieces = with_norms(3, of, [&](BatchNorm1d& norm, Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    std::vector<Doubles> gradients;
    for (const bool again : {false, true}) {
      Tensor x = of.piece(1, rank, communicator.device()).set_requires_grad();
      const Tensor y = again ? checkpoint(norm, x) : norm(x);
      y.backward(of.piece(2, rank, communicator.device()));
      gradients.push_back(values(x.grad()));
    }
    return gradients;
  });
  for (const auto& piece : pieces) CHECK(piece[0] == piece[1]);
}

TEST_CASE("a rank that cannot share ends the waits of the others") {
  const NormCase of{"wrong", {2, 2}};
  const auto messages = [&](const std::function<Tensor(Communicator&)>& input) {
    return messages_of_ranks(2, [&](Communicator& communicator) {
      BatchNorm1d norm = make_norm<BatchNorm1d>(of);
      norm.to(communicator.device());
      convert_sync_batchnorm(norm, communicator);
      const Tensor x = communicator.rank() == 1 ? input(communicator) : of.piece(1, 0, communicator.device());
      values(norm(x));
    });
  };
  const auto channels = messages([](Communicator& c) { return noise({2, 4}, 1, c.device()); });
  CHECK(missing(channels[1], {"[BatchNorm1d] expected 3 channels, got f64[2, 4]"}) == "");
  CHECK(missing(channels[0], {"CommError", "rank 1 aborted", "expected 3 channels"}) == "");
  const auto flat = messages([](Communicator& c) { return noise({3}, 1, c.device()); });
  CHECK(missing(flat[1], {"[BatchNorm1d] expected an input of rank 2 to 3"}) == "");
  CHECK(missing(flat[0], {"rank 1 aborted"}) == "");
  const auto elsewhere = messages([](Communicator&) { return noise({2, 3}, 1); });
  CHECK(missing(elsewhere[1], {"[BatchNorm] expected an input on", "where the ranks share", "got one on cpu"}) == "");
  CHECK(missing(elsewhere[0], {"rank 1 aborted"}) == "");
}

TEST_CASE("ranks that are at different norms are told so") {
  struct Two : Module<Two> {
    BatchNorm1d norms[2] = {BatchNorm1d(kChannels), BatchNorm1d(kChannels)};
    void members(Members& m) override { m("first", norms[0]), m("second", norms[1]); }
  };
  for (const bool backward : {false, true}) {
    const auto messages = messages_of_ranks(2, [&](Communicator& communicator) {
      Two net;
      net.to(communicator.device());
      convert_sync_batchnorm(net, communicator);
      const auto x = [&](std::uint64_t seed) {
        return noise({2, kChannels}, seed, communicator.device()).to(DType::f32).set_requires_grad();
      };
      const int begin = communicator.rank();
      const Tensor y[2] = {net.norms[backward ? 0 : begin](x(1)), net.norms[backward ? 1 : 1 - begin](x(2))};
      for (const int i : {begin, 1 - begin}) sum(y[i] * y[i]).backward();
      synchronize(communicator.device());
    });
    for (const std::string& message : messages)
      CHECK(missing(message, {"CommError", backward ? "reduce_scatter" : "all_gather", "elements"}) == "");
  }
}

TEST_CASE("norms go on without a rank that failed, once they are converted again") {
  const NormCase of{"left", {2, 3}};
  std::vector<std::string> again(3);
  const auto pieces = run_ranks(3, [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const Device device = communicator.device();
    BatchNorm1d norm = make_norm<BatchNorm1d>(of);
    norm.to(device);
    convert_sync_batchnorm(norm, communicator);
    const auto failed = [&](const Tensor& x) {
      try {
        values(norm(x));
        return std::string();
      } catch (const Error& error) {
        drain(device);
        return std::string(error.what());
      }
    };
    failed(rank == 2 ? noise({2, 7}, 1, device) : of.piece(1, rank, device));
    again[rank] = failed(of.piece(1, 0, device));  // as before
    if (rank == 2) return NormResult();
    const auto left = communicator.shrink({.exclude = {2}});
    BatchNorm1d mine = make_norm<BatchNorm1d>(of);
    norm.load_state_dict(mine.state_dict());
    convert_sync_batchnorm(norm, *left);
    return train_norm(norm, of.piece(1, rank, device), of.piece(2, rank, device));
  });
  for (const std::string& message : again) CHECK(missing(message, {"rank 2 aborted"}) == "");
  CHECK(distance(together({pieces[0], pieces[1]}), whole_of<BatchNorm1d>(of)) < 1e-10);
}

TEST_CASE("ranks on one device do not wait for each other in one backward thread") {
  support::needs_devices(2);
  const Device here = first_devices(2)[0], there = first_devices(2)[1];
  std::vector<std::string> messages(2);
  run_ranks(2,
            [&](Communicator& communicator) {
              try {
                const NormCase of{"shared", {2, 2}};
                BatchNorm1d norm = make_norm<BatchNorm1d>(of);
                norm.to(here);
                convert_sync_batchnorm(norm, communicator);
                Tensor x = of.piece(1, static_cast<std::size_t>(communicator.rank()), there).set_requires_grad();
                sum(norm((x * 2.0).to(here))).backward();
              } catch (const std::exception& error) {
                messages[static_cast<std::size_t>(communicator.rank())] = error.what();
              }
              drain(here);
            },
            {.devices = {here, here}});
  const auto said = [&](const char* part) {
    return std::count_if(messages.begin(), messages.end(),
                         [&](const std::string& message) { return message.find(part) != std::string::npos; });
  };
  CHECK(said("alone, as several ranks of this process are there") == 2);
}

TEST_CASE("a norm on another device than the ranks' says where it may be") {
  support::needs_devices(4);
  const auto said = messages_of_ranks(2, [](Communicator& communicator) {
    const Device there = first_devices(4)[static_cast<std::size_t>(2 + communicator.rank())];
    BatchNorm1d norm = make_norm<BatchNorm1d>({"elsewhere", {}});
    norm.to(there);
    convert_sync_batchnorm(norm, communicator);
    values(norm(noise({2, 3}, 1, there)));
  });
  for (const std::string& each : said)
    CHECK(missing(each, {"where the ranks share its statistics, got one on", "place it on the communicator's device",
                         "revert_sync_batchnorm"}) == "");
}

TEST_CASE("replicas beside others do not share the statistics of ranks") {
  support::needs_devices(2);
  const Device home = first_devices(2)[0];
  std::vector<std::string> messages(2);
  run_ranks(2,
            [&](Communicator& communicator) {
              DataParallel<BatchNorm1d> net(make_norm<BatchNorm1d>({"replicas", {}}), {.devices = first_devices(2)});
              convert_sync_batchnorm(net, communicator);
              try {
                net(noise({4, kChannels}, 1));
              } catch (const std::exception& error) {
                messages[static_cast<std::size_t>(communicator.rank())] = error.what();
              }
            },
            {.devices = {home, home}});
  for (const std::string& message : messages)
    CHECK(missing(message, {"[BatchNorm] expected an input on", "got one on", "in a replica beside others"}) == "");
}
