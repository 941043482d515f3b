#include "lockstep/models/generation/page_table.h"

#include <algorithm>
#include <new>
#include <utility>

#include "lockstep/runtime/error.h"

namespace lockstep::detail {

struct PageTable::Shareable {
  Shareable(Key of, std::int32_t in) : key(std::move(of)), page(in) {}
  Shareable(const Shareable&) = delete;
  Shareable& operator=(const Shareable&) = delete;
  ~Shareable() = default;

  const Key key;
  const std::int32_t page;
  std::int64_t users = 1;           // open sequences that have it
  bool forgotten = false;           // no sequence will begin with it any more
  std::list<Shareable*> own{this};  // the element of unused_ that it is while it has no users: no memory is needed then
  const std::list<Shareable*>::iterator place = own.begin();
};

std::size_t PageTable::Hash::operator()(const Key& key) const {
  std::uint64_t hash = reinterpret_cast<std::uintptr_t>(key.parent);
  for (const std::int64_t token : key.tokens) {
    hash = (hash ^ static_cast<std::uint64_t>(token)) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  return static_cast<std::size_t>(hash);
}

PageTable::PageTable(std::int64_t pages, std::int64_t page_size, bool share)
    : pages_(pages), page_size_(page_size), share_(share) {
  free_.reserve(static_cast<std::size_t>(pages));
  for (std::int64_t page = pages; page-- > 0;) free_.push_back(static_cast<std::int32_t>(page));
}

const PageTable::Sequence& PageTable::at(std::int64_t sequence) const {
  const auto found = open_.find(sequence);
  LOCKSTEP_CHECK(found != open_.end(), "[KvCache] expected a sequence that was begun and not ended, got number ",
                 sequence, " of ", next_);
  return found->second;
}

PageTable::Key PageTable::key_of(const Sequence& sequence, std::span<const std::int64_t> tokens) const {
  return {sequence.shareable.empty() ? nullptr : sequence.shareable.back().get(), {tokens.begin(), tokens.end()}};
}

std::int64_t PageTable::begin(std::span<const std::int64_t> tokens) {
  Sequence sequence;
  const auto size = static_cast<std::size_t>(page_size_);
  std::vector<std::shared_ptr<Shareable>> found;
  for (std::size_t at = 0; share_ && at + size < tokens.size(); at += size) {
    const auto kept = kept_.find(key_of(sequence, tokens.subspan(at, size)));
    if (kept == kept_.end()) break;
    sequence.shareable.push_back(kept->second);
    sequence.pages.push_back(kept->second->page);
  }
  const std::size_t shared = sequence.pages.size() * size;
  sequence.tokens.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(shared));
  sequence.shares = share_;
  const auto& begun = open_.emplace(next_, std::move(sequence)).first->second;
  for (const auto& page : begun.shareable)
    if (page->users++ == 0) page->own.splice(page->own.end(), unused_, page->place);
  return next_++;
}

void PageTable::evict() {
  const Shareable* const oldest = unused_.front();
  free_.push_back(oldest->page);  // has room: it once had all pages
  unused_.pop_front();
  kept_.erase(kept_.find(oldest->key));
}

bool PageTable::reserve(std::int64_t number, std::int64_t count) {
  auto& sequence = const_cast<Sequence&>(at(number));
  LOCKSTEP_CHECK(count >= 0, "[KvCache] expected pages for 0 tokens or more for sequence ", number, ", got ", count);
  if (count > pages_ * page_size_ - sequence.length()) return false;
  const std::int64_t pages = (sequence.length() + count + page_size_ - 1) / page_size_;
  const std::int64_t more = pages - static_cast<std::int64_t>(sequence.pages.size());
  if (more > available()) return false;
  if (more <= 0) return true;
  sequence.pages.reserve(static_cast<std::size_t>(pages));
  sequence.tokens.reserve(static_cast<std::size_t>(pages * page_size_));
  for (std::int64_t i = 0; i < more; ++i) {
    if (free_.empty()) evict();
    sequence.pages.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

void PageTable::append(std::int64_t number, std::span<const std::int64_t> tokens) {
  auto& sequence = const_cast<Sequence&>(at(number));
  sequence.tokens.insert(sequence.tokens.end(), tokens.begin(), tokens.end());  // has room: reserve() made it
  try {
    share_full_pages(sequence);
  } catch (const std::bad_alloc&) {  // the tokens are in their pages, shared or not
    sequence.shares = false;
  }
}

void PageTable::share_full_pages(Sequence& sequence) {
  const auto size = static_cast<std::size_t>(page_size_);
  while (sequence.shares && (sequence.shareable.size() + 1) * size <= sequence.tokens.size()) {
    if (!sequence.shareable.empty() && sequence.shareable.back()->forgotten) sequence.shares = false;
    const std::size_t at = sequence.shareable.size();
    Key key = key_of(sequence, std::span(sequence.tokens).subspan(at * size, size));
    // Whoever computes what somebody else has in a page keeps its own.
    if (sequence.shares && kept_.contains(key)) sequence.shares = false;
    if (!sequence.shares) break;
    const auto page = std::make_shared<Shareable>(std::move(key), sequence.pages[at]);
    sequence.shareable.reserve(at + 1);
    kept_.emplace(page->key, page);
    sequence.shareable.push_back(page);
  }
}

void PageTable::end(std::int64_t number) {
  auto& sequence = const_cast<Sequence&>(at(number));
  for (std::size_t i = sequence.pages.size(); i-- > 0;) {
    if (i >= sequence.shareable.size()) {
      free_.push_back(sequence.pages[i]);
      continue;
    }
    const auto& page = sequence.shareable[i];
    if (--page->users > 0) continue;
    if (page->forgotten)
      free_.push_back(page->page);
    else
      unused_.splice(unused_.end(), page->own);
  }
  open_.erase(number);
}

void PageTable::forget() {
  while (!unused_.empty()) evict();
  for (const auto& [key, page] : kept_) page->forgotten = true;
  kept_.clear();
  for (auto& [number, sequence] : open_) sequence.shares = false;
}

}  // namespace lockstep::detail
