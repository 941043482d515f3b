// The keys and values of sequences, in pages.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/models/generation/language_model.h"

namespace lockstep {

struct KvCacheOptions {
  std::int64_t pages = 0;       // of all sequences together; required
  std::int64_t page_size = 16;  // tokens
  // Full pages stay when their sequence ends, until their place is needed: a sequence that begins with the same tokens
  // starts behind them.
  bool share_prefixes = true;
};

struct KvCacheStats {
  std::int64_t pages = 0;      // that there are
  std::int64_t used = 0;       // that open sequences hold; a page that several hold counts once
  std::int64_t kept = 0;       // that no sequence holds, and that one may begin with
  std::int64_t sequences = 0;  // open
  std::size_t bytes = 0;       // of all pages, on the model's device
};

// The keys and values that a model's attention computed for the tokens of several sequences. Each sequence has pages of
// `page_size` tokens, anywhere in one pool per layer that is allocated once: what a sequence holds is at most its
// tokens and one page. (The method is that of Kwon et al., "Efficient memory management for large language model
// serving with PagedAttention", 2023.)
//
// Not thread-safe: one thread at a time, and all calls with one current stream of the device. Sequences need not end
// before the cache does.
class LOCKSTEP_API KvCache {
 public:
  // Borrows nothing of the model but its shape, device and dtype. InvalidArgument for sizes below 1, and for 2^31 pages
  // or more; OutOfMemory.
  KvCache(const LanguageModel& model, const KvCacheOptions& options);
  ~KvCache();
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;

  // Opens a sequence that will have these tokens, and returns its number. length() tells how many of them are there
  // already, shared with sequences before: whole pages, and never all of the tokens. Feed the others.
  std::int64_t begin(std::span<const std::int64_t> tokens);
  std::int64_t length(std::int64_t sequence) const;
  std::span<const std::int64_t> tokens(std::int64_t sequence) const;  // until the next call that changes the sequence
  // Takes pages for `count` tokens more, 0 or more. False, with nothing changed, when there are too few: end a sequence
  // first.
  bool reserve(std::int64_t sequence, std::int64_t count);
  // Its pages are free, or kept to be shared.
  void end(std::int64_t sequence);
  // No sequence that begins later shares what is here now: after the model's weights have changed.
  void forget_prefixes();

  struct Feed {
    std::int64_t sequence;
    std::span<const std::int64_t> tokens;  // behind those that the sequence has; not empty
    bool wanted = true;                    // the logits of its last token
  };
  // Computes the tokens of several sequences in one call of the model, and keeps their keys and values. Returns the
  // logits [wanted feeds, vocabulary] in the order of the feeds, undefined when none is wanted. Pages that were not
  // reserved are taken: OutOfMemory, with nothing computed, when there are too few. InvalidArgument for a sequence that
  // is not open or comes twice, tokens that are no words of the model, more than it has positions for, another model
  // than the cache was made for, or one that does not attend once in each layer. When the call throws, the sequences
  // have the tokens that they had. Records no graph.
  Tensor decode(const LanguageModel& model, std::span<const Feed> feeds);

  KvCacheStats stats() const;
  std::int64_t page_size() const;

 private:
  struct Body;
  std::unique_ptr<Body> body_;
};

}  // namespace lockstep
