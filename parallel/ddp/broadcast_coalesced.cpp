#include "lockstep/parallel/ddp/broadcast_coalesced.h"

#include "lockstep/parallel/ddp/coalesce.h"

namespace lockstep::detail {

void broadcast_coalesced(Communicator& communicator, std::span<const Tensor> tensors, int root) {
  coalesce(tensors, communicator.device(), [&](const Tensor& piece) {
    communicator.broadcast(piece, root);
    return communicator.rank() == root ? Tensor() : piece;
  });
}

}  // namespace lockstep::detail
