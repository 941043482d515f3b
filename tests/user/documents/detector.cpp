#include <vector>

#include "lockstep/parallel/openmmlab/openmmlab.h"

// the block

ModelOutput<Tensor, std::vector<DataSample>> Detector::forward(const DataContainer<Tensor>& img,
                                                               const DataContainer<Tensor>&,
                                                               const DataContainer<ImageMeta>&, Mode mode) const {
  const Tensor found = head(img.stacked());
  if (mode == Mode::loss) return Losses{{"loss_bbox", mean(square(found))}};
  return found;
}

void run() { train({collated(randn({3, 5, 5}), randn({2, 4}), ImageMeta{})}); }
