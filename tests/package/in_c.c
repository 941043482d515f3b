/* What a program in C does with the installed library: in_c <folder of a language model> <tokenizer.json> */
#include <lockstep/c/lockstep.h>
#include <stdio.h>
#include <string.h>

#define CHECK(condition)                                                                                   \
  do {                                                                                                     \
    if (!(condition)) {                                                                                    \
      fprintf(stderr, "in_c.c:%d: %s; the last error: %s\n", __LINE__, #condition, lockstep_last_error()); \
      return 1;                                                                                            \
    }                                                                                                      \
  } while (0)

int main(int argc, char** argv) {
  const int64_t prompt[] = {5, 6, 7};
  int64_t whole[8], token;
  size_t count = 0, i;
  const char* text = "Hello, world";
  int64_t ids[64];
  char back[64];
  lockstep_language_model* model = NULL;
  lockstep_tokenizer* tokenizer = NULL;
  lockstep_generator* generator = NULL;
  lockstep_generation* texts[3] = {NULL, NULL, NULL};
  lockstep_generate_options options;
  lockstep_generator_options limits;
  lockstep_logprob drawn, top;
  CHECK(argc == 3);
  CHECK(lockstep_c_version() == LOCKSTEP_C_VERSION);

  CHECK(lockstep_language_model_load("/no such folder", NULL, NULL, 0, &model) != LOCKSTEP_OK);
  CHECK(model == NULL && strstr(lockstep_last_error(), "/no such folder") != NULL);
  CHECK(lockstep_language_model_load(argv[1], "cpu", NULL, 1, &model) == LOCKSTEP_OK);
  lockstep_generate_options_init(&options);
  options.max_new_tokens = 8;
  CHECK(lockstep_generate(model, prompt, 3, &options, whole, 8, &count) == LOCKSTEP_OK && count == 8);

  lockstep_generator_options_init(&limits);
  limits.pages = 16;
  CHECK(lockstep_generator_create(model, &limits, &generator) == LOCKSTEP_OK);
  lockstep_language_model_free(model);
  for (i = 0; i < 3; ++i) CHECK(lockstep_generator_submit(generator, prompt, 3, &options, &texts[i]) == LOCKSTEP_OK);
  for (i = 0; i < 3; ++i) {
    size_t at = 0;
    lockstep_status status;
    while ((status = lockstep_generation_next(texts[i], &token)) == LOCKSTEP_OK) CHECK(at < 8 && token == whole[at++]);
    CHECK(status == LOCKSTEP_END && at == 8);
    lockstep_generation_free(texts[i]);
  }
  options.logprobs = 1;
  CHECK(lockstep_generator_submit(generator, prompt, 3, &options, &texts[0]) == LOCKSTEP_OK);
  CHECK(lockstep_generation_next_logprobs(texts[0], &drawn, &top, 1, &count) == LOCKSTEP_OK);
  CHECK(drawn.token == whole[0] && count == 1 && drawn.logprob <= top.logprob && top.logprob < 0);
  lockstep_generation_free(texts[0]);
  lockstep_generator_free(generator);

  CHECK(lockstep_tokenizer_load(argv[2], &tokenizer) == LOCKSTEP_OK);
  CHECK(lockstep_tokenizer_encode(tokenizer, text, strlen(text), 0, ids, 64, &count) == LOCKSTEP_OK && count > 0);
  CHECK(lockstep_tokenizer_decode(tokenizer, ids, count, back, sizeof back, &count) == LOCKSTEP_OK);
  CHECK(strcmp(back, text) == 0);
  lockstep_tokenizer_free(tokenizer);
  printf("in_c.c: %lld %lld ... and \"%s\"\n", (long long)whole[0], (long long)whole[1], back);
  return 0;
}
