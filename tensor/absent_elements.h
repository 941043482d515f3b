// Tensors without elements: what a layer gives back in a call of a prepared module (nn/prepare.h) when what is behind
// it computes both. Whoever else asks for the elements gets an error, by which the call knows that it must not do so.
// Private to the library.
#pragma once

#include "lockstep/tensor/tensor.h"

namespace lockstep::detail {

// Shape, dtype and device, but no memory.
Tensor absent(const Shape& shape, DType dtype, Device device);
inline bool is_absent(const TensorImpl& impl) { return impl.count > 0 && impl.storage->data() == nullptr; }
inline bool is_absent(const Tensor& tensor) { return tensor.defined() && is_absent(*tensor.identity()); }

// Throws Error, and remembers the storage for absent_read(), when the elements are absent.
[[noreturn]] void fail_absent(const TensorImpl& impl);
inline void check_present(const TensorImpl& impl) {
  if (is_absent(impl)) [[unlikely]]
    fail_absent(impl);
}

// What this thread has last asked for in vain; null after a change to null. It may be gone: only to be compared.
const Storage*& absent_read();

// Of this thread, in a call of a prepared module; null elsewhere. Sees the operand of each relu, and gives its result,
// or an undefined tensor: then relu computes as ever.
using ReluOfPrepared = Tensor (*)(const Tensor& x);
ReluOfPrepared& relu_of_prepared();

}  // namespace lockstep::detail
