// Packing, padding and listing sequences of different lengths: against plain loops over their elements.
#include "lockstep/tensor/nn/packed_sequence.h"

#include <cmath>
#include <limits>

#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/compare.h"
#include "support/devices.h"
#include "support/gradcheck.h"
#include "support/watched.h"

using namespace lockstep;
using Catch::Matchers::Contains;
using support::device_at;
using support::difference;
using support::gradcheck;
using support::gradgradcheck;
using support::random_leaf;

namespace {

using Integers = std::vector<std::int64_t>;
using Doubles = std::vector<double>;

// Sequence s has the elements 100 * s, 100 * s + 1, …, each twice; what lies beyond its length is -1.
Tensor numbered(const Integers& lengths, std::int64_t times, bool batch_first, Device device = Device::cpu()) {
  const auto batch = static_cast<std::int64_t>(lengths.size());
  Doubles values;
  const auto add = [&](std::int64_t s, std::int64_t t) {
    const bool counts = t < lengths[static_cast<std::size_t>(s)];
    const double value = 100 * static_cast<double>(s) + static_cast<double>(t);
    values.insert(values.end(), {counts ? value : -1, counts ? value + 0.5 : -1});
  };
  for (std::int64_t i = 0; i < (batch_first ? batch : times); ++i)
    for (std::int64_t j = 0; j < (batch_first ? times : batch); ++j) batch_first ? add(i, j) : add(j, i);
  return from_data(values, batch_first ? Shape{batch, times, 2} : Shape{times, batch, 2}, {.device = device});
}

// What the packed data of these must be, in the order `sorted` of the caller's sequences.
Doubles packed_values(const Integers& lengths, const Integers& sorted) {
  Doubles values;
  for (std::int64_t t = 0; t < lengths[static_cast<std::size_t>(sorted[0])]; ++t)
    for (const std::int64_t s : sorted)
      if (t < lengths[static_cast<std::size_t>(s)]) {
        const double value = 100 * static_cast<double>(s) + static_cast<double>(t);
        values.insert(values.end(), {value, value + 0.5});
      }
  return values;
}

PackedSequence unsorted(const Tensor& x, const Integers& lengths, bool batch_first = false) {
  return pack_padded_sequence(x, lengths, {.batch_first = batch_first, .enforce_sorted = false});
}

}  // namespace

TEST_CASE("padded sequences are packed time by time, the longest first") {
  for (const bool batch_first : {false, true}) {
    const Integers sorted_lengths{4, 2, 2, 1};
    const PackedSequence packed =
        pack_padded_sequence(numbered(sorted_lengths, 5, batch_first), sorted_lengths, {.batch_first = batch_first});
    CHECK(packed.batch_sizes == Integers{4, 3, 1, 1});
    CHECK(packed.sorted_indices.empty());
    CHECK(packed.unsorted_indices.empty());
    CHECK(packed.data.to_vector<double>() == packed_values(sorted_lengths, {0, 1, 2, 3}));
    CHECK(packed.sample_count() == 4);
    CHECK(packed.lengths() == sorted_lengths);

    const Integers lengths{2, 5, 1, 5, 2};
    const PackedSequence other = unsorted(numbered(lengths, 6, batch_first), lengths, batch_first);
    CHECK(other.batch_sizes == Integers{5, 4, 2, 2, 2});
    CHECK(other.sorted_indices == Integers{1, 3, 0, 4, 2});  // equal ones keep their order
    CHECK(other.unsorted_indices == Integers{2, 0, 4, 1, 3});
    CHECK(other.data.to_vector<double>() == packed_values(lengths, {1, 3, 0, 4, 2}));
    CHECK(other.lengths() == lengths);
  }
}

TEST_CASE("packed sequences are padded in the caller's order") {
  const Integers lengths{2, 5, 1, 5, 2};
  for (const bool batch_first : {false, true}) {
    const PackedSequence packed = unsorted(numbered(lengths, 6, batch_first), lengths, batch_first);
    for (const std::int64_t total : {0, 5, 7}) {
      PadOptions options{.batch_first = batch_first, .padding_value = -1};
      if (total > 0) options.total_length = total;
      const PaddedSequences padded = pad_packed_sequence(packed, options);
      CHECK(difference(padded.output, numbered(lengths, total > 0 ? total : 5, batch_first)) == 0);
      CHECK(padded.lengths.to_vector<std::int64_t>() == lengths);
      CHECK(padded.lengths.dtype() == DType::i64);
    }
    const Tensor zeros = pad_packed_sequence(packed, {.batch_first = true}).output;
    CHECK(zeros.select(0, 2).to_vector<double>() == Doubles{200, 200.5, 0, 0, 0, 0, 0, 0, 0, 0});
  }
  // Sequences of single numbers, and of matrices.
  const Tensor flat = from_data({1.0, 2.0, 3.0, -1.0}, {2, 2});
  CHECK(unsorted(flat, {1, 2}, true).data.to_vector<double>() == Doubles{3, 1, -1});
  const Tensor matrices = numbered({3, 1}, 3, false).reshape({3, 2, 2, 1}).expand({3, 2, 2, 4});
  const PackedSequence packed = pack_padded_sequence(matrices, Integers{3, 1});
  CHECK(packed.data.shape() == Shape{4, 2, 4});
  CHECK(difference(pad_packed_sequence(packed, {.padding_value = -1}).output.narrow(0, 0, 1),
                   matrices.narrow(0, 0, 1)) == 0);
}

TEST_CASE("sequences of one length are packed and padded without a copy") {
  const Tensor x = numbered({3, 3}, 3, false);
  const PackedSequence packed = pack_padded_sequence(x, Integers{3, 3});
  CHECK(packed.data.storage().get() == x.storage().get());
  CHECK(pad_packed_sequence(packed).output.storage().get() == x.storage().get());
  CHECK(difference(pad_packed_sequence(packed).output, x) == 0);
  CHECK(difference(pad_packed_sequence(packed, {.batch_first = true}).output, x.transpose(0, 1)) == 0);
}

TEST_CASE("lists of sequences are packed, padded and listed again") {
  const Integers lengths{2, 4, 1};
  const Tensor padded = numbered(lengths, 4, false);
  const std::vector<Tensor> list = unpad_sequence(padded, lengths);
  REQUIRE(list.size() == 3);
  for (std::size_t s = 0; s < 3; ++s) {
    CHECK(list[s].shape() == Shape{lengths[s], 2});
    CHECK(difference(list[s], padded.select(1, static_cast<std::int64_t>(s)).narrow(0, 0, lengths[s])) == 0);
  }
  CHECK(difference(unpad_sequence(padded.transpose(0, 1), lengths, true)[1], list[1]) == 0);

  const PackedSequence packed = pack_sequence(list, false), want = unsorted(padded, lengths);
  CHECK(packed.batch_sizes == want.batch_sizes);
  CHECK(packed.sorted_indices == want.sorted_indices);
  CHECK(packed.unsorted_indices == want.unsorted_indices);
  CHECK(difference(packed.data, want.data) == 0);
  CHECK(pack_sequence({list[1], list[0], list[2]}).sorted_indices.empty());

  const std::vector<Tensor> again = unpack_sequence(packed);
  REQUIRE(again.size() == 3);
  for (std::size_t s = 0; s < 3; ++s) CHECK(difference(again[s], list[s]) == 0);

  CHECK(difference(pad_sequence(list, {.padding_value = -1}), padded) == 0);
  CHECK(difference(pad_sequence(list, {.batch_first = true, .padding_value = -1}), padded.transpose(0, 1)) == 0);
  CHECK(difference(pad_sequence(list, {.padding_value = -1, .total_length = 6}), numbered(lengths, 6, false)) == 0);
  // Padding needs no element.
  const Tensor nothing = zeros({0, 2}, {.dtype = DType::f64});
  CHECK(difference(pad_sequence({nothing, list[2]}, {.padding_value = 3}).select(1, 0), full({1, 2}, 3)) == 0);
  const Tensor all = pad_sequence({nothing, nothing}, {.padding_value = 3, .total_length = 2});
  CHECK(all.shape() == Shape{2, 2, 2});
  CHECK(all.to_vector<double>() == Doubles(8, 3));
  CHECK(pad_sequence({nothing, nothing}).shape() == Shape{0, 2, 2});
}

TEST_CASE("packing and padding move elements of every dtype bit by bit") {
  const Integers lengths{1, 3, 2};
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8,
                            DType::i8, DType::boolean}) {
    const Tensor x = from_data({0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0}, {3, 3}).to(dtype);
    const PackedSequence packed = unsorted(x, lengths);
    CHECK(packed.data.dtype() == dtype);
    CHECK(packed.data.to_vector<double>() == Doubles{1, 1, 0, 1, 0, 0});
    const Tensor padded = pad_packed_sequence(packed, {.padding_value = 1}).output;
    CHECK(padded.dtype() == dtype);
    CHECK(padded.to_vector<double>() == Doubles{0, 1, 1, 1, 1, 0, 1, 0, 1});
    CHECK(pad_sequence(unpack_sequence(packed)).dtype() == dtype);
  }
  const double infinity = std::numeric_limits<double>::infinity();
  const Tensor x = from_data({-0.0, std::nan(""), infinity, 7.0}, {2, 2});
  const std::vector<double> values =
      pad_packed_sequence(pack_padded_sequence(x, Integers{2, 1}), {.padding_value = -infinity})
          .output.to_vector<double>();
  CHECK(std::signbit(values[0]));
  CHECK(std::isnan(values[1]));
  CHECK(values[2] == infinity);
  CHECK(values[3] == -infinity);
}

TEST_CASE("packed sequences go to devices and dtypes with their lengths") {
  const Integers lengths{1, 3, 2};
  const PackedSequence host = unsorted(numbered(lengths, 3, false), lengths);
  const PackedSequence moved = host.to(device_at(1)).to(DType::f32);
  CHECK(moved.data.device() == device_at(1));
  CHECK(moved.data.dtype() == DType::f32);
  CHECK(moved.batch_sizes == host.batch_sizes);
  CHECK(moved.sorted_indices == host.sorted_indices);
  CHECK(moved.unsorted_indices == host.unsorted_indices);
  CHECK(difference(moved.data, host.data) == 0);
  // What is packed on a device stays there.
  const PaddedSequences padded = pad_packed_sequence(moved, {.padding_value = -1});
  CHECK(padded.output.device() == device_at(1));
  CHECK(difference(padded.output, numbered(lengths, 3, false)) == 0);
  CHECK(unpack_sequence(moved)[1].device() == device_at(1));
  // One function for all elements.
  const PackedSequence twice = host.with_data(host.data * 2.0);
  CHECK(difference(pad_packed_sequence(twice).output, pad_packed_sequence(host).output * 2.0) == 0);
  CHECK(twice.lengths() == lengths);
}

TEST_CASE("lengths are integers of any dtype, on any device") {
  const Integers lengths{1, 3, 2};
  const Tensor x = numbered(lengths, 3, false, device_at(1));
  const PackedSequence want = unsorted(x, lengths);
  for (const DType dtype : {DType::i64, DType::i32, DType::u8})
    for (const Device device : {Device::cpu(), device_at(0), device_at(1)}) {
      const Tensor tensor = from_data(lengths, {3}, {.dtype = dtype, .device = device});
      const PackedSequence got = pack_padded_sequence(x, tensor, {.enforce_sorted = false});
      CHECK(got.batch_sizes == want.batch_sizes);
      CHECK(difference(got.data, want.data) == 0);
    }
  for (const Tensor& wrong :
       {ones({3}), ones({3}, {.dtype = DType::boolean}), ones({3, 1}, {.dtype = DType::i64}), tensor(3), Tensor()})
    CHECK_THROWS_WITH(pack_padded_sequence(x, wrong, {.enforce_sorted = false}),
                      Contains("one-dimensional integers as lengths") && Contains(wrong.describe()));
}

TEST_CASE("derivatives of packing and padding") {
  const Tensor x = random_leaf({4, 3, 2}, 1);
  const Integers lengths{2, 4, 1};
  const auto pack = [&](const std::vector<Tensor>& in) { return square(unsorted(in[0], lengths).data); };
  CHECK(gradcheck(pack, {x}) == "");
  CHECK(gradgradcheck(pack, {x}) == "");
  for (const double padding : {0.0, 3.0}) {
    const auto pad = [&](const std::vector<Tensor>& in) {
      const PackedSequence packed = unsorted(x.detach(), lengths).with_data(in[0]);
      return square(
          pad_packed_sequence(packed, {.batch_first = true, .padding_value = padding, .total_length = 5}).output);
    };
    CHECK(gradcheck(pad, {random_leaf({7, 2}, 2)}) == "");
    CHECK(gradgradcheck(pad, {random_leaf({7, 2}, 3)}) == "");
  }
  const auto list = [&](const std::vector<Tensor>& in) {
    const std::vector<Tensor> each = unpack_sequence(pack_sequence(in, false));
    return cat({square(pad_sequence(each)).flatten(), each[1].flatten()});
  };
  CHECK(gradcheck(list, {random_leaf({2, 3}, 4), random_leaf({4, 3}, 5), random_leaf({1, 3}, 6)}) == "");

  // Exactly: each element that counts got its own weight, the others nothing.
  const PackedSequence packed = unsorted(x, lengths);
  const Tensor weights = arange(1, 31, 1, {.dtype = DType::f64}).reshape({5, 3, 2});
  (pad_packed_sequence(packed, {.padding_value = 7, .total_length = 5}).output * weights).sum().backward();
  Doubles want;
  for (std::size_t i = 0; i < 24; ++i)
    want.push_back(static_cast<std::int64_t>(i / 6) < lengths[i / 2 % 3] ? static_cast<double>(i + 1) : 0);
  CHECK(x.grad().to_vector<double>() == want);
}

TEST_CASE("packing refuses what does not fit") {
  const Tensor x = zeros({4, 3, 2});
  const auto pack = [&](const Integers& lengths) { return pack_padded_sequence(x, lengths); };
  CHECK_THROWS_WITH(pack({4, 2, 0}), Contains("at least one element") && Contains("length 0 of sequence 2"));
  CHECK_THROWS_WITH(pack({4, 2, -1}), Contains("length -1 of sequence 2"));
  CHECK_THROWS_WITH(pack({2, 4, 1}), Contains("enforce_sorted = false") && Contains("2 and then 4 of sequence 1"));
  CHECK_THROWS_WITH(pack({5, 4, 1}), Contains("at most 4") && Contains("got 5") && Contains("[4, 3, 2]"));
  CHECK_THROWS_WITH(pack({4, 2}), Contains("3 lengths") && Contains("got 2"));
  CHECK_THROWS_WITH(unsorted(x, {1, 2, 0}), Contains("length 0 of sequence 2"));
  CHECK_THROWS_WITH(pack_padded_sequence(zeros({4, 0, 2}), Integers{}), Contains("at least one sequence"));
  CHECK_THROWS_WITH(pack_padded_sequence(zeros({4}), Integers{4}), Contains("[time, batch, ..]"));
  CHECK_THROWS_WITH(pack_padded_sequence(Tensor(), Integers{4}, {.batch_first = true}), Contains("[batch, time, ..]"));
  CHECK_THROWS_WITH(pack_sequence({}), Contains("[pack_sequence]") && Contains("got none"));
  CHECK_THROWS_WITH(pack_sequence({zeros({0, 2})}), Contains("[pack_sequence]") && Contains("length 0"));
  CHECK_THROWS_WITH(pack_sequence({zeros({1, 2}), zeros({3, 2})}), Contains("[pack_sequence]") && Contains("sorts"));
  for (const Tensor& wrong : {zeros({2, 3}), zeros({2}), zeros({2, 2}, {.dtype = DType::f64}), tensor(1.0), Tensor(),
                              zeros({2, 2}, {.device = device_at(1)})}) {
    const auto names = Contains(wrong.describe() + " as sequence 1");
    CHECK_THROWS_WITH(pack_sequence({zeros({3, 2}), wrong}), Contains("[pack_sequence]") && names);
    CHECK_THROWS_WITH(pad_sequence({zeros({3, 2}), wrong}), Contains("[pad_sequence]") && names);
  }
  const Tensor bytes = zeros({3, 2}, {.dtype = DType::u8});
  for (const double value : {0.5, -1.0, 300.0}) {
    CHECK_THROWS_WITH(pad_sequence({bytes}, {.padding_value = value}),
                      "[pad_sequence] expected padding that u8 has, got " + number_to_string(value));
    CHECK_THROWS_WITH(pad_packed_sequence(pack_sequence({bytes}), {.padding_value = value, .total_length = 4}),
                      Contains("[pad_packed_sequence] expected padding that u8 has"));
  }
  CHECK_THROWS_WITH(pad_sequence({}), Contains("[pad_sequence]") && Contains("got none"));
  CHECK_THROWS_WITH(pad_packed_sequence(pack({4, 2, 1}), {.total_length = 3}),
                    Contains("total_length of at least the longest sequence, 4, got 3"));
  // Longer than any memory, and than numbers go: said before the host makes lists of that length.
  for (const int bits : {45, 61}) {
    if (bits == 45 && support::watched()) continue;  // sanitizers end the program
    const std::int64_t total = std::int64_t{1} << bits;
    const auto names = Contains(bits == 61 ? "total_length of at most" : "[allocate]");
    for (const bool batch_first : {false, true})
      for (const double value : {0.0, 1.0}) {
        const PadOptions options{.batch_first = batch_first, .padding_value = value, .total_length = total};
        CHECK_THROWS_WITH(pad_packed_sequence(pack({4, 2, 1}), options), names);
        CHECK_THROWS_WITH(pad_sequence({zeros({2, 2}), zeros({0, 2})}, options), names);
        CHECK_THROWS_WITH(pad_sequence({zeros({0, 2})}, options), names);
      }
  }
  CHECK_THROWS_WITH(unpad_sequence(x, {4, 2}), Contains("[unpad_sequence]") && Contains("2 lengths"));
  CHECK_THROWS_WITH(unpad_sequence(x, {4, 2, 5}), Contains("lengths of 0 to 4") && Contains("5 of sequence 2"));
}

TEST_CASE("packed sequences whose members do not fit together are refused") {
  const Tensor data = zeros({4, 2});
  const auto refused = [](const PackedSequence& wrong, const char* why) {
    CHECK_THROWS_WITH(wrong.check("op"), Contains("[op]") && Contains(why));
    CHECK_THROWS_WITH(pad_packed_sequence(wrong), Contains("[pad_packed_sequence]") && Contains(why));
    CHECK_THROWS_WITH(unpack_sequence(wrong), Contains("[unpack_sequence]") && Contains(why));
    CHECK_THROWS_WITH(wrong.lengths(), Contains("[lengths]") && Contains(why));
  };
  CHECK_NOTHROW(PackedSequence{data, {3, 1}, {2, 0, 1}, {1, 2, 0}}.check("op"));
  refused({}, "0 batch sizes");
  refused({data, {}}, "0 batch sizes");
  refused({tensor(1.0), {1}}, "packed sequences");
  refused({data, {1, 3}}, "got 3 at time 1 after 1");
  refused({data, {4, 0}}, "got 0 at time 1");
  refused({data, {-1}}, "got -1 at time 0");
  refused({data, {2, 1}}, "got f32[4, 2] on cpu and 3");
  refused({data, {3, 2}}, "got f32[4, 2] on cpu and 5 or more");
  refused({data, {std::numeric_limits<std::int64_t>::max(), 1}}, "or more");
  refused({data, {3, 1}, {0, 1, 2}, {}}, "3 and 0 indices");
  refused({data, {3, 1}, {0, 1}, {0, 1}}, "of 3 sequences");
  refused({data, {3, 1}, {2, 0, 1}, {2, 0, 1}}, "each other's inverse");
  refused({data, {3, 1}, {0, 0, 1}, {0, 2, 1}}, "each other's inverse");
  refused({data, {3, 1}, {3, 0, 1}, {1, 2, 0}}, "each other's inverse");
  refused({data, {3, 1}, {-1, 0, 1}, {1, 2, 0}}, "each other's inverse");
}

TEST_CASE("groups and parts of packed sequences that do not add up are refused") {
  const PackedSequence x = unsorted(zeros({4, 3, 2}), {2, 4, 1});
  const Integers five{5}, less{1, 1}, negative{4, -1}, all{1, 2};
  CHECK_THROWS_WITH(x.group(five), Contains("[PackedSequence]") && Contains("3 sequences") && Contains("got 5"));
  CHECK_THROWS_WITH(x.group(less), Contains("3 sequences") && Contains("got 1 + 1"));
  CHECK_THROWS_WITH(x.group(negative), Contains("3 sequences") && Contains("got 4 + -1"));
  const auto [rows, counts] = x.group(all);
  CHECK(counts == Integers{2, 5});
  CHECK_THROWS_WITH(x.part(1, 3, rows), Contains("3 sequences") && Contains("1 to 4"));
  CHECK_THROWS_WITH(x.part(-1, 2, rows), Contains("-1 to 1"));
  CHECK_THROWS_WITH(x.part(0, 0, rows), Contains("0 to 0"));
  CHECK_THROWS_WITH(x.part(1, 2, rows), Contains("5 rows") && Contains("f32[7, 2]"));
  CHECK_THROWS_WITH(x.part(1, 2, Tensor()), Contains("5 rows"));
  const std::vector<const PackedSequence*> twice{&x, &x};
  CHECK_THROWS_WITH(PackedSequence::join(twice, rows), Contains("14 rows") && Contains("f32[7, 2]"));
  CHECK_THROWS_WITH(PackedSequence::join({}, rows), Contains("at least one"));
}
