// Which pages of a cache belong to which sequence, and which beginnings of sequences are kept to be shared. Numbers
// alone: no device, no memory. Private to the library.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "lockstep/runtime/api.h"

namespace lockstep::detail {

class LOCKSTEP_API PageTable {
 public:
  // A full page that sequences with the same tokens up to its end may read.
  struct Shareable;
  struct Sequence {
    std::vector<std::int32_t> pages;   // in order; the last one may be filled in part
    std::vector<std::int64_t> tokens;  // whose keys and values are there
    std::int64_t length() const { return static_cast<std::int64_t>(tokens.size()); }
    std::vector<std::shared_ptr<Shareable>> shareable;  // what the first pages are; the others are its own
    bool shares = true;                                 // whether more of its pages will be shareable
  };

  // Pages are numbered from 0. `share`: full pages stay after their sequences, until their place is needed.
  PageTable(std::int64_t pages, std::int64_t page_size, bool share);

  // A sequence that will have `tokens`, with the pages of the longest beginning that is kept: whole pages, and never
  // all of the tokens, since a model has to compute one at least.
  std::int64_t begin(std::span<const std::int64_t> tokens);
  // Pages for `count` tokens more than it has. False, with nothing changed, when too few are available.
  bool reserve(std::int64_t sequence, std::int64_t count);
  // These tokens' keys and values are in pages that were reserved. Like end(), it needs no memory.
  void append(std::int64_t sequence, std::span<const std::int64_t> tokens);
  void end(std::int64_t sequence);
  // Nothing that is in pages now is shared with sequences that begin later.
  void forget();

  const Sequence& at(std::int64_t sequence) const;  // InvalidArgument for one that is not open

  std::int64_t page_size() const { return page_size_; }
  std::int64_t pages() const { return pages_; }
  std::int64_t kept() const { return static_cast<std::int64_t>(unused_.size()); }  // that no sequence holds
  std::int64_t available() const { return static_cast<std::int64_t>(free_.size()) + kept(); }
  std::int64_t used() const { return pages_ - available(); }  // that sequences hold
  std::int64_t sequences() const { return static_cast<std::int64_t>(open_.size()); }

 private:
  struct Key {
    const Shareable* parent;  // of the page before; null: the first
    std::vector<std::int64_t> tokens;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const;
  };
  Key key_of(const Sequence& sequence, std::span<const std::int64_t> tokens) const;
  void share_full_pages(Sequence& sequence);
  void evict();

  std::int64_t pages_, page_size_;
  bool share_;
  std::vector<std::int32_t> free_;
  std::map<std::int64_t, Sequence> open_;
  std::int64_t next_ = 0;
  std::unordered_map<Key, std::shared_ptr<Shareable>, Hash> kept_;  // with users or without
  // Those without users, which are evicted from the front. What stands behind a page in its sequences stands before it
  // here, so that nobody is evicted before those that need it.
  std::list<Shareable*> unused_;  // which kept_ owns
};

}  // namespace lockstep::detail
