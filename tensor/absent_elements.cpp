#include "lockstep/tensor/absent_elements.h"

#include "lockstep/kernels/layout.h"

namespace lockstep::detail {

Tensor absent(const Shape& shape, DType dtype, Device device) {
  const std::size_t bytes = static_cast<std::size_t>(element_count(shape)) * size_of(dtype);
  return Tensor::over(Storage::external(device, nullptr, bytes, {}), dtype, shape, contiguous_strides(shape), 0);
}

const Storage*& absent_read() {
  static thread_local const Storage* storage = nullptr;
  return storage;
}

ReluOfPrepared& relu_of_prepared() {
  static thread_local ReluOfPrepared hook = nullptr;
  return hook;
}

void fail_absent(const TensorImpl& impl) {
  if (impl.storage->borrows())
    fail<Error>("[tensor] expected elements, got ", impl.dtype, impl.shape,
                " whose memory is given back: a parameter of a FullyShardedDataParallel outside of its unit's forward "
                "and backward");
  absent_read() = impl.storage.get();
  fail<Error>(
      "[prepare] expected elements, got the result of a layer that a prepared module computes with what is "
      "behind it, ",
      impl.dtype, impl.shape);
}

}  // namespace lockstep::detail
