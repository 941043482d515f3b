#include "parallel/ddp/mesh_scenarios.h"

#include "lockstep/parallel/comm/mesh/device_mesh.h"

namespace parallel_test {
namespace {

constexpr int kSteps = 5;

struct Layer : Module<Layer> {
  Affine net;
  // Differs by `scale`, so that ranks do not begin alike.
  Layer(int in, int out, std::uint64_t seed, double scale) : net(in, out, seed) {
    net.weight.assign(net.weight.tensor().detach() * scale);
  }
  Tensor forward(const Tensor& x) const { return tanh(net(x)); }
  void members(Members& m) override { m("net", net); }
};

Layer column_layer(int rank) { return {3, 4, 1, 1 + 0.1 * rank}; }
Layer row_layer(int rank) { return {4, 3, 2, 1 + 0.1 * rank}; }
Layer common_layer(int rank) { return {3, 2, 3, 1 + 0.1 * rank}; }

Tensor rows_of(int step, int rank, Device device) { return share(batch(step, kMeshRanks, DType::f64, device), rank); }

Doubles joined(std::initializer_list<Doubles> parts) {
  Doubles all;
  for (const Doubles& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace

Doubles train_on_mesh(Communicator& world) {
  const DeviceMesh mesh(world, {2, 2}, {"column", "row"});  // along a column the first coordinate changes
  const DeviceMesh everybody = mesh.flatten();
  const int rank = world.rank();
  DistributedDataParallel<Layer> column(column_layer(rank), mesh.group("column"), small_buckets());
  DistributedDataParallel<Layer> row(row_layer(rank), mesh.group("row"), small_buckets());
  DistributedDataParallel<Layer> common(common_layer(rank), everybody.group(), small_buckets());
  SGD optimizers[] = {SGD(column.parameters(), {.lr = 0.1}), SGD(row.parameters(), {.lr = 0.1}),
                      SGD(common.parameters(), {.lr = 0.1})};
  for (int step = 0; step < kSteps; ++step) {
    for (SGD& optimizer : optimizers) optimizer.zero_grad();
    loss_of(common(row(column(rows_of(step, rank, world.device()))))).backward();
    for (SGD& optimizer : optimizers) optimizer.step();
  }
  return joined({all_parameters(column.module()), all_parameters(row.module()), all_parameters(common.module())});
}

std::vector<Doubles> train_mesh_alone() {
  const Device device = accelerators()[0];
  // Rank r is in column r % 2 and row r / 2. A group takes over its first rank's parameters.
  std::vector<Layer> columns{column_layer(0), column_layer(1)}, rows{row_layer(0), row_layer(2)};
  Layer common = common_layer(0);
  std::vector<SGD> optimizers;
  for (Layer* layer : {&columns[0], &columns[1], &rows[0], &rows[1], &common}) {
    layer->to(device);
    optimizers.emplace_back(layer->parameters(), SgdOptions{.lr = 0.1});
  }
  for (int step = 0; step < kSteps; ++step) {
    for (SGD& optimizer : optimizers) optimizer.zero_grad();
    for (int rank = 0; rank < kMeshRanks; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      // A column, and a row, has two ranks, whose gradients are averaged; all have four.
      loss_of(common(rows[r / 2](columns[r % 2](rows_of(step, rank, device))))).backward();
    }
    for (Layer* layer : {&columns[0], &columns[1], &rows[0], &rows[1], &common})
      for (const auto& parameter : layer->parameters())
        parameter.set_grad(parameter.grad() * (layer == &common ? 0.25 : 0.5));
    for (SGD& optimizer : optimizers) optimizer.step();
  }
  std::vector<Doubles> ranks;
  for (std::size_t r = 0; r < kMeshRanks; ++r)
    ranks.push_back(joined({all_parameters(columns[r % 2]), all_parameters(rows[r / 2]), all_parameters(common)}));
  return ranks;
}

}  // namespace parallel_test
