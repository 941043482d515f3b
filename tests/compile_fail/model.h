// What a program does with a model, and what the compiler is to say in one line where the model does not fit.
#pragma once

#include "lockstep/parallel/openmmlab/openmmlab.h"

using namespace lockstep;

template <class Model>
void train() {
  Model model;
  OptimWrapper optim(SGD(model.parameters(), {.lr = 0.1}));
  const std::tuple batch(zeros({2, 3}), zeros({2, 2}));
  model.train_step(batch, optim);
  model.val_step(batch);
  auto value = run_forward(model, std::vector<Tensor>{zeros({2, 3}), zeros({2, 2})}, Mode::loss);
  (void)value;
}
template <class Model>
void train_by_ranks() {
  run_ranks(2, [](Communicator& communicator) {
    MMDistributedDataParallel model(Model(), communicator);
    OptimWrapper optim(SGD(model.parameters(), {.lr = 0.1}));
    model.train_step(std::tuple(zeros({2, 3}), zeros({2, 2})), optim);
  });
}
template <class Model>
void run() {
  DataLoader loader(TensorDataset(zeros({4, 3}), zeros({4, 2})), {.batch_size = 2});
  Model model;
  OptimWrapper optim(SGD(model.parameters(), {.lr = 0.1}));
  Runner runner(model, optim);
  runner.train(loader);
}
