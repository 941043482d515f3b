#include "lockstep/models/generation/kv_cache.h"

#include <limits>
#include <set>
#include <utility>

#include "lockstep/models/generation/cached_step.h"
#include "lockstep/models/generation/page_table.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/stream/stream.h"
#include "lockstep/runtime/trace/trace.h"
#include "lockstep/tensor/context.h"
#include "lockstep/tensor/ops/factory.h"

namespace lockstep {

struct KvCache::Body {
  LanguageModelShape shape;
  Device device;
  DType dtype;
  detail::KvPools pools;  // first, which refuses sizes that make no sense
  detail::PageTable table;
};

namespace {

std::string describe(const LanguageModelShape& shape, Device device, DType dtype) {
  return cat(shape.layers, " layers of ", shape.heads, " heads of ", shape.head_size, " elements, ", shape.vocabulary,
             " words, ", dtype, " on ", device);
}

detail::KvPools pools_of(const LanguageModel& model, const KvCacheOptions& options) {
  const LanguageModelShape shape = model.shape();
  LOCKSTEP_CHECK(options.pages > 0 && options.page_size > 0,
                 "[KvCache] expected pages and tokens in a page to be at least 1, got ", options.pages, " pages of ",
                 options.page_size);
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();  // pages have numbers of 32 bits
  LOCKSTEP_CHECK(options.pages <= kMost, "[KvCache] expected at most ", kMost, " pages, got ", options.pages);
  LOCKSTEP_CHECK(shape.layers > 0 && shape.heads > 0 && shape.head_size > 0 && shape.vocabulary > 0,
                 "[KvCache] expected a model with layers, heads and words, got ",
                 describe(shape, model.device(), model.dtype()));
  detail::KvPools pools;
  pools.page_size = options.page_size;
  for (int i = 0; i < 2 * shape.layers; ++i)
    pools.tensors.push_back(empty({options.pages, options.page_size, shape.heads, shape.head_size},
                                  {.dtype = model.dtype(), .device = model.device()}));
  return pools;
}

}  // namespace

KvCache::KvCache(const LanguageModel& model, const KvCacheOptions& options)
    : body_(new Body{model.shape(), model.device(), model.dtype(), pools_of(model, options),
                     detail::PageTable(options.pages, options.page_size, options.share_prefixes)}) {}
KvCache::~KvCache() = default;
KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;

std::int64_t KvCache::begin(std::span<const std::int64_t> tokens) { return body_->table.begin(tokens); }
std::int64_t KvCache::length(std::int64_t sequence) const { return body_->table.at(sequence).length(); }
std::span<const std::int64_t> KvCache::tokens(std::int64_t sequence) const { return body_->table.at(sequence).tokens; }
bool KvCache::reserve(std::int64_t sequence, std::int64_t count) { return body_->table.reserve(sequence, count); }
void KvCache::end(std::int64_t sequence) { body_->table.end(sequence); }
void KvCache::forget_prefixes() { body_->table.forget(); }
std::int64_t KvCache::page_size() const { return body_->table.page_size(); }

KvCacheStats KvCache::stats() const {
  KvCacheStats stats{.pages = body_->table.pages(),
                     .used = body_->table.used(),
                     .kept = body_->table.kept(),
                     .sequences = body_->table.sequences()};
  for (const Tensor& tensor : body_->pools.tensors) stats.bytes += tensor.bytes();
  return stats;
}

Tensor KvCache::decode(const LanguageModel& model, std::span<const Feed> feeds) {
  Body& body = *body_;
  const trace::Scope span("decode");
  const NoGrad no_grad;
  const LanguageModelShape shape = model.shape();
  LOCKSTEP_CHECK(
      shape.layers == body.shape.layers && shape.heads == body.shape.heads && shape.head_size == body.shape.head_size &&
          shape.vocabulary == body.shape.vocabulary && model.device() == body.device && model.dtype() == body.dtype,
      "[KvCache] expected a model like the one that the cache was made for, ",
      describe(body.shape, body.device, body.dtype), ", got ", describe(shape, model.device(), model.dtype()));
  std::set<std::int64_t> seen;
  for (const Feed& feed : feeds) {
    const std::int64_t length = body.table.at(feed.sequence).length();
    const auto count = static_cast<std::int64_t>(feed.tokens.size());
    LOCKSTEP_CHECK(seen.insert(feed.sequence).second, "[KvCache] expected each sequence once in a call, got sequence ",
                   feed.sequence, " twice");
    LOCKSTEP_CHECK(count > 0, "[KvCache] expected a token at least for sequence ", feed.sequence, ", got none");
    LOCKSTEP_CHECK(shape.positions == 0 || length + count <= shape.positions, "[KvCache] expected at most ",
                   shape.positions, " tokens in a sequence, which is what the model has positions for, got ", length,
                   " and ", count, " more in sequence ", feed.sequence);
    for (const std::int64_t token : feed.tokens)
      LOCKSTEP_CHECK(token >= 0 && token < shape.vocabulary, "[KvCache] expected tokens from 0 to ",
                     shape.vocabulary - 1, ", got ", token, " in sequence ", feed.sequence);
  }
  if (feeds.empty()) return {};
  for (const Feed& feed : feeds) {
    if (body.table.reserve(feed.sequence, static_cast<std::int64_t>(feed.tokens.size()))) continue;
    const std::size_t page = stats().bytes / static_cast<std::size_t>(body.table.pages());
    const auto pages = [&](std::int64_t count) { return static_cast<std::size_t>(count) * page; };
    const auto more = static_cast<std::int64_t>(feed.tokens.size()) / body.table.page_size() + 1;
    throw OutOfMemory(body.device, pages(more), pages(body.table.used()), pages(body.table.available()),
                      pages(body.table.pages()));
  }

  for (const Tensor& pool : body.pools.tensors) LOCKSTEP_EDGE(pool.storage()->record_use(current_stream(body.device)));
  detail::CachedStep step(body.pools, body.shape, body.device, body.dtype);
  for (const Feed& feed : feeds) {
    const auto& sequence = body.table.at(feed.sequence);
    step.add(sequence.pages, sequence.length(), feed.tokens, feed.wanted);
  }
  Tensor logits = step.compute(model);
  for (const Feed& feed : feeds) body.table.append(feed.sequence, feed.tokens);
  return logits;
}

}  // namespace lockstep
