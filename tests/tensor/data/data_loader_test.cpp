#include "lockstep/tensor/data/data_loader.h"

#include <cstring>
#include <set>

#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/threads.h"

using namespace lockstep;
using support::device_at;

namespace {

// Sample i: three numbers that begin with i, noise, and i.
struct Noisy {
  std::int64_t count = 23;
  std::int64_t size() const { return count; }
  std::tuple<Tensor, Tensor, std::int64_t> get(std::int64_t index) const {
    const Tensor row = arange(static_cast<double>(index), static_cast<double>(index) + 2.5, 1.0);
    return {row, randn({4}) + RandomEngine::from_thread().uniform(), index};
  }
};

std::string content(const Tensor& tensor) { return {static_cast<const char*>(tensor.data()), tensor.bytes()}; }

template <class Loader>
std::vector<std::string> epoch_of(Loader& loader) {
  std::vector<std::string> batches;
  for (auto& [rows, noise, indices] : loader) {
    REQUIRE(rows.shape() == Shape{indices.count(), 3});
    REQUIRE(rows.select(1, 0).to(DType::i64).template to_vector<std::int64_t>() ==
            indices.template to_vector<std::int64_t>());
    batches.push_back(content(indices) + content(rows) + content(noise));
  }
  return batches;
}

// Samples that a kernel is divided for.
struct Large {
  std::int64_t size() const { return 6; }
  std::tuple<Tensor> get(std::int64_t) const { return {zeros({400, 500}) + 1.0}; }
};

}  // namespace

static_assert(std::input_iterator<DataLoader<Noisy>::Iterator>);
static_assert(std::same_as<DataLoader<Noisy>::Batch, std::tuple<Tensor, Tensor, Tensor>>);

TEST_CASE("data loader: workers compute alone") {
  const support::Threads set(3);
  const auto divided = [](int workers) {
    const std::uint32_t before = detail::divided_calls();
    DataLoader loader(Large{}, {.batch_size = 2, .workers = workers, .device = Device::cpu()});
    int batches = 0;
    for (const auto& [batch] : loader) batches += batch.shape() == Shape{2, 400, 500};
    CHECK(batches == 3);
    return detail::divided_calls() - before;
  };
  CHECK(divided(0) > 0);
  CHECK(divided(2) == 0);
}

TEST_CASE("data loader: the same batches, bit for bit, for every number of workers") {
  for (const bool shuffle : {false, true})
    for (const bool drop_last : {false, true}) {
      DataLoader alone(Noisy{}, {.batch_size = 4, .shuffle = shuffle, .drop_last = drop_last, .seed = 9});
      const std::vector<std::string> first = epoch_of(alone), second = epoch_of(alone);
      CHECK(first.size() == (drop_last ? 5u : 6u));
      CHECK(alone.size() == static_cast<std::int64_t>(first.size()));
      CHECK(first != second);  // the noise differs even where the order does not
      for (int workers = 1; workers <= 4; ++workers)
        for (const int prefetch : {1, 3}) {
          INFO("workers " << workers << ", prefetch " << prefetch);
          DataLoader loader(Noisy{}, {.batch_size = 4,
                                      .shuffle = shuffle,
                                      .drop_last = drop_last,
                                      .seed = 9,
                                      .workers = workers,
                                      .prefetch_factor = prefetch});
          CHECK(epoch_of(loader) == first);
          CHECK(loader.epoch() == 1);
          CHECK(epoch_of(loader) == second);
          loader.set_epoch(0);
          CHECK(epoch_of(loader) == first);
        }
    }
}

TEST_CASE("data loader: the seed decides, the thread's random numbers do not and stay as they are") {
  manual_seed(1);
  DataLoader a(Noisy{}, {.batch_size = 5, .shuffle = true, .seed = 1});
  const std::vector<std::string> batches = epoch_of(a);
  const float after = rand({1}).item<float>();
  manual_seed(1);
  CHECK(rand({1}).item<float>() == after);
  DataLoader b(Noisy{}, {.batch_size = 5, .shuffle = true, .seed = 1, .workers = 2});
  CHECK(epoch_of(b) == batches);
  DataLoader other(Noisy{}, {.batch_size = 5, .shuffle = true, .seed = 2});
  CHECK(epoch_of(other) != batches);
}

TEST_CASE("data loader: nothing, one sample, and batches larger than the dataset") {
  for (int workers : {0, 2}) {
    DataLoader none(Noisy{0}, {.batch_size = 4, .workers = workers});
    CHECK(none.size() == 0);
    CHECK(epoch_of(none).empty());
    DataLoader one(Noisy{1}, {.batch_size = 4, .workers = workers});
    CHECK(epoch_of(one).size() == 1);
    DataLoader dropped(Noisy{3}, {.batch_size = 4, .drop_last = true, .workers = workers});
    CHECK(epoch_of(dropped).empty());
  }
}

TEST_CASE("data loader: samplers of indices and of batches") {
  const auto order = [](auto loader) {
    std::vector<std::vector<std::int64_t>> seen;
    for (auto& batch : loader) seen.push_back(std::get<2>(batch).template to_vector<std::int64_t>());
    return seen;
  };
  using Order = std::vector<std::vector<std::int64_t>>;
  CHECK(order(DataLoader(Noisy{}, SubsetSampler({5, 5, 1}), {.batch_size = 2, .workers = 2})) == Order{{5, 5}, {1}});
  struct Growing {
    std::int64_t size() const { return 3; }
    std::vector<std::vector<std::int64_t>> batches(std::uint64_t epoch) const {
      return {{0}, {1, 2}, {3, 4, static_cast<std::int64_t>(epoch)}};
    }
  };
  DataLoader growing(Noisy{}, Growing{}, {.workers = 3});
  CHECK(order(std::move(growing)) == Order{{0}, {1, 2}, {3, 4, 0}});
  CHECK_THROWS_AS(order(DataLoader(Noisy{}, SubsetSampler({0, 23}))), InvalidArgument);
  CHECK_THROWS_AS(order(DataLoader(Noisy{}, SubsetSampler({-1}))), InvalidArgument);
  CHECK_THROWS_AS(DataLoader(Noisy{}, {.batch_size = 0}), InvalidArgument);
  CHECK_THROWS_AS(DataLoader(Noisy{}, {.workers = -1}), InvalidArgument);
  CHECK_THROWS_AS(DataLoader(Noisy{}, {.prefetch_factor = 0}), InvalidArgument);
  CHECK_THROWS_AS(DataLoader(Noisy{}, {.device = device_at(99)}), InvalidArgument);
}

TEST_CASE("data loader: a collate function of one's own, with random numbers of its own") {
  const auto sum = [](const std::vector<std::tuple<Tensor, Tensor, std::int64_t>>& samples) {
    double total = RandomEngine::from_thread().uniform() + 10 * static_cast<double>(samples.size());
    return std::make_unique<double>(total);  // need not be copyable, nor hold tensors
  };
  std::vector<double> expected;
  for (int workers = 0; workers <= 3; ++workers) {
    DataLoader loader(Noisy{}, {.batch_size = 4, .workers = workers}, sum);
    std::vector<double> seen;
    for (auto& batch : loader) seen.push_back(*batch);
    CHECK(std::set(seen.begin(), seen.end()).size() == 6);
    if (workers == 0) expected = seen;
    CHECK(seen == expected);
  }
}

TEST_CASE("data loader: the workers have the caller's grad mode and default dtype") {
  struct Asking {
    std::int64_t size() const { return 4; }
    std::tuple<bool, bool, Tensor> get(std::int64_t) const {
      return {GradMode::enabled(), InferenceMode::enabled(), zeros({1})};
    }
  };
  for (int workers : {0, 2}) {
    DataLoader loader(Asking{}, {.batch_size = 2, .workers = workers});
    for (auto& [grad, inference, zero] : loader) {
      CHECK(grad.to_vector<bool>() == std::vector<bool>{true, true});
      CHECK(zero.dtype() == DType::f32);
    }
    const NoGrad no_grad;
    const InferenceMode inference_mode;
    const DefaultDType dtype(DType::f64);
    for (auto& [grad, inference, zero] : loader) {
      CHECK(grad.to_vector<bool>() == std::vector<bool>{false, false});
      CHECK(inference.to_vector<bool>() == std::vector<bool>{true, true});
      CHECK(zero.dtype() == DType::f64);
    }
  }
}

TEST_CASE("data loader: a tensor dataset") {
  const Tensor x = arange(12).reshape({6, 2}), y = arange(6);
  DataLoader loader(TensorDataset(x, y), {.batch_size = 4, .workers = 2});
  std::vector<std::int64_t> seen;
  for (auto& [rows, labels] : loader) {
    CHECK(rows.shape() == Shape{labels.count(), 2});
    for (const std::int64_t value : rows.to_vector<std::int64_t>()) seen.push_back(value);
  }
  CHECK(seen == x.to_vector<std::int64_t>());
  CHECK_THROWS_AS(TensorDataset(x, arange(5)), InvalidArgument);
  CHECK_THROWS_AS(TensorDataset(tensor(1)), InvalidArgument);
}

TEST_CASE("data loader: batches arrive on a device, for the stream that is current there") {
  for (int workers : {0, 1, 3}) {
    DataLoader here(Noisy{}, {.batch_size = 4, .shuffle = true});
    const std::vector<std::string> wanted = epoch_of(here);
    DataLoader loader(Noisy{}, {.batch_size = 4, .shuffle = true, .workers = workers, .device = device_at(2)});
    Stream stream(device_at(2));
    const StreamScope scope(stream);
    for (int repeat = 0; repeat < 3; ++repeat) {
      loader.set_epoch(0);
      std::size_t at = 0;
      std::vector<Tensor> sums;
      for (auto& [rows, noise, indices] : loader) {
        CHECK(rows.device() == device_at(2));
        // Used by work that is enqueued now and runs when the batch is long gone.
        sums.push_back(rows.sum());
        const Tensor back[] = {indices.to(Device::cpu()), rows.to(Device::cpu()), noise.to(Device::cpu())};
        CHECK(content(back[0]) + content(back[1]) + content(back[2]) == wanted.at(at++));
      }
      CHECK(at == wanted.size());
      double total = 0;
      for (const Tensor& sum : sums) total += sum.item<double>();
      CHECK(total == 3 * (23 * 22 / 2) + 3 * 23);
    }
  }
}

TEST_CASE("data loader: images in channels_last arrive on a device as they are") {
  const Tensor images = from_data(std::vector<double>(4 * 3 * 5 * 5, 1), {4, 3, 5, 5});
  const TensorDataset data(images + arange(25).reshape({5, 5}));
  const auto collate = [](const std::vector<std::array<Tensor, 1>>& samples) {
    std::vector<Tensor> all;
    for (const auto& [image] : samples) all.push_back(image);
    return stack(all).to(MemoryFormat::channels_last);
  };
  DataLoader loader(data, {.batch_size = 2, .device = device_at(1)}, collate);
  for (auto& batch : loader) {
    CHECK(batch.memory_format() == MemoryFormat::channels_last);
    CHECK(equal(batch.to(Device::cpu()), (images + arange(25).reshape({5, 5})).narrow(0, 0, 2)));
  }
}

TEST_CASE("data loader: a device's batches that nobody waits for do not mix") {
  // The memory of a batch goes to a later one while work on the first may still be under way.
  DataLoader loader(Noisy{200}, {.batch_size = 2, .workers = 2, .device = device_at(1)});
  std::vector<Tensor> sums;
  for (auto& [rows, noise, indices] : loader) sums.push_back(rows.sum() - indices.sum().to(DType::f32));
  double total = 0;
  for (const Tensor& sum : sums) total += sum.item<double>();
  CHECK(total == 2 * (200 * 199 / 2) + 3 * 200);
}
