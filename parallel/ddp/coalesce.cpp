#include "lockstep/parallel/ddp/coalesce.h"

#include <algorithm>
#include <vector>

#include "lockstep/tensor/ops/shape_ops.h"

namespace lockstep::detail {

namespace {

void communicate_piece(std::span<Tensor> tensors, Device device,
                       const std::function<Tensor(const Tensor& piece)>& communicate) {
  if (tensors.empty()) return;
  std::vector<Tensor> there;
  for (const Tensor& tensor : tensors) there.push_back(tensor.reshape({-1}).to(device));
  const Tensor result = communicate(there.size() == 1 ? there[0] : cat(std::span<const Tensor>(there), 0));
  if (!result.defined() || result.storage().get() == tensors[0].storage().get()) return;
  std::int64_t offset = 0;
  for (Tensor& tensor : tensors) {
    tensor.copy_(result.narrow(0, offset, tensor.count()).reshape(tensor.shape()));
    offset += tensor.count();
  }
}

}  // namespace

void coalesce(std::span<const Tensor> tensors, Device device,
              const std::function<Tensor(const Tensor& piece)>& communicate) {
  constexpr std::size_t kPieceBytes = std::size_t{32} << 20;
  const NoGrad no_grad;
  std::vector<DType> dtypes;
  for (const Tensor& tensor : tensors)
    if (std::find(dtypes.begin(), dtypes.end(), tensor.dtype()) == dtypes.end()) dtypes.push_back(tensor.dtype());
  for (const DType dtype : dtypes) {
    std::vector<Tensor> piece;
    std::size_t bytes = 0;
    for (const Tensor& tensor : tensors) {
      if (tensor.dtype() != dtype || tensor.count() == 0) continue;
      piece.push_back(tensor.detach());
      if ((bytes += tensor.bytes()) < kPieceBytes) continue;
      communicate_piece(piece, device, communicate);
      piece.clear();
      bytes = 0;
    }
    communicate_piece(piece, device, communicate);
  }
}

}  // namespace lockstep::detail
