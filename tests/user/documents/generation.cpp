#include <cstdio>
#include <memory>

#include "lockstep/models.h"

void run() {
  Generator generator(
      std::make_shared<Gpt2>(GptConfig{.vocab_size = 100, .n_positions = 32, .n_embd = 16, .n_layer = 1, .n_head = 2}),
      {.batch = {.cache = {.pages = 8}}});
  // the block
}
