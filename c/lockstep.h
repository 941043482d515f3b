/* Lockstep from C, and from what calls C: networks and their tensors, language models, tokenizers, generation.
 *
 * Every function that can fail returns a lockstep_status; lockstep_last_error() has the sentence. What a function makes
 * is written to its last pointer, which is set to NULL when it fails, and belongs to the caller until it is freed; free
 * functions accept NULL. Texts are UTF-8; those that go in end with a zero where no length is given. Arguments are
 * copied before a function returns. NULL where something is needed is LOCKSTEP_INVALID_ARGUMENT. Functions are
 * thread-safe; a handle may be used by one thread at a time, but for those of which it is said otherwise. Nothing here
 * calls back.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define LOCKSTEP_C_API __attribute__((visibility("default")))
#else
#define LOCKSTEP_C_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Grows with what is added. What is here stays as it is; structs of options grow at their end, and say their size. */
#define LOCKSTEP_C_VERSION 1
LOCKSTEP_C_API int lockstep_c_version(void);       /* that the library was built with */
LOCKSTEP_C_API const char* lockstep_version(void); /* "0.1.0" */

typedef enum lockstep_status {
  LOCKSTEP_OK = 0,
  LOCKSTEP_END = 1, /* no error: nothing more comes */
  LOCKSTEP_INVALID_ARGUMENT = 2,
  LOCKSTEP_NOT_SUPPORTED = 3,
  LOCKSTEP_OUT_OF_MEMORY = 4, /* of a device or of the host */
  LOCKSTEP_DEVICE_ERROR = 5,
  LOCKSTEP_TIMEOUT = 6,
  LOCKSTEP_CANCELLED = 7,
  LOCKSTEP_REFUSED = 8,      /* full or closed */
  LOCKSTEP_FORMAT_ERROR = 9, /* a file */
  LOCKSTEP_ERROR = 10        /* anything else */
} lockstep_status;

/* Why the last call of this thread that failed did; "" when none has. Valid until the next one that fails. */
LOCKSTEP_C_API const char* lockstep_last_error(void);

/* ---- tensors */

typedef enum lockstep_dtype {
  LOCKSTEP_F32 = 0,
  LOCKSTEP_F64 = 1,
  LOCKSTEP_F16 = 2,
  LOCKSTEP_BF16 = 3,
  LOCKSTEP_I32 = 4,
  LOCKSTEP_I64 = 5,
  LOCKSTEP_U8 = 6,
  LOCKSTEP_BOOL = 7,
  LOCKSTEP_I8 = 8
} lockstep_dtype;
#define LOCKSTEP_MAX_RANK 8

typedef struct lockstep_tensor lockstep_tensor;

/* `dtype`: a lockstep_dtype. `device`: "cpu", "cuda:0", "host:1"; NULL is cpu. `data`: the elements in row-major order,
 * without gaps; NULL: zeros.
 */
LOCKSTEP_C_API lockstep_status lockstep_tensor_create(int dtype, int rank, const int64_t* shape, const void* data,
                                                      const char* device, lockstep_tensor** tensor);
/* Each of the three may be NULL. `shape` has room for LOCKSTEP_MAX_RANK sizes. */
LOCKSTEP_C_API lockstep_status lockstep_tensor_info(const lockstep_tensor* tensor, lockstep_dtype* dtype, int* rank,
                                                    int64_t* shape);
/* Copies all elements, in row-major order. `bytes` is the size of `data`, which must be theirs. Waits for the device.
 */
LOCKSTEP_C_API lockstep_status lockstep_tensor_read(const lockstep_tensor* tensor, void* data, size_t bytes);
LOCKSTEP_C_API void lockstep_tensor_free(lockstep_tensor* tensor);

/* ---- networks */

typedef struct lockstep_network lockstep_network;

/* `kind`: "resnet18", "resnet34", "resnet50", "resnet101", "resnet152", with as many classes as the file has. `path`: a
 * safetensors file, or a folder with one. A network of one's own is made in C++: lockstep/c/network.h. In evaluation
 * mode, with norms folded. Any number of threads may run one network at once. */
LOCKSTEP_C_API lockstep_status lockstep_network_load(const char* kind, const char* path, const char* device,
                                                     lockstep_network** network);
/* Inputs on any device; the results are on the network's. `outputs` has room for `capacity` of them, `count` says how
 * many there are; where they are more than fit, none is given. */
LOCKSTEP_C_API lockstep_status lockstep_network_run(const lockstep_network* network,
                                                    const lockstep_tensor* const* inputs, size_t input_count,
                                                    lockstep_tensor** outputs, size_t capacity, size_t* count);
LOCKSTEP_C_API void lockstep_network_free(lockstep_network* network);

/* ---- tokenizers: any number of threads may use one at once */

typedef struct lockstep_tokenizer lockstep_tokenizer;

LOCKSTEP_C_API lockstep_status lockstep_tokenizer_load(const char* path, lockstep_tokenizer** tokenizer);
enum {
  LOCKSTEP_ADD_SPECIAL = 1,  /* the tokens that the file puts around a text */
  LOCKSTEP_PARSE_SPECIAL = 2 /* special tokens in the text are such; without it they are text, as in what users write */
};
/* `count` is how many there are, also where they are more than `capacity`: then `ids`, which may be NULL, has the first
 * ones, and the status is LOCKSTEP_OK all the same. */
LOCKSTEP_C_API lockstep_status lockstep_tokenizer_encode(const lockstep_tokenizer* tokenizer, const char* text,
                                                         size_t bytes, int flags, int64_t* ids, size_t capacity,
                                                         size_t* count);
/* Special tokens are left out. `bytes` counts as `count` does above; a zero follows them where there is room. */
LOCKSTEP_C_API lockstep_status lockstep_tokenizer_decode(const lockstep_tokenizer* tokenizer, const int64_t* ids,
                                                         size_t count, char* text, size_t capacity, size_t* bytes);
LOCKSTEP_C_API void lockstep_tokenizer_free(lockstep_tokenizer* tokenizer);

/* ---- language models and generation */

typedef struct lockstep_language_model lockstep_language_model;

/* A folder with config.json and safetensors, as published. `dtype`: "f32", "bf16", "f16"; NULL: the files'. `map`: not
 * 0: the weights are the files' pages, without a copy. */
LOCKSTEP_C_API lockstep_status lockstep_language_model_load(const char* folder, const char* device, const char* dtype,
                                                            int map, lockstep_language_model** model);
/* Generators go on with it. */
LOCKSTEP_C_API void lockstep_language_model_free(lockstep_language_model* model);

/* What each field means: GenerateOptions and SamplingOptions, docs/generation.md. */
typedef struct lockstep_generate_options {
  size_t size; /* sizeof(lockstep_generate_options) */
  int64_t max_new_tokens;
  double temperature;
  int64_t top_k;
  double top_p;
  double min_p;
  double repetition_penalty;
  uint64_t seed;
  const int64_t* stop_tokens; /* stop_count of them */
  size_t stop_count;
  int64_t timeout_ms;   /* of a text of a generator, until its last token; 0: the generator's */
  int temperature_last; /* not 0: llama.cpp's order */
  double presence_penalty;
  double frequency_penalty;
  const int64_t* bias_tokens; /* bias_count of them, which get as many biases */
  const double* biases;
  size_t bias_count;
  int64_t logprobs; /* of the token, and of so many that are the most probable; -1, the default: none */
} lockstep_generate_options;
/* The defaults; call it first. */
LOCKSTEP_C_API void lockstep_generate_options_init(lockstep_generate_options* options);

/* The whole text, in the calling thread. `options` may be NULL; logprobs are a generator's. `count` as in
 * lockstep_tokenizer_encode. */
LOCKSTEP_C_API lockstep_status lockstep_generate(const lockstep_language_model* model, const int64_t* prompt,
                                                 size_t prompt_count, const lockstep_generate_options* options,
                                                 int64_t* tokens, size_t capacity, size_t* count);

typedef struct lockstep_generator lockstep_generator;
typedef struct lockstep_generation lockstep_generation;

typedef struct lockstep_generator_options {
  size_t size;   /* sizeof(lockstep_generator_options) */
  int64_t pages; /* of all texts together; required */
  int64_t page_size;
  int64_t max_sequences;
  int64_t max_tokens;
  int64_t max_queued;
  int when_full; /* 0: submit waits, 1: it refuses, 2: the oldest that waits is dropped */
  int64_t timeout_ms;
} lockstep_generator_options;
LOCKSTEP_C_API void lockstep_generator_options_init(lockstep_generator_options* options);

/* Any number of threads may submit to one generator at once. */
LOCKSTEP_C_API lockstep_status lockstep_generator_create(const lockstep_language_model* model,
                                                         const lockstep_generator_options* options,
                                                         lockstep_generator** generator);
/* `options` may be NULL. */
LOCKSTEP_C_API lockstep_status lockstep_generator_submit(lockstep_generator* generator, const int64_t* prompt,
                                                         size_t prompt_count, const lockstep_generate_options* options,
                                                         lockstep_generation** generation);
/* Lines of Prometheus' text format. `bytes` as in lockstep_tokenizer_decode. */
LOCKSTEP_C_API lockstep_status lockstep_generator_metrics(const lockstep_generator* generator, const char* name,
                                                          char* text, size_t capacity, size_t* bytes);
/* Takes no more texts, and waits until all have ended: LOCKSTEP_TIMEOUT when they have not in that time. */
LOCKSTEP_C_API lockstep_status lockstep_generator_drain(lockstep_generator* generator, int64_t timeout_ms);
/* Cancels what has not ended. */
LOCKSTEP_C_API void lockstep_generator_free(lockstep_generator* generator);

/* The next token; blocks until it is there. LOCKSTEP_END behind the last one; or, once, why the text ended otherwise.
 */
LOCKSTEP_C_API lockstep_status lockstep_generation_next(lockstep_generation* generation, int64_t* token);

typedef struct lockstep_logprob {
  int64_t token;
  double logprob; /* natural logarithm of the probability that the model gave it: before biases and sampling */
} lockstep_logprob;
/* The same of a text that was submitted with logprobs: `token` with its own, and in `top` the most probable ones of its
 * place, in order, as many as were asked for at most. `count` as in lockstep_tokenizer_encode; NULL for `top` and 0 for
 * `capacity` where they are not wanted. */
LOCKSTEP_C_API lockstep_status lockstep_generation_next_logprobs(lockstep_generation* generation,
                                                                 lockstep_logprob* token, lockstep_logprob* top,
                                                                 size_t capacity, size_t* count);
/* From any thread. */
LOCKSTEP_C_API lockstep_status lockstep_generation_cancel(const lockstep_generation* generation);
/* Cancels the text where it has not ended. */
LOCKSTEP_C_API void lockstep_generation_free(lockstep_generation* generation);

#ifdef __cplusplus
}
#endif
