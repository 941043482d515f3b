// Sequences of different lengths in scatter, gather, the wrappers and the loader.
#include "lockstep/parallel/comm/factory/run_ranks.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/tensor/autograd/checkpoint.h"
#include "lockstep/tensor/data/data_loader.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/random.h"
#include "parallel/support.h"

using namespace parallel_test;

namespace {

using Integers = std::vector<std::int64_t>;

const Integers kLengths{2, 5, 1, 3, 5, 4, 1, 2, 6};

// f64 [length, 2] each, all numbers different and whole.
std::vector<Tensor> list_of(const Integers& lengths, Device device = Device::cpu()) {
  std::vector<Tensor> list;
  for (std::size_t s = 0; s < lengths.size(); ++s)
    list.push_back(counting({lengths[s], 2}, device, 100 * static_cast<double>(s)));
  return list;
}
PackedSequence packed(const Integers& lengths, Device device = Device::cpu()) {
  return pack_sequence(list_of(lengths, device), false);
}
void check_same(const PackedSequence& got, const PackedSequence& want) {
  CHECK(got.batch_sizes == want.batch_sizes);
  CHECK(got.sorted_indices == want.sorted_indices);
  CHECK(got.unsorted_indices == want.unsorted_indices);
  CHECK(values(got.data) == values(want.data));
}

// Words to one number per sequence; states given or not. PackedSequence in, tensor out.
struct Reader : Module<Reader> {
  Embedding words{7, 4};
  LSTM lstm{4, 3, {.layers = 2, .bidirectional = true}};
  GRU gru{6, 5};
  RNN rnn{5, 4, {.bidirectional = true}};
  Linear head{8, 2};
  bool checkpointed = false;
  Tensor forward(const PackedSequence& tokens) const {
    const auto body = [this](const PackedSequence& x) { return rnn(gru(lstm(x).output).output).output; };
    const PackedSequence x = tokens.with_data(words(tokens.data));
    const PackedSequence y = checkpointed ? checkpoint(body, x) : body(x);
    return head(pad_packed_sequence(y, {.batch_first = true}).output.sum({1}));
  }
  void members(Members& m) override {
    m("words", words), m("lstm", lstm), m("gru", gru), m("rnn", rnn), m("head", head);
  }
};
PackedSequence tokens(const Integers& lengths) {
  manual_seed(lengths.size());
  std::vector<Tensor> list;
  for (const std::int64_t length : lengths) list.push_back(randint(0, 7, {length}));
  return pack_sequence(list, false);
}

}  // namespace

TEST_CASE("packed sequences are divided by their sequences, in the caller's order") {
  for (const auto& devices : device_sets())
    for (const Device source : {Device::cpu(), devices.back()})
      for (const auto& policy : {ScatterPolicy::chunk(), ScatterPolicy::balanced()}) {
        const PackedSequence batch = packed(kLengths, source);
        const Pieces<PackedSequence> pieces = scatter_pieces(batch, devices, 0, policy);
        // As a tensor with as many rows is.
        const auto beside = scatter(counting({9}), devices, 0, policy);
        REQUIRE(pieces.values.size() == beside.size());
        std::size_t first = 0;
        for (std::size_t i = 0; i < beside.size(); ++i) {
          const auto count = static_cast<std::size_t>(beside[i].size(0));
          CHECK(pieces.devices[i] == beside[i].device());
          CHECK(pieces.values[i].data.device() == beside[i].device());
          const auto from = kLengths.begin() + static_cast<std::ptrdiff_t>(first);
          CHECK(pieces.values[i].lengths() == Integers(from, from + static_cast<std::ptrdiff_t>(count)));
          const std::vector<Tensor> list = unpack_sequence(pieces.values[i]);
          for (std::size_t s = 0; s < count; ++s) CHECK(values(list[s]) == values(list_of(kLengths)[first + s]));
          first += count;
        }
        check_same(gather(pieces.values, Device::cpu()), batch);
        const PackedSequence there = gather(pieces.values, devices[0]);
        CHECK(there.data.device() == devices[0]);
        check_same(there, batch);
      }
}

TEST_CASE("sorted sequences stay sorted when they are divided and joined") {
  support::needs_devices(3);
  const Integers lengths{5, 4, 4, 2, 1};
  const PackedSequence batch = pack_sequence(list_of(lengths));
  const auto pieces = scatter(batch, first_devices(3));
  for (const PackedSequence& piece : pieces) CHECK(piece.sorted_indices.empty());
  check_same(gather(pieces, device_at(1)), batch);
  // Sorted pieces need not be sorted together.
  const PackedSequence other = gather(std::vector{packed({2, 1}), packed({4})}, Device::cpu());
  check_same(other, packed({2, 1, 4}).with_data(other.data));
  CHECK(other.lengths() == Integers{2, 1, 4});
}

TEST_CASE("fewer sequences than devices, sizes that leave devices out, and one device") {
  support::needs_devices(4);
  const auto few = scatter(packed({1, 3}), first_devices(4));
  REQUIRE(few.size() == 2);
  CHECK(few[1].lengths() == Integers{3});
  CHECK(few[1].data.device() == device_at(1));
  const auto sizes = scatter_pieces(packed(kLengths), first_devices(4), 0, ScatterPolicy::sizes({0, 6, 0, 3}));
  REQUIRE(sizes.values.size() == 2);
  CHECK(sizes.devices == devices_at({1, 3}));
  CHECK(sizes.values[0].sample_count() == 6);
  check_same(scatter(packed(kLengths), {Device::cpu()})[0], packed(kLengths));
  check_same(scatter(packed(kLengths), devices_at({2}))[0], packed(kLengths));
  // Where it is already, a whole batch is not copied.
  const PackedSequence home = packed(kLengths, device_at(0));
  CHECK(scatter(home, devices_at({0}))[0].data.storage().get() == home.data.storage().get());
}

TEST_CASE("only the rows of other devices' sequences are moved, once") {
  support::needs_devices(3);
  const PackedSequence batch = packed({2, 1, 4}, device_at(1));
  const std::uint64_t before = detail::moved_bytes();
  const auto pieces = scatter(batch, first_devices(3));
  CHECK(detail::moved_bytes() - before == 8 * 2 * (2 + 4));
  gather(pieces, device_at(2));
  CHECK(detail::moved_bytes() - before == 8 * 2 * (2 + 4 + 2 + 1));
}

TEST_CASE("packed sequences in values, beside tensors and beside nothing") {
  support::needs_devices(3);
  using Batch = std::tuple<std::optional<PackedSequence>, Tensor, std::map<std::string, PackedSequence>, int>;
  const Batch batch{packed(kLengths), counting({9}), {{"x", packed(kLengths)}}, 7};
  const std::vector<Batch> pieces = scatter(batch, first_devices(3));
  REQUIRE(pieces.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto& [maybe, tensor, map, number] = pieces[i];
    CHECK(maybe->sample_count() == 3);
    CHECK(map.at("x").lengths() == Integers(kLengths.begin() + 3 * static_cast<std::ptrdiff_t>(i),
                                            kLengths.begin() + 3 * static_cast<std::ptrdiff_t>(i) + 3));
    CHECK(values(tensor)[0] == 3 * static_cast<double>(i) + 1);
    CHECK(number == 7);
  }
  // Along another dimension, for the tensors: sequences have none.
  const auto states = scatter(std::pair(packed({1, 2, 3}), counting({2, 3, 4})), first_devices(3), 1);
  CHECK(states[2].second.shape() == Shape{2, 1, 4});
  CHECK(states[2].first.lengths() == Integers{3});
  // One that holds nothing is passed over, as an undefined tensor is.
  const auto nothing = scatter(std::pair(PackedSequence(), counting({3})), first_devices(3));
  CHECK(nothing.size() == 3);
  CHECK_FALSE(nothing[2].first.data.defined());
  CHECK_FALSE(gather(std::vector<PackedSequence>(2), Device::cpu()).data.defined());
}

TEST_CASE("gradients go back through scattered and gathered sequences") {
  for (const auto& devices : device_sets()) {
    const PackedSequence batch = packed(kLengths);
    const Tensor data = batch.data.clone().set_requires_grad();
    const std::vector<PackedSequence> pieces = scatter(batch.with_data(data), devices);
    std::vector<PackedSequence> results;
    for (std::size_t i = 0; i < pieces.size(); ++i)
      results.push_back(pieces[i].with_data(pieces[i].data * static_cast<double>(i + 2)));
    const Tensor weights = counting(data.shape(), devices[0]);
    (gather(results, devices[0]).data * weights).sum().backward();
    // Each row got its own weight, times its piece's number.
    Doubles want;
    std::size_t row = 0;
    const std::size_t per_piece = (9 + devices.size() - 1) / devices.size();
    for (const std::int64_t running : batch.batch_sizes)
      for (std::int64_t i = 0; i < running; ++i, ++row)
        for (int column = 0; column < 2; ++column) {
          const auto sequence = static_cast<std::size_t>(batch.sorted_indices[static_cast<std::size_t>(i)]);
          want.push_back(
              static_cast<double>((2 * row + static_cast<std::size_t>(column) + 1) * (sequence / per_piece + 2)));
        }
    CHECK(values(data.grad()) == want);
  }
}

TEST_CASE("packed sequences that do not fit are an error that names both sides") {
  support::needs_devices(4);
  const std::string counts =
      message_of<InvalidArgument>([] { scatter(std::pair(packed(kLengths), counting({2})), first_devices(4)); });
  CHECK(missing(counts, {"[scatter]", "3 pieces", "9 packed sequences", "2 pieces", "f64[2] on cpu"}) == "");
  CHECK_THROWS_AS(scatter(packed(kLengths), first_devices(2), 0, ScatterPolicy::sizes({4, 4})), InvalidArgument);
  PackedSequence broken = packed(kLengths);
  broken.batch_sizes[0] = 4;
  const auto refused = [](const char* op, const auto& call) {
    CHECK(missing(message_of<InvalidArgument>(call), {op, "batch_sizes", "got 7 at time 1 after 4"}) == "");
  };
  refused("[scatter]", [&] { scatter(broken, first_devices(2)); });
  refused("[gather]", [&] { gather(std::vector{packed(kLengths), broken}, Device::cpu()); });
  const std::string dtypes = message_of<InvalidArgument>([] {
    gather(std::vector{packed({1}), packed({1}).to(DType::f32)}, Device::cpu());
  });
  CHECK(missing(dtypes, {"[gather]", "f64[1, 2]", "f32[1, 2]", "replica 1"}) == "");
  CHECK_THROWS_WITH(gather(std::vector{packed({1}), PackedSequence()}, Device::cpu()),
                    Catch::Matchers::Contains("from every replica or from none"));
}

TEST_CASE("readers of packed sequences compute and train in replicas as on one device") {
  const Reader first = seeded<Reader>(1);
  for (const auto& devices : device_sets())
    for (const bool checkpointed : {false, true}) {
      Reader reference = deep_copy(first), copy = deep_copy(first);
      copy.checkpointed = checkpointed;
      const auto net = DataParallel(copy, {.devices = devices});
      for (const Integers& lengths : {kLengths, Integers{1, 3}}) {
        const PackedSequence x = tokens(lengths);
        const Tensor want = reference(x), got = net(x);
        CHECK(largest_difference(got, want) < 1e-10);
        square(want).sum().backward();
        square(got).sum().backward();
      }
      const auto want = reference.parameters(), got = copy.parameters();
      for (std::size_t i = 0; i < want.size(); ++i) CHECK(largest_difference(got[i].grad(), want[i].grad()) < 1e-9);
    }
}

TEST_CASE("a loss in the replicas is weighted by their sequences") {
  support::needs_devices(4);
  const Reader reader = seeded<Reader>(1);
  const auto net = DataParallel(reader, {.devices = first_devices(4)});
  const PackedSequence x = tokens(kLengths);
  const Tensor target = noise({9, 2}, 3);
  const Tensor got = net.reduce_with(
      [](const Tensor& out, const Tensor& wanted) { return square(out - wanted.to(out.device())).mean(); }, x, target);
  const Tensor out = net(x);
  CHECK(largest_difference(got, square(out - target.to(out.device())).mean()) < 1e-12);
}

TEST_CASE("a recurrent layer by itself in replicas: its signature is named") {
  support::needs_devices(3);
  const DefaultDType f64(DType::f64);
  manual_seed(2);
  const LSTM lstm(2, 3, {.layers = 2, .bidirectional = true});
  const PackedSequence x = packed(kLengths).with_data(noise({29, 2}, 1));
  const LstmState state{noise({4, 9, 3}, 2), noise({4, 9, 3}, 3)};
  const PackedLstmResult want = lstm(x, state);
  // The states have the batch in dimension 1.
  const DataParallel<LSTM, PackedLstmResult(PackedSequence, LstmState)> net(
      deep_copy(lstm), {.devices = first_devices(3), .output_device = Device::cpu(), .dim = 1});
  const PackedLstmResult got = net(x, state);
  CHECK(got.output.batch_sizes == want.output.batch_sizes);
  CHECK(got.output.sorted_indices == want.output.sorted_indices);
  CHECK(largest_difference(got.output.data, want.output.data) < 1e-12);
  CHECK(largest_difference(got.h, want.h) < 1e-12);
  CHECK(largest_difference(got.c, want.c) < 1e-12);
  CHECK(largest_difference(net(x, LstmState()).output.data, lstm(x).output.data) < 1e-12);

  const GRU gru(2, 3);
  const DataParallel<GRU, PackedGruResult(PackedSequence)> packed_net(
      gru, {.devices = first_devices(3), .output_device = Device::cpu(), .dim = 1});
  const DataParallel<GRU, GruResult(Tensor)> padded_net(
      gru, {.devices = first_devices(3), .output_device = Device::cpu(), .dim = 1});
  const GRU on_cpu = [&] {
    GRU copy = deep_copy(gru);
    copy.to(Device::cpu());
    return copy;
  }();
  CHECK(largest_difference(packed_net(x).h, on_cpu(x).h) < 1e-12);
  const Tensor padded = noise({4, 5, 2}, 5);
  CHECK(largest_difference(padded_net(padded).output, on_cpu(padded).output) < 1e-12);
}

TEST_CASE("ranks move packed sequences to their device") {
  struct Result {
    bool moved = false;
    Doubles gradient;
  };
  const auto results = run_ranks(2, [](Communicator& communicator) {
    const DefaultDType f64(DType::f64);
    manual_seed(2);
    DistributedDataParallel net(GRU(2, 3), communicator);
    const Integers own = communicator.rank() == 0 ? Integers{2, 5, 1} : Integers{4, 4};
    const PackedGruResult r =
        net(packed(own).with_data(noise({8, 2}, static_cast<std::uint64_t>(communicator.rank()))));
    square(r.output.data).sum().backward();
    Doubles gradient;
    for (const Parameter& p : net.parameters())
      for (const double value : values(p.grad())) gradient.push_back(value);
    return Result{r.output.data.device() == communicator.device() && r.output.lengths() == own, gradient};
  });
  const DefaultDType f64(DType::f64);
  manual_seed(2);
  const GRU gru(2, 3);
  Tensor loss = square(gru(packed({2, 5, 1}).with_data(noise({8, 2}, 0))).output.data).sum();
  loss = loss + square(gru(packed({4, 4}).with_data(noise({8, 2}, 1))).output.data).sum();
  (loss / 2.0).backward();
  Doubles want;
  for (const Parameter& p : gru.parameters())
    for (const double value : values(p.grad())) want.push_back(value);
  for (const Result& result : results) {
    CHECK(result.moved);
    REQUIRE(result.gradient.size() == want.size());
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(std::abs(result.gradient[i] - want[i]) < 1e-10);
  }
}

TEST_CASE("a loader packs its batches where it is told how, and moves them") {
  struct Sentences {
    std::int64_t size() const { return 9; }
    Tensor get(std::int64_t i) const { return list_of(kLengths)[static_cast<std::size_t>(i)]; }
  };
  const auto collate = [](const std::vector<Tensor>& samples) { return pack_sequence(samples, false); };
  DataLoader loader(Sentences(), {.batch_size = 4, .workers = 1, .device = device_at(1)}, collate);
  std::vector<Integers> lengths;
  Doubles sums;
  for (const PackedSequence& batch : loader) {
    CHECK(batch.data.device() == device_at(1));
    lengths.push_back(batch.lengths());
    sums.push_back(batch.data.sum().item<double>());
  }
  CHECK(lengths == std::vector<Integers>{{2, 5, 1, 3}, {5, 4, 1, 2}, {6}});
  CHECK(sums[2] == values(list_of(kLengths)[8].sum())[0]);
}
