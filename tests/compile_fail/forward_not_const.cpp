// expected a model with forward(fields of the data..., Mode) const, got one not const
#include "model.h"

struct Model : BaseModel<Model> {
  Linear head{3, 2};
  ModelOutput<> forward(const Tensor& x, const Tensor& y, Mode) { return Losses{{"loss", mse_loss(head(x), y)}}; }
  void members(Members& m) override { m("head", head); }
};

int main() { train<Model>(), train_by_ranks<Model>(), run<Model>(); }
