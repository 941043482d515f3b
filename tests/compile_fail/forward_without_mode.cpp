// expected a model with forward(fields of the data..., Mode) const, got no Mode
#include "model.h"

struct Model : BaseModel<Model> {
  Linear head{3, 2};
  Losses forward(const Tensor& x, const Tensor& y) const { return {{"loss", mse_loss(head(x), y)}}; }
  void members(Members& m) override { m("head", head); }
};

int main() { train<Model>(), train_by_ranks<Model>(), run<Model>(); }
