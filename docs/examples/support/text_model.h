// The model of train_text, and the text it learns.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "text_options.h"

namespace example {

// A file's bytes, mapped, and the characters among them.
class Text {
 public:
  explicit Text(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) throw UsageError(lockstep::cat("--data: cannot read '", path, "': ", std::strerror(errno)));
    struct stat status {};
    const bool regular = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
    size_ = regular ? static_cast<std::size_t>(status.st_size) : 0;
    void* map = size_ > 0 ? ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0) : MAP_FAILED;
    ::close(file);
    if (!regular) throw UsageError(lockstep::cat("--data: expected a file, got '", path, "'"));
    if (map == MAP_FAILED) throw UsageError(lockstep::cat("--data: expected text, '", path, "' is empty"));
    bytes_ = static_cast<const unsigned char*>(map);
    std::array<bool, 256> seen{};
    for (std::size_t i = 0; i < size_; ++i) seen[bytes_[i]] = true;
    for (int byte = 0; byte < 256; ++byte) {
      if (!seen[static_cast<std::size_t>(byte)]) continue;
      number_[static_cast<std::size_t>(byte)] = static_cast<std::int64_t>(vocabulary_.size());
      vocabulary_.push_back(static_cast<char>(byte));
    }
  }
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;
  ~Text() { ::munmap(const_cast<unsigned char*>(bytes_), size_); }

  std::size_t size() const { return size_; }
  const std::string& vocabulary() const { return vocabulary_; }  // every character once, ascending
  std::int64_t number(std::size_t position) const { return number_[bytes_[position]]; }

 private:
  const unsigned char* bytes_ = nullptr;
  std::size_t size_ = 0;
  std::string vocabulary_;
  std::array<std::int64_t, 256> number_{};
};

// Characters in, scores for the next character out: [batch, time] -> [batch, time, vocabulary]. The head is the table
// of the characters, transposed (Press & Wolf, 2017).
struct Gpt : lockstep::Module<Gpt> {
  lockstep::Embedding tokens, positions;
  lockstep::TransformerEncoder blocks;

  Gpt(std::int64_t vocabulary, const TextOptions& o)
      : tokens(vocabulary, o.width),
        positions(o.context, o.width),
        blocks(lockstep::TransformerEncoderLayer(o.width, o.heads,
                                                 {.feedforward = 4 * o.width,
                                                  .dropout = o.dropout,
                                                  .activation = lockstep::TransformerActivation::gelu,
                                                  .batch_first = true,
                                                  .norm_first = true}),
               o.layers, lockstep::LayerNorm(o.width)) {
    const lockstep::NoGrad no_grad;
    for (const lockstep::NamedParameter& named : named_parameters())
      if (named.parameter.shape().rank() > 1) lockstep::init::normal(named.parameter.tensor(), 0, 0.02);
  }
  lockstep::Tensor forward(const lockstep::Tensor& ids) const {
    const lockstep::Tensor places = lockstep::arange(ids.size(1), {.device = ids.device()});
    const lockstep::Tensor features = blocks(tokens(ids) + positions(places), {.causal = true});
    return lockstep::linear(features, tokens.weight.on(ids.device()));
  }
  void members(lockstep::Members& m) override { m("tokens", tokens), m("positions", positions), m("blocks", blocks); }
};

}  // namespace example
