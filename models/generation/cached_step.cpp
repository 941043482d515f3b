#include "lockstep/models/generation/cached_step.h"

#include <algorithm>

#include "lockstep/runtime/error.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep::detail {

void CachedStep::add(std::span<const std::int32_t> pages, std::int64_t length, std::span<const std::int64_t> tokens,
                     bool wanted) {
  sequences_.push_back({pages, length, tokens, wanted, 0});
}

// A table as wide as the sequence with most pages; what is behind the others' last pages is not looked at.
void CachedStep::make_group(std::span<const Sequence* const> sequences) {
  const auto count = static_cast<std::int64_t>(sequences.size());
  const auto tokens = static_cast<std::int64_t>(sequences[0]->tokens.size());
  std::int64_t width = 0;
  std::vector<std::int32_t> lengths;
  for (const Sequence* sequence : sequences) {
    const std::int64_t length = sequence->length + tokens;
    lengths.push_back(static_cast<std::int32_t>(length));
    width = std::max(width, (length + pools_.page_size - 1) / pools_.page_size);
  }
  std::vector<std::int32_t> table(static_cast<std::size_t>(count * width));
  for (std::size_t i = 0; i < sequences.size(); ++i)
    std::copy_n(sequences[i]->pages.begin(),
                std::min<std::int64_t>(width, static_cast<std::int64_t>(sequences[i]->pages.size())),
                table.begin() + static_cast<std::ptrdiff_t>(i) * width);
  groups_.push_back({sequences[0]->row, count, tokens, from_data(table, {count, width}, {.device = device_}),
                     from_data(lengths, {count}, {.device = device_})});
}

Tensor CachedStep::compute(const LanguageModel& model) {
  std::vector<const Sequence*> single, several;
  for (const Sequence& sequence : sequences_) (sequence.tokens.size() == 1 ? single : several).push_back(&sequence);
  std::vector<std::int64_t> tokens, positions, wanted;
  for (const auto* group : {&single, &several}) {
    for (const Sequence* each : *group) {
      auto& sequence = const_cast<Sequence&>(*each);
      sequence.row = static_cast<std::int64_t>(tokens.size());
      const std::int64_t end = sequence.length + static_cast<std::int64_t>(sequence.tokens.size());
      for (std::int64_t at = sequence.length; at < end;) {
        const std::int64_t in_page = at % pools_.page_size, count = std::min(pools_.page_size - in_page, end - at);
        runs_.push_back({sequence.row + at - sequence.length,
                         sequence.pages[static_cast<std::size_t>(at / pools_.page_size)] * pools_.page_size + in_page,
                         count});
        at += count;
      }
      for (std::int64_t at = sequence.length; at < end; ++at) positions.push_back(at);
      tokens.insert(tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
    }
  }
  rows_ = static_cast<std::int64_t>(tokens.size());
  if (!single.empty()) make_group(single);
  for (const Sequence* sequence : several) make_group({&sequence, 1});
  for (const Sequence& sequence : sequences_)
    if (sequence.wanted) wanted.push_back(sequence.row + static_cast<std::int64_t>(sequence.tokens.size()) - 1);

  const auto on_device = [&](const std::vector<std::int64_t>& numbers) {
    return from_data(numbers, {static_cast<std::int64_t>(numbers.size())}, {.device = device_});
  };
  const Tensor logits = model.decode({on_device(tokens), on_device(positions), on_device(wanted), this});
  LOCKSTEP_CHECK(layers_ == shape_.layers, "[KvCache] expected the model to attend once in each of its ", shape_.layers,
                 " layers, got ", layers_, " that did");
  const Shape expected{static_cast<std::int64_t>(wanted.size()), shape_.vocabulary};
  LOCKSTEP_CHECK(logits.defined() && logits.shape() == expected, "[KvCache] expected logits ", expected,
                 " of the model's decode, got ", logits);
  return wanted.empty() ? Tensor() : logits;
}

// All rows of both, in one launch.
void CachedStep::write(const Tensor& keys, const Tensor& values, int layer) {
  CopyManyArgs args;
  args.tensors.reserve(2 * runs_.size());
  const std::int64_t width = shape_.heads * shape_.head_size;
  const std::size_t bytes = static_cast<std::size_t>(width) * size_of(dtype_);
  const auto rows = [&](View view, std::int64_t at, std::int64_t count) {
    view.data = static_cast<std::byte*>(view.data) + static_cast<std::size_t>(at) * bytes;
    view.shape = {count, width};
    view.strides = {width, 1};
    return view;
  };
  for (int i = 0; i < 2; ++i) {
    const View from = (i == 0 ? keys : values).view();
    const View to = (i == 0 ? keys_of(layer) : values_of(layer)).out().view;
    for (const Run& run : runs_)
      args.tensors.push_back({In{rows(from, run.row, run.count)}, Out{rows(to, run.place, run.count)}});
  }
  launch(device_, args);
}

Tensor CachedStep::attend(int layer, const Tensor& q, const Tensor& k, const Tensor& v, std::optional<double> scale) {
  LOCKSTEP_CHECK(layer == layers_ && layer < shape_.layers, "[KvCache] expected layer ", layers_, " of ", shape_.layers,
                 " to attend, got layer ", layer);
  const Shape expected{rows_, shape_.heads, shape_.head_size};
  for (const Tensor* tensor : {&k, &v})
    LOCKSTEP_CHECK(
        tensor->defined() && tensor->shape() == expected && tensor->dtype() == dtype_ && tensor->device() == device_,
        "[KvCache] expected keys and values ", expected, " of ", dtype_, " on ", device_, ", got ", *tensor);
  LOCKSTEP_CHECK(q.defined() && q.rank() == 3 && q.size(0) == rows_ && q.size(2) == shape_.head_size &&
                     q.size(1) % shape_.heads == 0 && q.dtype() == dtype_ && q.device() == device_,
                 "[KvCache] expected queries [", rows_, ", a multiple of ", shape_.heads, ", ", shape_.head_size,
                 "] of ", dtype_, " on ", device_, ", got ", q);
  const Tensor keys = k.contiguous(), values = v.contiguous();
  write(keys, values, layer);
  const Tensor key_pages = keys_of(layer).transpose(1, 2);
  const Tensor value_pages = values_of(layer).transpose(1, 2);
  const std::int64_t heads = q.size(1), size = shape_.head_size;
  std::vector<Tensor> results;
  for (const Group& group : groups_) {
    const Tensor rows = groups_.size() == 1 ? q : q.narrow(0, group.row, group.sequences * group.tokens);
    const Tensor queries = rows.reshape({group.sequences, group.tokens, heads, size}).transpose(1, 2);
    const Tensor result = scaled_dot_product_attention(queries, key_pages, value_pages,
                                                       {.causal = group.tokens > 1,
                                                        .scale = scale,
                                                        .variant = CausalVariant::lower_right,
                                                        .enable_gqa = heads != shape_.heads,
                                                        .seqlens_k = group.lengths,
                                                        .block_table = group.block_table});
    results.push_back(result.transpose(1, 2).reshape({group.sequences * group.tokens, heads, size}));
  }
  ++layers_;
  return results.size() == 1 ? results[0] : cat(results, 0);
}

}  // namespace lockstep::detail
