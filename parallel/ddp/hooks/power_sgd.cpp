#include "lockstep/parallel/ddp/hooks/power_sgd.h"

#include <algorithm>

#include "lockstep/parallel/ddp/coalesce.h"
#include "lockstep/parallel/ddp/hooks/basic_hooks.h"
#include "lockstep/parallel/ddp/hooks/orthogonalize.h"
#include "lockstep/parallel/ddp/hooks/state.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/ops/shape_ops.h"

namespace lockstep {

namespace {

constexpr const char* kError = "error.";
constexpr const char* kQ = "q.";

std::uint64_t hash_of(const std::string& text) {  // FNV-1a: the same everywhere
  std::uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

DType computed_in(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

// In place.
void average_all(GradBucket& bucket, const std::vector<Tensor>& tensors) {
  detail::coalesce(tensors, bucket.communicator().device(), [&](const Tensor& piece) {
    Tensor mean = piece * (1.0 / bucket.divisor());
    bucket.communicator().all_reduce(mean);
    return mean;
  });
}

}  // namespace

// A gradient on its way through the compression. P and Q are transposed, so that their columns lie in one piece.
struct PowerSgd::Matrix {
  Tensor gradient;  // in the bucket
  Tensor m;         // [rows, columns], with what was lost before
  Tensor p, q;      // [rank, rows], [rank, columns]
  Memory& memory;
};

PowerSgd::PowerSgd(const PowerSgdOptions& options) : options_(options) {
  LOCKSTEP_CHECK(options.rank >= 1, "[PowerSgd] expected a rank of at least 1, got ", options.rank);
  LOCKSTEP_CHECK(options.start_iteration >= 0, "[PowerSgd] expected a start_iteration of at least 0, got ",
                 options.start_iteration);
  LOCKSTEP_CHECK(options.min_compression_rate >= 0, "[PowerSgd] expected a min_compression_rate of at least 0, got ",
                 options.min_compression_rate);
  LOCKSTEP_CHECK(options.orthogonalization_epsilon >= 0,
                 "[PowerSgd] expected an orthogonalization_epsilon of at least 0, got ",
                 options.orthogonalization_epsilon);
}

CommHook PowerSgd::hook() {
  return {cat("power_sgd(rank ", options_.rank, ", from iteration ", options_.start_iteration, ", rate ",
              options_.min_compression_rate, options_.use_error_feedback ? ", error feedback" : "",
              options_.warm_start ? ", warm start" : "", ", epsilon ", options_.orthogonalization_epsilon, ", seed ",
              options_.seed, ')'),
          [this](GradBucket& bucket) { return reduce(bucket); }};
}

Work PowerSgd::reduce(GradBucket& bucket) {
  module_.check("PowerSgd", bucket);
  LOCKSTEP_CHECK(!options_.use_error_feedback || !bucket.divisor_may_fall(),
                 "[PowerSgd] expected a join that divides by the initial number of ranks, or no use_error_feedback: "
                 "with divide_by_initial_world_size = false what a rank remembers is not averaged as its gradients "
                 "were");
  if (iteration_ < options_.start_iteration || bucket.sparse()) {
    detail::average(bucket);
  } else {
    compress(bucket);
  }
  if (bucket.is_last()) ++iteration_;
  return {};
}

bool PowerSgd::worth_it(const Tensor& gradient) const {
  if (gradient.rank() < 2 || gradient.count() == 0) return false;
  const std::int64_t rows = gradient.size(0), columns = gradient.count() / rows;
  const std::int64_t rank = std::min({rows, columns, options_.rank});
  return static_cast<double>((rows + columns) * rank) * options_.min_compression_rate <
         static_cast<double>(rows * columns);
}

// The same on every rank, and whatever bucket the parameter is in.
Tensor PowerSgd::random_q(const std::string& name, std::int64_t rank, const Tensor& matrix) const {
  ThreadContext context = thread_context();
  context.random_seed = options_.seed;
  context.random_stream = hash_of(name);
  context.random_counter = static_cast<std::uint64_t>(iteration_);
  const ContextScope scope(context);
  return randn({rank, matrix.size(1)}, {.dtype = matrix.dtype(), .device = matrix.device()});
}

PowerSgd::Matrix PowerSgd::take(const GradBucket& bucket, std::size_t slot) {
  const std::string& name = bucket.parameters()[slot].name;
  const Tensor& gradient = bucket.gradients()[slot];
  const std::int64_t rows = gradient.size(0), columns = gradient.count() / rows;
  const std::int64_t rank = std::min({rows, columns, options_.rank});
  const DType dtype = computed_in(gradient.dtype());
  Memory& memory = memory_[name];
  memory.error = memory.last_error();
  memory.error_before = Tensor();
  memory.lost = bucket.lost();
  memory.slot = slot;
  const auto check = [&](const char* what, Tensor& held, const Shape& shape) {
    if (!held.defined()) return;
    LOCKSTEP_CHECK(held.shape() == shape && held.dtype() == dtype, "[PowerSgd] expected '", what, name, "' to be ",
                   dtype, shape, ", got ", held);
    held = held.to(gradient.device());
  };
  check(kError, memory.error, {rows, columns});
  check(kQ, memory.q, {rank, columns});
  Tensor m = gradient.reshape({rows, columns}).to(dtype);
  if (options_.use_error_feedback && memory.error.defined()) m = m + memory.error;
  Tensor q = options_.warm_start && memory.q.defined() ? memory.q : random_q(name, rank, m);
  return {.gradient = gradient, .m = m, .p = {}, .q = q, .memory = memory};
}

void PowerSgd::compress(GradBucket& bucket) {
  std::vector<Tensor> averaged, p, q, alive;
  std::vector<Matrix> matrices;
  for (std::size_t i = 0; i < bucket.gradients().size(); ++i) {
    const Tensor& gradient = bucket.gradients()[i];
    if (worth_it(gradient)) {
      matrices.push_back(take(bucket, i));
    } else {
      averaged.push_back(gradient);
    }
  }
  average_all(bucket, averaged);
  for (Matrix& matrix : matrices) {
    const Tensor basis = matrix.q.clone();
    detail::orthogonalize_rows(basis, options_.orthogonalization_epsilon);
    matrix.p = matmul(basis, matrix.m.t());
    p.push_back(matrix.p);
  }
  average_all(bucket, p);
  for (Matrix& matrix : matrices) {
    alive.push_back(detail::orthogonalize_rows(matrix.p, options_.orthogonalization_epsilon));
    q.push_back(matmul(matrix.p, matrix.m));
  }
  average_all(bucket, q);
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    Matrix& matrix = matrices[i];
    const Tensor result = matmul(matrix.p.t(), q[i]);
    // What is infinite or NaN goes into the gradient, where it is looked for, and not into what is remembered.
    Memory& memory = matrix.memory;
    if (options_.use_error_feedback) {
      if (memory.lost) memory.error_before = memory.error;
      const Tensor before = memory.error.defined() ? memory.error : zeros_like(result);
      memory.error = where(eq(result, result), matrix.m - result, before);  // before m changes with the gradient
    }
    if (options_.warm_start) {
      const Tensor largest = amax(abs(q[i]), {1}, true);
      memory.q = where(logical_and(alive[i], gt(largest, 0.0)), q[i] / largest, matrix.q);
    }
    Tensor place = matrix.gradient;
    place.copy_(result.reshape(place.shape()));
  }
}

// ---- state

std::int64_t PowerSgd::iteration() const { return iteration_; }

std::vector<NamedTensor> PowerSgd::state_dict() const {
  const NoGrad no_grad;
  std::vector<NamedTensor> state{{"iteration", tensor(iteration_, {.dtype = DType::i64})}};
  for (const auto& [name, memory] : memory_) {
    if (const Tensor& error = memory.last_error(); error.defined())
      state.push_back({kError + name, error.to(Device::cpu())});
    if (memory.q.defined()) state.push_back({kQ + name, memory.q.to(Device::cpu())});
  }
  return state;
}

void PowerSgd::load_state_dict(const std::vector<NamedTensor>& state) {
  const NoGrad no_grad;
  std::int64_t iteration = -1;
  std::map<std::string, Memory> memory;
  for (const NamedTensor& entry : state) {
    if (entry.name == "iteration") {
      iteration = detail::read_count("PowerSgd::load_state_dict", entry);
      continue;
    }
    const bool is_error = entry.name.starts_with(kError);
    LOCKSTEP_CHECK(is_error || entry.name.starts_with(kQ),
                   "[PowerSgd::load_state_dict] expected 'iteration', 'error.…' and 'q.…', got '", entry.name, "'");
    LOCKSTEP_CHECK(entry.tensor.defined() && entry.tensor.rank() == 2 && is_floating(entry.tensor.dtype()),
                   "[PowerSgd::load_state_dict] expected '", entry.name, "' to be a floating matrix, got ",
                   entry.tensor);
    Memory& mine = memory[entry.name.substr(std::string(is_error ? kError : kQ).size())];
    (is_error ? mine.error : mine.q) = entry.tensor.to(Device::cpu()).clone();
  }
  LOCKSTEP_CHECK(iteration >= 0, "[PowerSgd::load_state_dict] expected an 'iteration', got a state without");
  iteration_ = iteration;
  memory_ = std::move(memory);
  module_ = {};
}

}  // namespace lockstep
