// text_logits <checkpoint>: how far the logits of CachedTextModel, which reads a text in pieces, are from those of the
// Gpt that train_text trained, which sees it whole. Prints the largest difference and the largest logit.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "../../docs/examples/support/cached_text_model.h"
#include "lockstep/models/generation/kv_cache.h"

namespace {

using namespace lockstep;

int run(const char* path) {
  const NoGrad no_grad;
  const auto model = example::load_text_model(path, Device::cpu());
  const std::int64_t length = model->options().context, words = model->shape().vocabulary;
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < length; ++i) tokens.push_back((i * i * 7 + i * 3) % words);
  const auto whole = model->net()(from_data(tokens, {1, length})).to_vector<float>();

  KvCache cache(*model, {.pages = length / 4 + 1, .page_size = 4});
  const std::int64_t sequence = cache.begin(tokens);
  double largest = 0, difference = 0;
  const std::span<const std::int64_t> all(tokens);
  for (std::size_t done = 0, piece = 1; done < all.size(); done += piece, piece = 1 + done % 3) {
    piece = std::min(piece, all.size() - done);
    const KvCache::Feed feed{sequence, all.subspan(done, piece)};
    const auto logits = cache.decode(*model, {&feed, 1}).to_vector<float>();
    const float* wanted = whole.data() + (done + piece - 1) * static_cast<std::size_t>(words);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(wanted[i])));
      difference = std::max(difference, std::abs(static_cast<double>(wanted[i] - logits[i])));
    }
  }
  const Tokenizer tokenizer = example::character_tokenizer(model->characters());
  std::string text;  // what is text by itself: bytes beyond ASCII are parts of characters
  for (const char c : model->characters())
    if (static_cast<unsigned char>(c) < 0x80) text += c;
  const std::string spelt = tokenizer.decode(tokenizer.encode(text));
  std::printf("largest logit %g, difference %g, characters %s\n", largest, difference,
              spelt == text ? "as they were" : "other ones");
  return largest > 0.1 && difference <= 1e-5 * std::max(1.0, largest) && spelt == text ? 0 : 1;
}

}  // namespace

int main(int, char** argv) {
  try {
    return run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "text_logits: %s\n", error.what());
    return 1;
  }
}
