// The C functions from within: each status, and that results are those of the C++ functions behind them.
#include "lockstep/c/lockstep.h"

#include <cstdint>
#include <fstream>

#include "lockstep/c/network.h"
#include "lockstep/models/generation/generate.h"
#include "lockstep/models/language/load_language_model.h"
#include "lockstep/models/text/tokenizer.h"
#include "lockstep/parallel/serving/serving_error.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/version.h"
#include "support/catch.h"
#include "support/golden.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;
using Tokens = std::vector<std::int64_t>;

// tests/golden/<name>, a folder or a file.
std::string golden(const std::string& name) {
  const std::string file = golden_path(name);
  return file.substr(0, file.size() - std::string(".safetensors").size());
}
std::string llama() { return golden("models/llama"); }

template <class T>
struct Handle {  // frees at the end
  explicit Handle(void (*how)(T*)) : free(how) {}
  ~Handle() { free(at); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  T* at = nullptr;
  void (*free)(T*);
};

std::vector<float> floats(const lockstep_tensor* tensor, std::size_t count) {
  std::vector<float> values(count);
  REQUIRE(lockstep_tensor_read(tensor, values.data(), count * sizeof(float)) == LOCKSTEP_OK);
  return values;
}

}  // namespace

TEST_CASE("versions in C are the library's") {
  CHECK(lockstep_c_version() == LOCKSTEP_C_VERSION);
  CHECK(std::string(lockstep_version()) == LOCKSTEP_VERSION_STRING);
}

TEST_CASE("tensors go to C and back") {
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  const std::int64_t shape[] = {2, 3};
  for (const char* device : {"cpu", "host:1", static_cast<const char*>(nullptr)}) {
    Handle<lockstep_tensor> tensor(&lockstep_tensor_free);
    REQUIRE(lockstep_tensor_create(LOCKSTEP_F32, 2, shape, values.data(), device, &tensor.at) == LOCKSTEP_OK);
    CHECK(floats(tensor.at, 6) == values);
    lockstep_dtype dtype = LOCKSTEP_U8;
    int rank = 0;
    std::int64_t sizes[LOCKSTEP_MAX_RANK] = {};
    CHECK(lockstep_tensor_info(tensor.at, &dtype, &rank, sizes) == LOCKSTEP_OK);
    CHECK((dtype == LOCKSTEP_F32 && rank == 2 && sizes[0] == 2 && sizes[1] == 3));
    CHECK(lockstep_tensor_info(tensor.at, nullptr, nullptr, nullptr) == LOCKSTEP_OK);
    std::vector<char> few(20);
    CHECK(lockstep_tensor_read(tensor.at, few.data(), few.size()) == LOCKSTEP_INVALID_ARGUMENT);
    CHECK_THAT(lockstep_last_error(), Contains("24 bytes") && Contains("got 20"));
  }
  Handle<lockstep_tensor> zeros(&lockstep_tensor_free), number(&lockstep_tensor_free);
  REQUIRE(lockstep_tensor_create(LOCKSTEP_I64, 2, shape, nullptr, nullptr, &zeros.at) == LOCKSTEP_OK);
  Tokens read(6, 7);
  CHECK(lockstep_tensor_read(zeros.at, read.data(), 48) == LOCKSTEP_OK);
  CHECK(read == Tokens(6, 0));
  REQUIRE(lockstep_tensor_create(LOCKSTEP_F32, 0, nullptr, values.data(), nullptr, &number.at) == LOCKSTEP_OK);
  CHECK(floats(number.at, 1) == std::vector<float>{1});
}

TEST_CASE("what C gives wrongly is a status and a sentence, and makes nothing") {
  const std::int64_t shape[] = {2, -3};
  auto* tensor = reinterpret_cast<lockstep_tensor*>(8);
  const auto refused = [&](lockstep_status status, const char* why) {
    CHECK(status == LOCKSTEP_INVALID_ARGUMENT);
    CHECK_THAT(lockstep_last_error(), Contains(why));
    CHECK(tensor == nullptr);
    tensor = reinterpret_cast<lockstep_tensor*>(8);
  };
  refused(lockstep_tensor_create(LOCKSTEP_F32, 2, shape, nullptr, nullptr, &tensor), "0 or more, got -3");
  refused(lockstep_tensor_create(LOCKSTEP_F32, 9, shape, nullptr, nullptr, &tensor), "from 0 to 8, got 9");
  refused(lockstep_tensor_create(LOCKSTEP_F32, 2, nullptr, nullptr, nullptr, &tensor), "for shape, got NULL");
  refused(lockstep_tensor_create(9, 1, shape, nullptr, nullptr, &tensor), "got 9");
  refused(lockstep_tensor_create(LOCKSTEP_F32, 1, shape, nullptr, "gpu", &tensor), "gpu");
  const unsigned char bytes[] = {1, 2};
  refused(lockstep_tensor_create(LOCKSTEP_BOOL, 1, shape, bytes, nullptr, &tensor), "0 and 1 for bool");
  CHECK(lockstep_tensor_create(LOCKSTEP_F32, 1, shape, nullptr, nullptr, nullptr) == LOCKSTEP_INVALID_ARGUMENT);
  CHECK(lockstep_tensor_info(nullptr, nullptr, nullptr, nullptr) == LOCKSTEP_INVALID_ARGUMENT);
  CHECK(lockstep_tensor_read(nullptr, nullptr, 0) == LOCKSTEP_INVALID_ARGUMENT);
  lockstep_tensor_free(nullptr);
  lockstep_network_free(nullptr);
  lockstep_tokenizer_free(nullptr);
  lockstep_language_model_free(nullptr);
  lockstep_generator_free(nullptr);
  lockstep_generation_free(nullptr);
}

TEST_CASE("a network of C++ runs in C, and each error has its status") {
  const Device device = Device::host(0);
  CHECK_THROWS_AS(network_for_c(device, nullptr), InvalidArgument);
  int what = 0;
  Handle<lockstep_network> network(&lockstep_network_free);
  network.at = network_for_c(device, [&](std::span<const Tensor> x) -> std::vector<Tensor> {
    if (what == 1) throw NotSupported("not here");
    if (what == 2) throw OutOfMemory(device, 1, 2, 3);
    if (what == 3) throw DeviceError(device, 7, "gone");
    if (what == 4) throw TimeoutError("late");
    if (what == 5) throw Cancelled("cancelled");
    if (what == 6) throw Refused("full");
    if (what == 7) throw FormatError("file", 3, "bad");
    if (what == 8) throw std::bad_alloc();
    if (what == 9) throw 1;
    CHECK(x[0].device() == device);
    CHECK_FALSE(GradMode::enabled());
    return {x[0] + 1.0, x[0] * x[1]};
  });
  const float three = 3, four = 4;
  Handle<lockstep_tensor> a(&lockstep_tensor_free), b(&lockstep_tensor_free), first(&lockstep_tensor_free),
      second(&lockstep_tensor_free);
  REQUIRE(lockstep_tensor_create(LOCKSTEP_F32, 0, nullptr, &three, "cpu", &a.at) == LOCKSTEP_OK);
  REQUIRE(lockstep_tensor_create(LOCKSTEP_F32, 0, nullptr, &four, "host:0", &b.at) == LOCKSTEP_OK);
  const lockstep_tensor* inputs[] = {a.at, b.at};
  lockstep_tensor* outputs[3] = {};
  std::size_t count = 0;
  REQUIRE(lockstep_network_run(network.at, inputs, 2, outputs, 3, &count) == LOCKSTEP_OK);
  first.at = outputs[0], second.at = outputs[1];
  CHECK(count == 2);
  CHECK(outputs[2] == nullptr);
  CHECK(floats(outputs[0], 1) == std::vector<float>{4});
  CHECK(floats(outputs[1], 1) == std::vector<float>{12});
  lockstep_tensor* one = nullptr;
  CHECK(lockstep_network_run(network.at, inputs, 2, &one, 1, &count) == LOCKSTEP_INVALID_ARGUMENT);
  CHECK_THAT(lockstep_last_error(), Contains("room for 2 results, got 1"));
  CHECK(count == 2);
  CHECK(one == nullptr);
  const lockstep_status expected[] = {LOCKSTEP_NOT_SUPPORTED, LOCKSTEP_OUT_OF_MEMORY, LOCKSTEP_DEVICE_ERROR,
                                      LOCKSTEP_TIMEOUT,       LOCKSTEP_CANCELLED,     LOCKSTEP_REFUSED,
                                      LOCKSTEP_FORMAT_ERROR,  LOCKSTEP_OUT_OF_MEMORY, LOCKSTEP_ERROR};
  for (what = 1; what <= 9; ++what) {
    CAPTURE(what);
    CHECK(lockstep_network_run(network.at, inputs, 2, outputs, 3, &count) == expected[what - 1]);
    CHECK(std::string(lockstep_last_error()) != "");
    CHECK(outputs[0] == nullptr);
  }
}

TEST_CASE("a published network needs a checkpoint that it is of") {
  lockstep_network* network = nullptr;
  CHECK(lockstep_network_load("resnet18", "no such file", nullptr, &network) != LOCKSTEP_OK);
  CHECK(lockstep_network_load("resnet18", llama().c_str(), nullptr, &network) == LOCKSTEP_INVALID_ARGUMENT);
  CHECK_THAT(lockstep_last_error(), Contains("fc.bias"));
  CHECK(lockstep_network_load(nullptr, "", nullptr, &network) == LOCKSTEP_INVALID_ARGUMENT);
  CHECK(network == nullptr);
}

TEST_CASE("tokenizers in C give ids and text, and say how much room they need") {
  const TemporaryFolder folder;
  const std::string path = folder / "tokenizer.json", text = "Hello world, it's 12 o'clock";
  {
    std::ifstream fixture(golden("tokenizers/gpt2") + ".json");  // its first line, before texts
    std::string line;
    std::getline(fixture, line);
    std::ofstream(path) << line;
  }
  Handle<lockstep_tokenizer> tokenizer(&lockstep_tokenizer_free);
  REQUIRE(lockstep_tokenizer_load(path.c_str(), &tokenizer.at) == LOCKSTEP_OK);
  const Tokens expected = Tokenizer::load(path).encode(text);
  std::size_t count = 0;
  REQUIRE(lockstep_tokenizer_encode(tokenizer.at, text.data(), text.size(),
                                    LOCKSTEP_ADD_SPECIAL | LOCKSTEP_PARSE_SPECIAL, nullptr, 0, &count) == LOCKSTEP_OK);
  CHECK(count == expected.size());
  Tokens ids(count), few(2, -5);
  REQUIRE(lockstep_tokenizer_encode(tokenizer.at, text.data(), text.size(), 3, ids.data(), count, &count) ==
          LOCKSTEP_OK);
  CHECK(ids == expected);
  REQUIRE(lockstep_tokenizer_encode(tokenizer.at, text.data(), text.size(), 3, few.data(), 2, &count) == LOCKSTEP_OK);
  CHECK(few == Tokens(expected.begin(), expected.begin() + 2));
  std::size_t bytes = 0;
  std::string back(text.size() + 1, 'x');
  REQUIRE(lockstep_tokenizer_decode(tokenizer.at, ids.data(), ids.size(), back.data(), back.size(), &bytes) ==
          LOCKSTEP_OK);
  CHECK(bytes == text.size());
  CHECK(back == text + '\0');
  CHECK(lockstep_tokenizer_encode(tokenizer.at, nullptr, 0, 0, nullptr, 0, &count) == LOCKSTEP_OK);
  CHECK(count == 0);
  CHECK(lockstep_tokenizer_encode(tokenizer.at, "a", 1, 4, nullptr, 0, &count) == LOCKSTEP_INVALID_ARGUMENT);
  CHECK(lockstep_tokenizer_encode(tokenizer.at, nullptr, 1, 0, nullptr, 0, &count) == LOCKSTEP_INVALID_ARGUMENT);
  for (const std::size_t wrong : {SIZE_MAX, SIZE_MAX / 4 + 1}) {
    CHECK(lockstep_tokenizer_encode(tokenizer.at, "a", wrong, 0, nullptr, 0, &count) == LOCKSTEP_INVALID_ARGUMENT);
    CHECK_THAT(lockstep_last_error(), Contains("less than 2^31 bytes") && Contains(std::to_string(wrong)));
    CHECK(lockstep_tokenizer_decode(tokenizer.at, ids.data(), wrong, nullptr, 0, &bytes) == LOCKSTEP_INVALID_ARGUMENT);
    CHECK_THAT(lockstep_last_error(), Contains("tokens, got " + std::to_string(wrong)));
  }
  lockstep_tokenizer* none = nullptr;
  CHECK(lockstep_tokenizer_load("no such file", &none) == LOCKSTEP_FORMAT_ERROR);
}

TEST_CASE("language models in C write what they write in C++") {
  Handle<lockstep_language_model> model(&lockstep_language_model_free);
  REQUIRE(lockstep_language_model_load(llama().c_str(), nullptr, "f32", 1, &model.at) == LOCKSTEP_OK);
  const auto same = load_language_model(llama(), {.dtype = DType::f32});
  const Tokens prompt{5, 6, 7};
  lockstep_generate_options options;
  lockstep_generate_options_init(&options);
  CHECK(options.max_new_tokens == GenerateOptions().max_new_tokens);
  options.max_new_tokens = 12;
  options.temperature = 1;
  options.top_p = 0.9;
  options.seed = 11;
  const GenerateOptions of{.max_new_tokens = 12, .sampling = {.temperature = 1, .top_p = 0.9, .seed = 11}};
  const Tokens expected = generate(*same, prompt, of).tokens;
  Tokens tokens(12);
  std::size_t count = 0;
  REQUIRE(lockstep_generate(model.at, prompt.data(), 3, &options, tokens.data(), 12, &count) == LOCKSTEP_OK);
  CHECK(count == 12);
  CHECK(tokens == expected);
  // A program of an older version, whose struct ends before the seed.
  lockstep_generate_options older = options;
  older.size = offsetof(lockstep_generate_options, seed);
  GenerateOptions first_seed = of;
  first_seed.sampling.seed = 0;
  REQUIRE(lockstep_generate(model.at, prompt.data(), 3, &older, tokens.data(), 12, &count) == LOCKSTEP_OK);
  CHECK(tokens == generate(*same, prompt, first_seed).tokens);
  // Penalties and biases, which an older program does not have.
  lockstep_generate_options biased = options;
  const std::int64_t bias_tokens[] = {9, 10};
  const double biases[] = {6, 5.5};
  biased.presence_penalty = 0.5;
  biased.frequency_penalty = 0.25;
  biased.bias_tokens = bias_tokens;
  biased.biases = biases;
  biased.bias_count = 2;
  GenerateOptions biased_of = of;
  biased_of.sampling.presence_penalty = 0.5;
  biased_of.sampling.frequency_penalty = 0.25;
  biased_of.sampling.logit_bias = {{9, 6}, {10, 5.5}};
  REQUIRE(lockstep_generate(model.at, prompt.data(), 3, &biased, tokens.data(), 12, &count) == LOCKSTEP_OK);
  CHECK(tokens == generate(*same, prompt, biased_of).tokens);
  CHECK(tokens != expected);
  biased.size = offsetof(lockstep_generate_options, presence_penalty);
  REQUIRE(lockstep_generate(model.at, prompt.data(), 3, &biased, tokens.data(), 12, &count) == LOCKSTEP_OK);
  CHECK(tokens == expected);
  biased.size = sizeof biased;
  biased.biases = nullptr;
  CHECK(lockstep_generate(model.at, prompt.data(), 3, &biased, tokens.data(), 12, &count) == LOCKSTEP_INVALID_ARGUMENT);
  CHECK_THAT(lockstep_last_error(), Contains("biases"));
  // No version's: too long, none, one that ends within a field.
  for (const std::size_t size :
       {sizeof older + 1, std::size_t{0}, offsetof(lockstep_generate_options, temperature) + 4}) {
    older.size = size;
    CHECK(lockstep_generate(model.at, prompt.data(), 3, &older, tokens.data(), 12, &count) ==
          LOCKSTEP_INVALID_ARGUMENT);
    CHECK_THAT(lockstep_last_error(), Contains("lockstep_generate_options") && Contains(std::to_string(size)));
  }

  older = options;
  older.logprobs = 0;
  CHECK(lockstep_generate(model.at, prompt.data(), 3, &older, tokens.data(), 12, &count) == LOCKSTEP_INVALID_ARGUMENT);
  CHECK_THAT(lockstep_last_error(), Contains("lockstep_generation_next_logprobs"));

  lockstep_generator_options with;
  lockstep_generator_options_init(&with);
  Handle<lockstep_generator> generator(&lockstep_generator_free);
  CHECK(lockstep_generator_create(model.at, &with, &generator.at) == LOCKSTEP_INVALID_ARGUMENT);
  CHECK_THAT(lockstep_last_error(), Contains("0 pages"));
  with.pages = 20;
  REQUIRE(lockstep_generator_create(model.at, &with, &generator.at) == LOCKSTEP_OK);
  lockstep_language_model_free(std::exchange(model.at, nullptr));
  Handle<lockstep_generation> text(&lockstep_generation_free), other(&lockstep_generation_free);
  REQUIRE(lockstep_generator_submit(generator.at, prompt.data(), 3, &options, &text.at) == LOCKSTEP_OK);
  std::int64_t token = 0;
  Tokens came;
  lockstep_status status = LOCKSTEP_OK;
  while ((status = lockstep_generation_next(text.at, &token)) == LOCKSTEP_OK) came.push_back(token);
  CHECK(status == LOCKSTEP_END);
  CHECK(token == -1);
  CHECK(came == expected);
  CHECK(lockstep_generation_cancel(text.at) == LOCKSTEP_OK);

  // How probable each was: what the same text has in C++.
  lockstep_generate_options asks = options;
  asks.logprobs = 3;
  GenerateOptions asks_of = of;
  asks_of.logprobs = 3;
  const std::vector<TokenLogprobs> probable = generate(*same, prompt, asks_of).logprobs;
  Handle<lockstep_generation> told(&lockstep_generation_free);
  REQUIRE(lockstep_generator_submit(generator.at, prompt.data(), 3, &asks, &told.at) == LOCKSTEP_OK);
  lockstep_logprob drawn{}, top[4];
  CHECK(lockstep_generation_next_logprobs(told.at, &drawn, nullptr, 3, &count) == LOCKSTEP_INVALID_ARGUMENT);
  CHECK(lockstep_generation_next_logprobs(told.at, &drawn, top, 4, nullptr) == LOCKSTEP_INVALID_ARGUMENT);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::size_t capacity = i == 0 ? 0 : i == 1 ? 2 : 4;
    REQUIRE(lockstep_generation_next_logprobs(told.at, &drawn, capacity > 0 ? top : nullptr, capacity, &count) ==
            LOCKSTEP_OK);
    CHECK(drawn.token == expected[i]);
    CHECK(drawn.logprob == Approx(probable[i].logprob).margin(1e-4));
    CHECK(count == 3);
    for (std::size_t k = 0; k < std::min(capacity, count); ++k) {
      CHECK(top[k].token == probable[i].top[k].token);
      CHECK(top[k].logprob == Approx(probable[i].top[k].logprob).margin(1e-4));
    }
  }
  CHECK(lockstep_generation_next_logprobs(told.at, &drawn, top, 4, &count) == LOCKSTEP_END);
  CHECK((drawn.token == -1 && count == 0));
  CHECK(lockstep_generation_next_logprobs(text.at, &drawn, top, 4, &count) == LOCKSTEP_INVALID_ARGUMENT);
  CHECK_THAT(lockstep_last_error(), Contains("submitted with logprobs"));
  asks.logprobs = -2;
  lockstep_generation* refused = nullptr;
  CHECK(lockstep_generator_submit(generator.at, prompt.data(), 3, &asks, &refused) == LOCKSTEP_INVALID_ARGUMENT);

  options.max_new_tokens = 100;
  REQUIRE(lockstep_generator_submit(generator.at, prompt.data(), 3, &options, &other.at) == LOCKSTEP_OK);
  CHECK(lockstep_generation_cancel(other.at) == LOCKSTEP_OK);
  while ((status = lockstep_generation_next(other.at, &token)) == LOCKSTEP_OK) {
  }
  CHECK((status == LOCKSTEP_CANCELLED || status == LOCKSTEP_END));
  CHECK(lockstep_generator_drain(generator.at, 60'000) == LOCKSTEP_OK);
  lockstep_generation* late = nullptr;
  CHECK(lockstep_generator_submit(generator.at, prompt.data(), 3, nullptr, &late) == LOCKSTEP_REFUSED);
  std::size_t bytes = 0;
  REQUIRE(lockstep_generator_metrics(generator.at, "small", nullptr, 0, &bytes) == LOCKSTEP_OK);
  std::string metrics(bytes, ' ');
  REQUIRE(lockstep_generator_metrics(generator.at, "small", metrics.data(), bytes, &bytes) == LOCKSTEP_OK);
  CHECK_THAT(metrics, Contains("lockstep_generation_requests_total{model=\"small\",outcome=\"finished\"}"));
  lockstep_language_model* none = nullptr;
  CHECK(lockstep_language_model_load(llama().c_str(), nullptr, "f8", 0, &none) == LOCKSTEP_INVALID_ARGUMENT);
  CHECK(lockstep_language_model_load("no such folder", nullptr, nullptr, 0, &none) != LOCKSTEP_OK);
}

}  // namespace lockstep::test
