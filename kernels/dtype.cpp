#include "lockstep/kernels/dtype.h"

namespace lockstep {

std::string to_string(DType dtype) {
  constexpr const char* kNames[kDTypeCount] = {"f32", "f64", "f16", "bf16", "i32", "i64", "u8", "bool", "i8"};
  const auto index = static_cast<int>(dtype);
  return index < kDTypeCount ? kNames[index] : "invalid dtype";
}

}  // namespace lockstep
