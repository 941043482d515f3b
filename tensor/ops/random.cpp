#include "lockstep/tensor/ops/random.h"

#include <cstring>
#include <limits>

#include "lockstep/runtime/mix.h"
#include "lockstep/runtime/stream/capture.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

Tensor drawn(const char* op, RandomKind kind, const Shape& shape, const TensorOptions& options, DType dtype, double a,
             double b = 0) {
  LOCKSTEP_CHECK(kind == RandomKind::integer || is_floating(dtype), "[", op, "] expected a floating dtype, got ",
                 dtype);
  Tensor tensor = detail::fresh(shape, dtype, options.device);
  detail::draw(kind, tensor, a, b);
  if (options.requires_grad) tensor.set_requires_grad();
  return tensor;
}

// How far a capture has counted.
class Draws final : public detail::Replayed {
 public:
  void captured() noexcept override {
    ThreadContext& context = thread_context();
    counted_ = continues(context) ? context.random_counter - begin_.random_counter : 0;
    context.random_seed = begin_.random_seed;
    context.random_stream = begin_.random_stream;
    context.random_counter = begin_.random_counter;
  }
  void replayed(const Stream&) noexcept override { thread_context().random_counter += counted_; }

  // Whether what is drawn next is drawn in another place by the next replay.
  bool continues(const ThreadContext& context) const {
    return context.random_seed == begin_.random_seed && context.random_stream == begin_.random_stream &&
           context.random_counter >= begin_.random_counter;
  }
  std::uint64_t begin() const { return begin_.random_counter; }

 private:
  const ThreadContext begin_ = thread_context();
  std::uint64_t counted_ = 0;
};

class Draw final : public detail::Replayed {
 public:
  explicit Draw(std::uint64_t number) : number_(number) {}
  void write(std::byte* to) override {
    const ThreadContext& context = thread_context();
    const std::uint64_t words[] = {
        context.random_seed, detail::mix(detail::mix(context.random_stream, 0) + context.random_counter + number_, 0)};
    std::memcpy(to, words, sizeof words);
  }

 private:
  const std::uint64_t number_;
};

// Null: as elsewhere.
const std::uint64_t* place_of_draw(detail::Capture& capture) {
  if (!capture.draws) {
    auto made = std::make_unique<Draws>();
    Draws* const draws = made.get();
    (void)capture.add(std::move(made), 0);
    capture.draws = draws;
  }
  auto& draws = static_cast<Draws&>(*capture.draws);
  ThreadContext& context = thread_context();
  if (!draws.continues(context)) return nullptr;
  const std::uint64_t number = context.random_counter++ - draws.begin();
  return static_cast<const std::uint64_t*>(capture.add(std::make_unique<Draw>(number), 2 * sizeof(std::uint64_t)));
}

}  // namespace

namespace detail {

RandomState next_random(Device device) {
  if (current_capture && current_capture->device() == device) [[unlikely]]
    if (const std::uint64_t* const place = place_of_draw(*current_capture)) return {0, 0, place};
  ThreadContext& context = thread_context();
  // Within a stream no two counters meet: adding and mixing are bijections.
  return {context.random_seed, mix(mix(context.random_stream, 0) + context.random_counter++, 0)};
}

void draw(RandomKind kind, const Tensor& tensor, double a, double b) {
  const RandomState state = next_random(tensor.device());
  if (tensor.count() == 0) return;
  launch(tensor.device(), RandomArgs{kind, tensor.out(), state.key, state.stream, a, b, state.replayed});
}

}  // namespace detail

Tensor rand(const Shape& shape, const TensorOptions& options) {
  return drawn("rand", RandomKind::uniform, shape, options, options.dtype.value_or(DefaultDType::get()), 0, 1);
}
Tensor randn(const Shape& shape, const TensorOptions& options) {
  return drawn("randn", RandomKind::normal, shape, options, options.dtype.value_or(DefaultDType::get()), 0, 1);
}
Tensor bernoulli(double p, const Shape& shape, const TensorOptions& options) {
  LOCKSTEP_CHECK(p >= 0 && p <= 1, "[bernoulli] expected a probability, got ", p);
  return drawn("bernoulli", RandomKind::bernoulli, shape, options, options.dtype.value_or(DefaultDType::get()), p);
}
Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, const TensorOptions& options) {
  LOCKSTEP_CHECK(low < high, "[randint] expected low < high, got ", low, " and ", high);
  return drawn("randint", RandomKind::integer, shape, options, options.dtype.value_or(DType::i64),
               static_cast<double>(low), static_cast<double>(high));
}
Tensor randperm(std::int64_t count, Device device) {
  LOCKSTEP_CHECK(count >= 0, "[randperm] expected a count of at least 0, got ", count);
  return argsort(rand({count}, {.dtype = DType::f64, .device = device}));
}

Tensor multinomial(const Tensor& weights, std::int64_t count, bool replacement) {
  detail::check_floating("multinomial", weights);
  LOCKSTEP_CHECK(weights.rank() == 1 || weights.rank() == 2,
                 "[multinomial] expected weights [classes] or [rows, classes], got ", weights);
  LOCKSTEP_CHECK(count > 0 && weights.size(-1) > 0 && (replacement || count <= weights.size(-1)),
                 "[multinomial] expected a count of at least 1", replacement ? "" : " and at most the classes",
                 ", got ", count, " for ", weights);
  NoGrad no_grad;
  // A weight over an exponentially distributed number is the largest with the wanted probability.
  Tensor chances = weights.to(DType::f64);
  if (replacement) {
    Shape shape = chances.shape();
    shape.insert(chances.rank() - 1, count);
    chances = chances.unsqueeze(-2).expand(shape);
  }
  const TensorOptions options{.dtype = DType::f64, .device = weights.device()};
  const Tensor waits = clamp(-log1p(-rand(chances.shape(), options)), std::numeric_limits<double>::min());
  return replacement ? argmax(chances / waits, -1) : topk(chances / waits, count, -1).indices;
}

Tensor rand_like(const Tensor& like) { return rand(like.shape(), {.dtype = like.dtype(), .device = like.device()}); }
Tensor randn_like(const Tensor& like) { return randn(like.shape(), {.dtype = like.dtype(), .device = like.device()}); }

}  // namespace lockstep
