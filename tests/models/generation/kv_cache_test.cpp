// KvCache: decoding with pages gives what the whole sequence gives; pages are taken, shared and given back.
#include "lockstep/models/generation/kv_cache.h"

#include <limits>
#include <optional>

#include "models/generation/small_model.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/messages.h"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;
using Tokens = std::vector<std::int64_t>;
using Feed = KvCache::Feed;

double difference(const Tensor& a, const Tensor& b) { return max(abs(a - b).to(DType::f64)).item<double>(); }

// The logits behind the last of `tokens`, from pages, with pieces of these sizes.
Tensor in_pieces(const SmallModel& model, const Tokens& tokens, const Tokens& sizes, std::int64_t page_size) {
  KvCache cache(model, {.pages = 60, .page_size = page_size});
  const std::int64_t sequence = cache.begin(tokens);
  Tensor logits;
  std::size_t at = 0;
  for (std::size_t i = 0; at < tokens.size(); ++i) {
    const std::size_t count = std::min(static_cast<std::size_t>(sizes[i % sizes.size()]), tokens.size() - at);
    const Feed feed{sequence, std::span(tokens).subspan(at, count)};
    logits = cache.decode(model, {&feed, 1});
    at += count;
  }
  return logits;
}

}  // namespace

TEST_CASE("a cache that goes after a decoding on another stream keeps its pages until that is done") {
  const Device device = support::first_devices(1)[0];
  const SmallModel model(device, DType::f64);
  const Tokens tokens{1, 2, 3, 4, 5};
  const auto logits = [&](bool aside) {
    const Stream here = current_stream(device), side(device);
    const Stream& there = aside ? side : here;
    std::optional<KvCache> cache(std::in_place, model, KvCacheOptions{.pages = 4, .page_size = 4});
    there.wait_for(here);
    Tensor found;
    {
      const StreamScope scope(there);
      const Feed feed{cache->begin(tokens), tokens};
      found = cache->decode(model, {&feed, 1});
      cache.reset();
    }
    for (int taker = 0; taker < 4; ++taker)  // of what has been given back too early
      (void)full({4 * 4 * model.shape().heads * model.shape().head_size}, 1e30,
                 {.dtype = DType::f64, .device = device});
    here.wait_for(there);
    found.storage()->record_use(here);
    const auto values = found.to_vector<double>();
    side.wait_for(here);
    synchronize(device);
    return values;
  };
  CHECK(logits(true) == logits(false));
}

TEST_CASE("decoding from pages gives the logits of the whole sequence") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const SmallModel model(support::first_devices(1)[0], dtype);
    for (const std::int64_t length : {1, 16, 17, 50}) {
      const Tokens tokens = prompt_of(length);
      const Tensor expected = model.whole(tokens).narrow(0, length - 1, 1);
      for (const std::int64_t page_size : {1, 4, 16})
        for (const Tokens& sizes : {Tokens{1}, Tokens{16}, Tokens{100}, Tokens{7, 1, 1, 20}}) {
          CAPTURE(length, page_size, sizes);
          CHECK(difference(in_pieces(model, tokens, sizes, page_size), expected) <
                (dtype == DType::f64 ? 1e-12 : 2e-5));
        }
    }
  }
}

TEST_CASE("sequences in one call are each computed as if they were alone") {
  const SmallModel model(support::first_devices(1)[0], DType::f64);
  KvCache cache(model, {.pages = 64, .page_size = 4});
  std::vector<Tokens> tokens;
  std::vector<std::int64_t> sequences;
  for (std::int64_t i = 0; i < 6; ++i) {
    tokens.push_back(prompt_of(9 + 4 * i, i));
    sequences.push_back(cache.begin(tokens.back()));
  }
  // Pieces of one token and of several in one call, wanted and not, in an order of their own.
  std::vector<std::size_t> done(6, 0);
  for (int call = 0; std::any_of(done.begin(), done.end(), [&](std::size_t n) { return n < 9; }); ++call) {
    std::vector<Feed> feeds;
    std::vector<std::size_t> wanted;
    for (std::size_t i : {4u, 0u, 5u, 2u, 1u, 3u}) {
      const std::size_t count =
          std::min<std::size_t>((static_cast<std::size_t>(call) + i) % 3, tokens[i].size() - done[i]);
      if (count == 0) continue;
      feeds.push_back(
          {sequences[i], std::span(tokens[i]).subspan(done[i], count), (i + static_cast<std::size_t>(call)) % 4 != 0});
      done[i] += count;
      if (feeds.back().wanted) wanted.push_back(i);
    }
    if (feeds.empty()) continue;
    const Tensor logits = cache.decode(model, feeds);
    REQUIRE(logits.defined() == !wanted.empty());
    for (std::size_t row = 0; row < wanted.size(); ++row) {
      const std::size_t i = wanted[row];
      const Tokens so_far(tokens[i].begin(), tokens[i].begin() + static_cast<std::ptrdiff_t>(done[i]));
      CAPTURE(call, i, done[i]);
      CHECK(difference(logits.narrow(0, static_cast<std::int64_t>(row), 1),
                       model.whole(so_far).narrow(0, static_cast<std::int64_t>(done[i]) - 1, 1)) < 1e-12);
    }
  }
}

TEST_CASE("a sequence holds its tokens and less than a page more") {
  const SmallModel model(support::first_devices(1)[0]);
  KvCache cache(model, {.pages = 20, .page_size = 4, .share_prefixes = false});
  std::vector<std::int64_t> sequences;
  std::int64_t pages = 0;
  for (const std::int64_t length : {1, 4, 5, 12}) {
    const Tokens tokens = prompt_of(length);
    const std::int64_t sequence = cache.begin(tokens);
    const Feed feed{sequence, tokens};
    cache.decode(model, {&feed, 1});
    pages += (length + 3) / 4;
    CHECK(cache.length(sequence) == length);
    CHECK(cache.stats().used == pages);
    sequences.push_back(sequence);
  }
  CHECK(cache.stats().sequences == 4);
  CHECK(cache.stats().bytes == 2 * 2 * 20 * 4 * 2 * 4 * sizeof(float));
  for (const std::int64_t sequence : sequences) cache.end(sequence);
  CHECK(cache.stats().used == 0);
  CHECK(cache.stats().kept == 0);
}

TEST_CASE("sequences that begin alike share their pages, also after the first has ended") {
  const SmallModel model(support::first_devices(1)[0], DType::f64);
  KvCache cache(model, {.pages = 20, .page_size = 4});
  const auto compute = [&](const Tokens& tokens) {
    const std::int64_t sequence = cache.begin(tokens);
    const Feed feed{sequence, std::span(tokens).subspan(static_cast<std::size_t>(cache.length(sequence)))};
    const Tensor logits = cache.decode(model, {&feed, 1});
    CHECK(difference(logits, model.whole(tokens).narrow(0, static_cast<std::int64_t>(tokens.size()) - 1, 1)) < 1e-12);
    return sequence;
  };
  const Tokens first = prompt_of(10);
  Tokens second = first;
  second.resize(9);
  second.insert(second.end(), {3, 1, 4});
  const std::int64_t a = compute(first);
  CHECK(cache.stats().used == 3);
  CHECK(cache.length(cache.begin(second)) == 8);  // two full pages; what is in the third is not shared
  CHECK(cache.stats().used == 3);
  cache.end(1);
  const std::int64_t b = compute(second);
  CHECK(cache.stats().used == 4);
  cache.end(a);
  cache.end(b);
  CHECK(cache.stats().used == 0);
  CHECK(cache.stats().kept == 3);  // first's two, second's third
  // Never all tokens: one has to be computed.
  const std::int64_t c = cache.begin(std::span(first).first(8));
  CHECK(cache.length(c) == 4);
  cache.end(c);
  // Another beginning shares nothing, though its second page is the same.
  Tokens other = first;
  other[1] = (other[1] + 1) % SmallModel::kWords;
  const std::int64_t d = cache.begin(other);
  CHECK(cache.length(d) == 0);
  cache.end(d);
  // Nor does anything after forget_prefixes.
  const std::int64_t e = compute(first);
  cache.forget_prefixes();
  CHECK(cache.stats().kept == 0);
  CHECK(cache.length(cache.begin(first)) == 0);
  cache.end(e);
  CHECK(cache.stats().used == 0);
  CHECK(cache.stats().kept == 0);
}

TEST_CASE("pages that are kept make room, the least recently used first") {
  const SmallModel model(support::first_devices(1)[0]);
  KvCache cache(model, {.pages = 6, .page_size = 4});
  const auto compute = [&](const Tokens& tokens) {
    const std::int64_t sequence = cache.begin(tokens);
    const auto shared = static_cast<std::size_t>(cache.length(sequence));
    const Feed feed{sequence, std::span(tokens).subspan(shared)};
    cache.decode(model, {&feed, 1});
    cache.end(sequence);
    return shared;
  };
  const Tokens a = prompt_of(9, 1), b = prompt_of(9, 2), c = prompt_of(13, 3);
  CHECK(compute(a) == 0);
  CHECK(compute(b) == 0);
  CHECK(compute(a) == 8);
  CHECK(cache.stats().kept == 4);
  CHECK(compute(c) == 0);  // takes four of six: two were free, two were b's
  CHECK(cache.stats().kept == 5);
  CHECK(compute(a) == 8);
  CHECK(compute(b) == 0);
}

TEST_CASE("sequences that are computed side by side keep equal pages once") {
  const SmallModel model(support::first_devices(1)[0]);
  KvCache cache(model, {.pages = 20, .page_size = 4});
  const Tokens tokens = prompt_of(10);
  const std::int64_t a = cache.begin(tokens), b = cache.begin(tokens);
  const Feed feeds[] = {{a, tokens}, {b, tokens}};
  cache.decode(model, feeds);
  CHECK(cache.stats().used == 6);
  cache.end(b);
  cache.end(a);
  CHECK(cache.stats().used == 0);
  CHECK(cache.stats().kept == 2);
}

TEST_CASE("a page that was begun before forget_prefixes is not shared after it") {
  const SmallModel model(support::first_devices(1)[0]);
  KvCache cache(model, {.pages = 20, .page_size = 4});
  const Tokens tokens = prompt_of(10);
  const std::int64_t a = cache.begin(tokens);
  const Feed before{a, std::span(tokens).first(2)}, after{a, std::span(tokens).subspan(2)};
  cache.decode(model, {&before, 1});
  cache.forget_prefixes();
  cache.decode(model, {&after, 1});
  CHECK(cache.length(cache.begin(tokens)) == 0);
  cache.end(a);
  CHECK(cache.stats().kept == 0);
}

TEST_CASE("of a beginning that is kept the end goes first") {
  const SmallModel model(support::first_devices(1)[0]);
  KvCache cache(model, {.pages = 4, .page_size = 4});
  const Tokens tokens = prompt_of(13), other = prompt_of(5, 9);
  const std::int64_t a = cache.begin(tokens);
  const Feed all{a, tokens};
  cache.decode(model, {&all, 1});
  cache.end(a);
  CHECK(cache.stats().kept == 3);
  const std::int64_t b = cache.begin(other);
  CHECK(cache.reserve(b, 5));  // two pages: the free one, and the last of those that are kept
  CHECK(cache.stats().kept == 2);
  CHECK(cache.length(cache.begin(tokens)) == 8);
}

TEST_CASE("a cache that is full says so, and computes nothing") {
  const SmallModel model(support::first_devices(1)[0]);
  KvCache cache(model, {.pages = 3, .page_size = 4});
  const Tokens tokens = prompt_of(13);
  const std::int64_t sequence = cache.begin(tokens);
  const Feed all{sequence, tokens};
  CHECK_THROWS_AS(cache.decode(model, {&all, 1}), OutOfMemory);
  CHECK(model.calls == 0);
  CHECK(cache.length(sequence) == 0);
  CHECK_FALSE(cache.reserve(sequence, 13));
  CHECK_FALSE(cache.reserve(sequence, std::numeric_limits<std::int64_t>::max()));
  CHECK(cache.stats().used == 0);
  CHECK(cache.reserve(sequence, 12));
  CHECK(cache.stats().used == 3);
  const Feed some{sequence, std::span(tokens).first(12)};
  cache.decode(model, {&some, 1});
  CHECK(cache.stats().used == 3);
}

TEST_CASE("a model that throws leaves the sequences as they were") {
  const SmallModel model(support::first_devices(1)[0], DType::f64);
  KvCache cache(model, {.pages = 8, .page_size = 4});
  const Tokens tokens = prompt_of(6);
  const std::int64_t sequence = cache.begin(tokens);
  const Feed feed{sequence, tokens};
  model.fails = 1;
  CHECK_THROWS_AS(cache.decode(model, {&feed, 1}), Error);
  CHECK(cache.length(sequence) == 0);
  CHECK(difference(cache.decode(model, {&feed, 1}), model.whole(tokens).narrow(0, 5, 1)) < 1e-12);
}

TEST_CASE("a cache refuses what does not fit it, and names both sides") {
  using support::message_of;
  SmallModel model(support::first_devices(1)[0]);
  CHECK_THROWS_WITH(KvCache(model, {}), Contains("at least 1, got 0 pages of 16"));
  CHECK_THROWS_WITH(KvCache(model, {.pages = 2, .page_size = 0}), Contains("got 2 pages of 0"));
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  CHECK_THROWS_WITH(KvCache(model, {.pages = most}), Contains("at most 2147483647 pages") && Contains(cat(most)));
  CHECK_THROWS_AS(KvCache(model, {.pages = 2, .page_size = most}), InvalidArgument);
  KvCache cache(model, {.pages = 60, .page_size = 4});
  const Tokens tokens = prompt_of(3);
  const std::int64_t sequence = cache.begin(tokens);
  const auto decode = [&](const LanguageModel& of, std::vector<Feed> feeds) {
    return message_of<InvalidArgument>([&] { cache.decode(of, feeds); });
  };
  CHECK_THAT(decode(model, {{sequence, {}}}), Contains("a token at least for sequence 0"));
  CHECK_THAT(decode(model, {{7, tokens}}), Contains("got number 7 of 1"));
  CHECK_THROWS_WITH(cache.reserve(sequence, -1), Contains("0 tokens or more for sequence 0, got -1"));
  CHECK_THAT(decode(model, {{sequence, tokens}, {sequence, tokens}}), Contains("sequence 0 twice"));
  CHECK_THAT(decode(model, {{sequence, Tokens{1, 37}}}), Contains("from 0 to 36, got 37"));
  CHECK_THAT(decode(model, {{sequence, Tokens{-1}}}), Contains("from 0 to 36, got -1"));
  CHECK_THAT(decode(model, {{sequence, Tokens(201, 1)}}), Contains("at most 200 tokens") && Contains("0 and 201 more"));
  CHECK_THAT(decode(SmallModel(support::first_devices(1)[0], DType::f64), {{sequence, tokens}}),
             Contains("f32") && Contains("f64"));
  model.attends = 1;
  CHECK_THAT(decode(model, {{sequence, tokens}}), Contains("in each of its 2 layers, got 1"));
  model.attends = 3;
  CHECK_THAT(decode(model, {{sequence, tokens}}), Contains("layer 2 of 2"));
  model.attends = 2;
  CHECK(cache.length(sequence) == 0);
  cache.decode(model, std::vector<Feed>{{sequence, tokens}});
  CHECK(cache.length(sequence) == 3);
  cache.end(sequence);
  CHECK_THROWS_AS(cache.end(sequence), InvalidArgument);
  CHECK_THROWS_AS(cache.length(sequence), InvalidArgument);
  CHECK_FALSE(cache.decode(model, {}).defined());
}

}  // namespace lockstep::test
