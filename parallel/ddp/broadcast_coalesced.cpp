#include "lockstep/parallel/ddp/broadcast_coalesced.h"

#include <algorithm>
#include <vector>

#include "lockstep/tensor/ops/shape_ops.h"

namespace lockstep::detail {

void broadcast_coalesced(Communicator& communicator, std::span<const Tensor> tensors, int root) {
  constexpr std::size_t kPieceBytes = std::size_t{32} << 20;  // bounds the memory that is needed beside the tensors
  const NoGrad no_grad;
  std::vector<DType> dtypes;
  for (const Tensor& tensor : tensors)
    if (std::find(dtypes.begin(), dtypes.end(), tensor.dtype()) == dtypes.end()) dtypes.push_back(tensor.dtype());
  for (const DType dtype : dtypes) {
    std::vector<Tensor> piece;
    std::size_t bytes = 0;
    const auto flush = [&] {
      if (piece.size() == 1) {
        communicator.broadcast(piece[0], root);
      } else if (!piece.empty()) {
        std::vector<Tensor> flat;
        for (const Tensor& tensor : piece) flat.push_back(tensor.reshape({-1}));
        const Tensor all = cat(std::span<const Tensor>(flat), 0);
        communicator.broadcast(all, root);
        std::int64_t offset = 0;
        for (Tensor& tensor : flat) {
          if (communicator.rank() != root) tensor.copy_(all.narrow(0, offset, tensor.count()));
          offset += tensor.count();
        }
      }
      piece.clear();
      bytes = 0;
    };
    for (const Tensor& tensor : tensors) {
      if (tensor.dtype() != dtype || tensor.count() == 0) continue;
      piece.push_back(tensor.detach());
      if ((bytes += tensor.bytes()) >= kPieceBytes) flush();
    }
    flush();
  }
}

}  // namespace lockstep::detail
