#include "lockstep/tensor/tensor.h"

#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "lockstep/kernels/api.h"
#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/record/recorder.h"
#include "lockstep/tensor/absent_elements.h"
#include "lockstep/tensor/captured_storages.h"

namespace lockstep {

void TensorImpl::destroy(TensorImpl* impl) noexcept { delete impl; }

void Tensor::fail_undefined() { throw InvalidArgument("[tensor] expected a defined tensor, got an undefined one"); }

std::int64_t Tensor::size(std::int64_t dim) const { return shape()[normalize_dim("size", dim, rank())]; }

std::string Tensor::describe() const {
  if (!defined()) return "undefined";
  return cat(dtype(), shape(), " on ", device());
}

void Tensor::check_dtype(DType wanted) const {
  detail::check_present(impl());
  LOCKSTEP_CHECK(dtype() == wanted, "[data] expected a tensor of ", wanted, ", got ", describe());
}

Tensor Tensor::over(Ref<Storage> storage, DType dtype, const Shape& shape, const Strides& strides,
                    std::int64_t offset) {
  Ref<TensorImpl> impl(new TensorImpl);
  impl->count = element_count(shape);
  impl->storage = std::move(storage);
  impl->offset = offset;
  impl->shape = shape;
  impl->strides = strides;
  impl->dtype = dtype;
  impl->contiguous = is_contiguous(shape, strides);
  return Tensor(std::move(impl));
}

View Tensor::view() const {
  if (!defined()) return {};
  const TensorImpl& impl = *impl_;
  detail::check_present(impl);
  if (detail::current_capture) [[unlikely]]
    detail::note_use(impl.storage, false);
  return View{raw_data(), impl.shape, impl.strides, impl.dtype, impl.storage->device(), true};
}

View Tensor::writable_view() const {
  if (impl_) impl_->storage->before_write();
  if (impl_ && detail::current_capture) [[unlikely]]
    detail::note_use(impl_->storage, true);
  return view();
}

void Tensor::set_storage(Ref<Storage> storage, std::int64_t offset) const {
  impl().storage = std::move(storage);
  impl_->offset = offset;
}

Tensor Tensor::detach() const {
  const TensorImpl& mine = impl();
  Ref<TensorImpl> copy(new TensorImpl);
  copy->storage = mine.storage;
  copy->offset = mine.offset;
  copy->count = mine.count;
  copy->shape = mine.shape;
  copy->strides = mine.strides;
  copy->dtype = mine.dtype;
  copy->contiguous = mine.contiguous;
  return Tensor(std::move(copy));
}

namespace {
// The elements, contiguous, in cpu memory, when this returns.
Tensor fetch(const Tensor& tensor) {
  NoGrad no_grad;
  return tensor.detach().to(Device::cpu()).contiguous();
}
template <class T>
std::vector<T> convert(const Tensor& tensor) {
  const Tensor host = fetch(tensor);
  std::vector<T> values(static_cast<std::size_t>(host.count()));
  dispatch(host.dtype(), [&]<class S>(Type<S>) {
    const S* data = host.data<S>();
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(data[i]);
  });
  return values;
}
// Whether a number has a place in the integers T, as far as it is whole.
template <class T, class S>
bool fits(S x) {
  if constexpr (std::is_same_v<S, bool>) {
    return true;
  } else if constexpr (std::is_integral_v<S>) {
    return std::in_range<T>(x);
  } else {
    const double whole = std::trunc(static_cast<double>(x));
    return whole >= static_cast<double>(std::numeric_limits<T>::lowest()) &&
           whole < std::ldexp(1.0, std::numeric_limits<T>::digits);  // NaN is nowhere
  }
}
}  // namespace

template <class T>
T Tensor::item() const {
  LOCKSTEP_CHECK(count() == 1, "[item] expected a tensor with one element, got ", describe());
  const Tensor host = fetch(*this);
  T value{};
  dispatch(host.dtype(), [&]<class S>(Type<S>) {
    const S element = *host.data<S>();
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
      LOCKSTEP_CHECK(fits<T>(element), "[item] expected a value of ", describe(), " from ",
                     +std::numeric_limits<T>::lowest(), " to ", +std::numeric_limits<T>::max(), ", got ",
                     static_cast<double>(element));
    value = static_cast<T>(element);
  });
  if (detail::Recorder* const recorder = detail::Recorder::active(); recorder && device().type() == DeviceType::host)
    recorder->item(size_of(dtype()));
  return value;
}
template <class T>
std::vector<T> Tensor::to_vector() const {
  return convert<T>(*this);
}
#define LOCKSTEP_INSTANTIATE(T)                    \
  template LOCKSTEP_API T Tensor::item<T>() const; \
  template LOCKSTEP_API std::vector<T> Tensor::to_vector<T>() const;
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
LOCKSTEP_INSTANTIATE(int)
LOCKSTEP_INSTANTIATE(std::int64_t)
LOCKSTEP_INSTANTIATE(std::uint8_t)
LOCKSTEP_INSTANTIATE(bool)
#undef LOCKSTEP_INSTANTIATE

bool Tensor::is_leaf() const { return !impl().edge.node || impl_->edge.node->is_leaf(); }

}  // namespace lockstep
