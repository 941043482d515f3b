// Language models on several devices at once.
#include "lockstep/models/language/gpt2.h"
#include "lockstep/models/language/llama.h"
#include "lockstep/parallel/data_parallel.h"
#include "support/catch.h"
#include "support/devices.h"

namespace lockstep::test {

TEST_CASE("language models compute the same in replicas, and get the same gradients") {
  manual_seed(6);
  LlamaConfig c;
  c.vocab_size = 11, c.hidden_size = 12, c.intermediate_size = 20, c.num_hidden_layers = 2;
  c.num_attention_heads = 4, c.num_key_value_heads = 2;
  c.head_dim = 6;
  c.tie_word_embeddings = true;
  c.rope = {.scaling = RotaryScaling::yarn, .factor = 4, .original_positions = 16};
  Llama llama(c);
  llama.to(support::device_at(0));
  DataParallel<Llama> replicas(llama, {.devices = support::first_devices(3)});
  const Tensor ids = from_data({1, 5, 2, 9, 9, 3, 0, 4, 10, 2, 7, 7, 8, 1, 0}, {5, 3}).to(support::device_at(0));
  const Tensor alone = llama(ids), together = replicas(ids);
  CHECK(allclose(together, alone, 1e-4, 1e-5));
  square(alone).sum().backward();
  const Tensor expected = llama.model.embed_tokens.weight.grad().clone();
  llama.zero_grad();
  square(together).sum().backward();
  CHECK(allclose(llama.model.embed_tokens.weight.grad(), expected, 1e-3, 1e-4));
}

}  // namespace lockstep::test
