// forward is overloaded or a template: name the signature that is meant, as in DataParallel<Net, Tensor(Tensor)>
// DataParallel<lockstep::GRU, void>
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/tensor/nn/rnn.h"

using namespace lockstep;

int main() {
  const DataParallel<GRU, PackedGruResult(PackedSequence)> net(GRU(2, 3));  // says which
  DataParallel wrong(GRU(2, 3));
}
