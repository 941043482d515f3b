#include "lockstep/parallel/ddp/hooks/state.h"

#include "lockstep/runtime/error.h"

namespace lockstep::detail {

std::int64_t read_count(const char* op, const NamedTensor& entry) {
  const Tensor& tensor = entry.tensor;
  LOCKSTEP_CHECK(tensor.defined() && tensor.count() == 1 && tensor.dtype() == DType::i64, "[", op, "] expected '",
                 entry.name, "' of i64[], got ", tensor);
  const auto count = tensor.item<std::int64_t>();
  LOCKSTEP_CHECK(count >= 0, "[", op, "] expected '", entry.name, "' to be at least 0, got ", count);
  return count;
}

std::int64_t read_only_count(const char* op, const char* name, const std::vector<NamedTensor>& state) {
  LOCKSTEP_CHECK(state.size() == 1 && state[0].name == name, "[", op, "] expected a state of '", name, "' alone, got ",
                 state.size(), " entries", state.empty() ? "" : cat(", the first of them '", state[0].name, "'"));
  return read_count(op, state[0]);
}

}  // namespace lockstep::detail
