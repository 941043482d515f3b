#include "lockstep/tensor/data/data_loader.h"

#include <exception>

namespace lockstep {
namespace {

std::string where(std::int64_t index, std::int64_t batch, std::uint64_t epoch) {
  return index < 0 ? cat("collating batch ", batch, " of epoch ", epoch)
                   : cat("sample ", index, " (batch ", batch, " of epoch ", epoch, ")");
}

}  // namespace

DataError::DataError(std::int64_t of_sample, std::int64_t in_batch, std::uint64_t in_epoch, const std::string& message)
    : Error(cat("[DataLoader] ", where(of_sample, in_batch, in_epoch), ": ", message)),
      index(of_sample),
      batch(in_batch),
      epoch(in_epoch) {}

namespace detail {

ThreadContext sample_context(const ThreadContext& caller, std::uint64_t seed, std::uint64_t epoch) {
  ThreadContext context = caller;
  context.module_depth = 0;
  context.substitution = nullptr;  // the caller's scope may end before the workers
  context.training_call = 0;
  context.gradient_sink = nullptr;
  context.random_seed = RandomEngine(seed, epoch)();
  context.random_stream = 0;
  context.random_counter = 0;
  return context;
}

void check_loader(const DataLoaderOptions& options) {
  LOCKSTEP_CHECK(options.workers >= 0 && options.workers <= 1024, "[DataLoader] expected 0 to 1024 workers, got ",
                 options.workers);
  LOCKSTEP_CHECK(options.prefetch_factor >= 1 && options.prefetch_factor <= 1 << 16,
                 "[DataLoader] expected a prefetch_factor from 1 to 65536, got ", options.prefetch_factor);
  ordinal(options.device);  // throws for a device that does not exist
}

void check_indices(const std::vector<std::vector<std::int64_t>>& batches, std::int64_t count) {
  for (std::size_t i = 0; i < batches.size(); ++i) {
    LOCKSTEP_CHECK(!batches[i].empty(), "[DataLoader] expected batches with samples, got none in batch ", i);
    for (const std::int64_t index : batches[i])
      LOCKSTEP_CHECK(index >= 0 && index < count, "[DataLoader] expected an index below ", count, ", got ", index,
                     " in batch ", i);
  }
}

void fail_sample(std::int64_t index, std::int64_t batch, std::uint64_t epoch) {
  std::throw_with_nested(DataError(index, batch, epoch, describe(std::current_exception())));
}

}  // namespace detail
}  // namespace lockstep
