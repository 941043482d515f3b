#include "lockstep/tensor/nn/packed_sequence.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "lockstep/runtime/error.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/padding.h"

namespace lockstep {
namespace {

using Integers = std::vector<std::int64_t>;

// ---- where the rows of sequences are; all on the host

// The sequence that is packed, or that the caller has, at a place.
std::int64_t at(const Integers& indices, std::int64_t place) {
  return indices.empty() ? place : indices[static_cast<std::size_t>(place)];
}

// The first of so many rows each.
Integers starts_of(std::span<const std::int64_t> counts) {
  Integers starts(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), starts.begin(), std::int64_t{0});
  return starts;
}

// The order of sequences of at least one element, of which equally long ones keep theirs; without data.
PackedSequence sorted(std::span<const std::int64_t> lengths) {
  PackedSequence order;
  Integers places(lengths.size());
  std::iota(places.begin(), places.end(), 0);
  const auto length = [&](std::int64_t place) { return lengths[static_cast<std::size_t>(place)]; };
  std::stable_sort(places.begin(), places.end(), [&](auto a, auto b) { return length(a) > length(b); });
  auto running = static_cast<std::int64_t>(lengths.size());
  for (std::int64_t time = 0; time < length(places[0]); ++time) {
    while (length(places[static_cast<std::size_t>(running) - 1]) <= time) --running;
    order.batch_sizes.push_back(running);
  }
  if (std::is_sorted(places.begin(), places.end())) return order;
  order.unsorted_indices.resize(places.size());
  for (std::size_t i = 0; i < places.size(); ++i)
    order.unsorted_indices[static_cast<std::size_t>(places[i])] = static_cast<std::int64_t>(i);
  order.sorted_indices = std::move(places);
  return order;
}

// Appends row_of(sequence, time) for each element, as `order` packs them.
template <class RowOf>
void add_packed(Integers& rows, const PackedSequence& order, RowOf&& row_of) {
  for (std::size_t time = 0; time < order.batch_sizes.size(); ++time)
    for (std::int64_t i = 0; i < order.batch_sizes[time]; ++i)
      rows.push_back(row_of(at(order.sorted_indices, i), static_cast<std::int64_t>(time)));
}

// ---- elements

Tensor select_rows(const Tensor& x, const Integers& rows) {
  bool all_in_order = static_cast<std::int64_t>(rows.size()) == x.size(0);
  for (std::size_t i = 0; all_in_order && i < rows.size(); ++i) all_in_order = rows[i] == static_cast<std::int64_t>(i);
  if (all_in_order) return x;
  return index_select(x, 0, from_data(rows, {static_cast<std::int64_t>(rows.size())}, {.device = x.device()}));
}

// `x` with other dimensions in place of its first `replaced` ones.
Tensor with_first(const Tensor& x, int replaced, std::initializer_list<std::int64_t> sizes) {
  std::vector<std::int64_t> shape(sizes);
  for (int d = replaced; d < x.rank(); ++d) shape.push_back(x.shape()[d]);
  return x.reshape(Shape(shape));
}

// Throws where the padded elements are more than can be counted in bytes.
void check_total(const char* op, std::int64_t total, std::int64_t longest, std::int64_t batch, const Tensor& x) {
  LOCKSTEP_CHECK(total >= longest, "[", op, "] expected a total_length of at least the longest sequence, ", longest,
                 ", got ", total);
  std::int64_t most = std::numeric_limits<std::int64_t>::max() / 16 / batch;
  for (int d = 1; d < x.rank(); ++d) most /= std::max<std::int64_t>(x.shape()[d], 1);
  LOCKSTEP_CHECK(total <= most, "[", op, "] expected a total_length of at most ", most, " for ", batch,
                 " sequences with the rows of ", x, ", got ", total);
}

// Rows of sequences as [T, B, ..]: sequence s has lengths[s] of them, at row_of(s, time).
template <class RowOf>
Tensor padded(const char* op, const Tensor& x, const Integers& lengths, const PadOptions& options, RowOf&& row_of) {
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  const std::int64_t total = options.total_length.value_or(longest), batch = static_cast<std::int64_t>(lengths.size());
  check_total(op, total, longest, batch, x);
  detail::check_padding(op, x.dtype(), options.padding_value);
  Integers rows;
  std::vector<bool> padding;
  const std::int64_t outer = options.batch_first ? batch : longest, inner = options.batch_first ? longest : batch;
  for (std::int64_t i = 0; i < outer; ++i)
    for (std::int64_t j = 0; j < inner; ++j) {
      const std::int64_t sequence = options.batch_first ? i : j, time = options.batch_first ? j : i;
      const std::int64_t length = lengths[static_cast<std::size_t>(sequence)];
      padding.push_back(time >= length);
      // Any row will do under the padding: one of the sequence itself spreads the zeros that come back to it.
      rows.push_back(length == 0 ? 0 : row_of(sequence, std::min(time, length - 1)));
    }
  Tensor y = with_first(select_rows(x, rows), 1, {outer, inner});
  if (std::find(padding.begin(), padding.end(), true) != padding.end()) {
    std::vector<std::int64_t> shape(static_cast<std::size_t>(y.rank()), 1);
    shape[0] = outer, shape[1] = inner;
    y = masked_fill(y, from_data(padding, Shape(shape), {.device = x.device()}), options.padding_value);
  }
  if (total == longest) return y;
  const int along = options.batch_first ? 1 : 0;
  Shape beyond = y.shape();
  beyond[along] = total - longest;
  const Tensor value =
      full(Shape::filled(y.rank(), 1), options.padding_value, {.dtype = x.dtype(), .device = x.device()});
  return cat({y, value.expand(beyond)}, along);
}

// Of tensors [length, ..]. Throws for those that cannot be rows of one tensor.
Integers lengths_of(const char* op, const std::vector<Tensor>& sequences) {
  LOCKSTEP_CHECK(!sequences.empty(), "[", op, "] expected at least one sequence, got none");
  Integers lengths;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const Tensor &first = sequences[0], &each = sequences[i];
    bool fits = each.defined() && each.rank() > 0 && each.rank() == first.rank() && each.dtype() == first.dtype() &&
                each.device() == first.device();
    for (int d = 1; fits && d < first.rank(); ++d) fits = each.shape()[d] == first.shape()[d];
    LOCKSTEP_CHECK(fits, "[", op, "] expected sequences [length, ..] of one dtype and device that differ in length ",
                   "alone, got ", first, " as sequence 0 and ", each, " as sequence ", i);
    lengths.push_back(each.size(0));
  }
  return lengths;
}

void check_lengths(const char* op, const Integers& lengths, bool enforce_sorted) {
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    LOCKSTEP_CHECK(lengths[i] > 0, "[", op, "] expected sequences of at least one element, got the length ", lengths[i],
                   " of sequence ", i);
    LOCKSTEP_CHECK(!enforce_sorted || i == 0 || lengths[i] <= lengths[i - 1], "[", op,
                   "] expected lengths that do not grow, as enforce_sorted wants, got ", lengths[i - 1], " and then ",
                   lengths[i], " of sequence ", i, ": enforce_sorted = false sorts them");
  }
}

}  // namespace

void PackedSequence::check(const char* op) const {
  LOCKSTEP_CHECK(data.defined() && data.rank() > 0 && !batch_sizes.empty(), "[", op,
                 "] expected packed sequences, got data ", data, " and ", batch_sizes.size(), " batch sizes");
  std::int64_t rows = 0;
  for (std::size_t time = 0; time < batch_sizes.size() && rows <= data.size(0); ++time) {
    LOCKSTEP_CHECK(batch_sizes[time] > 0 && (time == 0 || batch_sizes[time] <= batch_sizes[time - 1]), "[", op,
                   "] expected batch_sizes of at least 1 that do not grow, got ", batch_sizes[time], " at time ", time,
                   time == 0 ? std::string() : cat(" after ", batch_sizes[time - 1]));
    rows = batch_sizes[time] > data.size(0) ? batch_sizes[time] : rows + batch_sizes[time];
  }
  LOCKSTEP_CHECK(rows == data.size(0), "[", op, "] expected as many rows of data as batch_sizes add up to, got ", data,
                 " and ", rows, rows > data.size(0) ? " or more" : "");
  if (sorted_indices.empty() && unsorted_indices.empty()) return;
  const auto count = static_cast<std::size_t>(sample_count());
  bool inverse = sorted_indices.size() == count && unsorted_indices.size() == count;
  for (std::size_t i = 0; inverse && i < count; ++i) {
    const auto place = static_cast<std::size_t>(sorted_indices[i]);
    inverse = place < count && unsorted_indices[place] == static_cast<std::int64_t>(i);
  }
  LOCKSTEP_CHECK(inverse, "[", op, "] expected sorted_indices and unsorted_indices to be each other's inverse, of ",
                 count, " sequences, got ", sorted_indices.size(), " and ", unsorted_indices.size(),
                 " indices that are not");
}

namespace {

// Of sequences that have been checked, in the caller's order.
Integers lengths_of(const PackedSequence& sequences) {
  const Integers& batch_sizes = sequences.batch_sizes;
  Integers result(static_cast<std::size_t>(sequences.sample_count()));
  std::int64_t place = 0;
  for (auto length = static_cast<std::int64_t>(batch_sizes.size()); length > 0; --length)
    for (; place < batch_sizes[static_cast<std::size_t>(length) - 1]; ++place)
      result[static_cast<std::size_t>(at(sequences.sorted_indices, place))] = length;
  return result;
}

std::string text_of(std::span<const std::int64_t> shares) {
  std::string text;
  for (const std::int64_t share : shares) text += cat(text.empty() ? "" : " + ", share);
  return text;
}

}  // namespace

std::vector<std::int64_t> PackedSequence::lengths() const {
  check("lengths");
  return lengths_of(*this);
}

std::pair<Tensor, std::vector<std::int64_t>> PackedSequence::group(std::span<const std::int64_t> shares) const {
  check("PackedSequence");
  std::int64_t left = sample_count();
  for (const std::int64_t share : shares) left = share >= 0 && share <= left ? left - share : -1;
  LOCKSTEP_CHECK(left == 0, "[PackedSequence] expected groups of ", sample_count(), " sequences in all, got ",
                 text_of(shares));
  const Integers all = lengths_of(*this), starts = starts_of(batch_sizes);
  Integers rows, counts;
  std::int64_t first = 0;
  for (const std::int64_t share : shares) {
    const std::size_t before = rows.size();
    if (share > 0)
      add_packed(rows, sorted(std::span(all).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(share))),
                 [&](std::int64_t sequence, std::int64_t time) {
                   return starts[static_cast<std::size_t>(time)] + at(unsorted_indices, first + sequence);
                 });
    counts.push_back(static_cast<std::int64_t>(rows.size() - before));
    first += share;
  }
  return {select_rows(data, rows), std::move(counts)};
}

PackedSequence PackedSequence::part(std::int64_t first, std::int64_t count, const Tensor& rows) const {
  check("PackedSequence");
  LOCKSTEP_CHECK(first >= 0 && count > 0 && count <= sample_count() - first, "[PackedSequence] expected a part of the ",
                 sample_count(), " sequences, got ", first, " to ", first + count);
  const Integers all = lengths_of(*this);
  const auto lengths = std::span(all).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  const std::int64_t wanted = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  LOCKSTEP_CHECK(rows.defined() && rows.rank() > 0 && rows.size(0) == wanted, "[PackedSequence] expected ", wanted,
                 " rows for ", count, " sequences, got ", rows);
  return sorted(lengths).with_data(rows);
}

PackedSequence PackedSequence::join(std::span<const PackedSequence* const> parts, const Tensor& rows) {
  struct Source {
    const PackedSequence* part;
    const Integers* starts;
    std::int64_t sequence, first_row;
  };
  LOCKSTEP_CHECK(!parts.empty(), "[PackedSequence] expected at least one part to join, got none");
  std::vector<Integers> starts;
  for (const PackedSequence* part : parts) starts.push_back(starts_of(part->batch_sizes));
  Integers all;
  std::vector<Source> places;
  std::int64_t first_row = 0;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    parts[p]->check("PackedSequence");
    const Integers lengths = lengths_of(*parts[p]);
    for (std::int64_t s = 0; s < parts[p]->sample_count(); ++s) places.push_back({parts[p], &starts[p], s, first_row});
    all.insert(all.end(), lengths.begin(), lengths.end());
    first_row += parts[p]->data.size(0);
  }
  LOCKSTEP_CHECK(rows.defined() && rows.rank() > 0 && rows.size(0) == first_row, "[PackedSequence] expected ",
                 first_row, " rows for ", all.size(), " sequences, got ", rows);
  const PackedSequence order = sorted(all);
  Integers wanted;
  add_packed(wanted, order, [&](std::int64_t sequence, std::int64_t time) {
    const Source& place = places[static_cast<std::size_t>(sequence)];
    return place.first_row + (*place.starts)[static_cast<std::size_t>(time)] +
           at(place.part->unsorted_indices, place.sequence);
  });
  return order.with_data(select_rows(rows, wanted));
}

PackedSequence pack_padded_sequence(const Tensor& input, const std::vector<std::int64_t>& lengths,
                                    const PackOptions& options) {
  constexpr const char* kOp = "pack_padded_sequence";
  LOCKSTEP_CHECK(input.defined() && input.rank() >= 2, "[", kOp, "] expected an input ",
                 options.batch_first ? "[batch, time, ..]" : "[time, batch, ..]", ", got ", input);
  const std::int64_t batch = input.size(options.batch_first ? 0 : 1), times = input.size(options.batch_first ? 1 : 0);
  LOCKSTEP_CHECK(batch > 0, "[", kOp, "] expected at least one sequence, got ", input);
  LOCKSTEP_CHECK(static_cast<std::int64_t>(lengths.size()) == batch, "[", kOp, "] expected ", batch,
                 " lengths, one per sequence of ", input, ", got ", lengths.size());
  check_lengths(kOp, lengths, options.enforce_sorted);
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  LOCKSTEP_CHECK(longest <= times, "[", kOp, "] expected lengths of at most ", times, ", the time of ", input, ", got ",
                 longest);
  const PackedSequence order = sorted(lengths);
  Integers rows;
  add_packed(rows, order, [&](std::int64_t sequence, std::int64_t time) {
    return options.batch_first ? sequence * times + time : time * batch + sequence;
  });
  return order.with_data(select_rows(with_first(input, 2, {batch * times}), rows));
}

PackedSequence pack_padded_sequence(const Tensor& input, const Tensor& lengths, const PackOptions& options) {
  LOCKSTEP_CHECK(
      lengths.defined() && lengths.rank() == 1 && !is_floating(lengths.dtype()) && lengths.dtype() != DType::boolean,
      "[pack_padded_sequence] expected one-dimensional integers as lengths, got ", lengths);
  return pack_padded_sequence(input, lengths.to_vector<std::int64_t>(), options);
}

PackedSequence pack_sequence(const std::vector<Tensor>& sequences, bool enforce_sorted) {
  const Integers lengths = lengths_of("pack_sequence", sequences), starts = starts_of(lengths);
  check_lengths("pack_sequence", lengths, enforce_sorted);
  const PackedSequence order = sorted(lengths);
  Integers rows;
  add_packed(rows, order, [&](std::int64_t sequence, std::int64_t time) {
    return starts[static_cast<std::size_t>(sequence)] + time;
  });
  return order.with_data(select_rows(cat(sequences), rows));
}

PaddedSequences pad_packed_sequence(const PackedSequence& sequences, const PadOptions& options) {
  sequences.check("pad_packed_sequence");
  const Integers lengths = lengths_of(sequences), starts = starts_of(sequences.batch_sizes);
  Tensor output =
      padded("pad_packed_sequence", sequences.data, lengths, options, [&](std::int64_t sequence, std::int64_t time) {
        return starts[static_cast<std::size_t>(time)] + at(sequences.unsorted_indices, sequence);
      });
  return {std::move(output), from_data(lengths, {sequences.sample_count()})};
}

Tensor pad_sequence(const std::vector<Tensor>& sequences, const PadOptions& options) {
  const Integers lengths = lengths_of("pad_sequence", sequences), starts = starts_of(lengths);
  return padded("pad_sequence", cat(sequences), lengths, options, [&](std::int64_t sequence, std::int64_t time) {
    return starts[static_cast<std::size_t>(sequence)] + time;
  });
}

std::vector<Tensor> unpack_sequence(const PackedSequence& sequences) {
  sequences.check("unpack_sequence");
  const auto [rows, lengths] = sequences.group(Integers(static_cast<std::size_t>(sequences.sample_count()), 1));
  return split_lengths(rows, lengths);
}

std::vector<Tensor> unpad_sequence(const Tensor& padded, const std::vector<std::int64_t>& lengths, bool batch_first) {
  LOCKSTEP_CHECK(padded.defined() && padded.rank() >= 2 &&
                     padded.size(batch_first ? 0 : 1) == static_cast<std::int64_t>(lengths.size()),
                 "[unpad_sequence] expected padded sequences ", batch_first ? "[batch, time, ..]" : "[time, batch, ..]",
                 " and a length for each, got ", padded, " and ", lengths.size(), " lengths");
  std::vector<Tensor> sequences;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const Tensor whole = padded.select(batch_first ? 0 : 1, static_cast<std::int64_t>(i));
    LOCKSTEP_CHECK(lengths[i] >= 0 && lengths[i] <= whole.size(0), "[unpad_sequence] expected lengths of 0 to ",
                   whole.size(0), ", the time of ", padded, ", got ", lengths[i], " of sequence ", i);
    sequences.push_back(whole.narrow(0, 0, lengths[i]));
  }
  return sequences;
}

}  // namespace lockstep
