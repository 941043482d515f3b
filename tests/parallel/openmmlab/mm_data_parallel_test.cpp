// MMDataParallel: batches of data containers, and models that make their own steps.
#include "lockstep/parallel/openmmlab/mm_data_parallel.h"

#include <memory>

#include "lockstep/parallel/openmmlab/data/data_sample.h"
#include "lockstep/tensor/data/data_loader.h"
#include "lockstep/tensor/optim/sgd.h"
#include "parallel/support.h"

using namespace parallel_test;

namespace {

struct StepSample {
  DataContainer<Tensor> image;
  DataContainer<InstanceData> truth;
  DataContainer<ImageMeta> meta;
  void fields(auto& f) { f(image, truth, meta); }
};

// Pictures of different sizes.
struct Pictures {
  int count = 5;
  std::size_t size() const { return static_cast<std::size_t>(count); }
  StepSample get(std::int64_t index) const {
    ImageMeta meta;
    meta.img_id = index;
    const auto seed = static_cast<std::uint64_t>(index);
    return {DataContainer(noise({2, 2 + index % 3, 4 - index % 2}, seed), {.stack = true}),
            DataContainer(InstanceData{{"scores", noise({1 + index % 2}, 50 + seed)}}),
            DataContainer(meta, {.cpu_only = true})};
  }
};
StepSample batch_of(int count, std::int64_t samples_per_device) {
  std::vector<StepSample> samples;
  for (int i = 0; i < count; ++i) samples.push_back(Pictures{count}.get(i));
  return collate(samples, samples_per_device);
}

// One number per image, from its pixels, its instances and its number in the dataset.
struct Detector : Module<Detector> {
  Parameter weight{tensor({1, -2}, {2, 1, 1})};
  Tensor forward(const StepSample& batch) const {
    const Tensor images = batch.image.stacked();
    const Tensor pixels = sum(images * weight.on(images.device()), {1, 2, 3});
    std::vector<Tensor> answers;
    for (std::size_t i = 0; i < batch.meta.list().size(); ++i)
      answers.push_back(pixels[static_cast<std::int64_t>(i)] * sum(batch.truth.list()[i].scores()) +
                        static_cast<double>(batch.meta.list()[i].img_id));
    return stack(answers);
  }
  void members(Members& m) override { m("weight", weight); }
};

}  // namespace

TEST_CASE("a model computes a collated batch on several devices as on one") {
  const auto answers = [](const MMDataParallel<Detector>& net, std::int64_t samples_per_device) {
    const Tensor y = net(batch_of(5, samples_per_device));
    sum(y * y).backward();
    CHECK(y.device() == net.output_device());
    const Doubles gradient = values(net.module().weight.on(net.output_device()).grad());
    return std::pair(values(y), gradient);
  };
  // The last group is smaller, and there may be fewer groups than devices.
  const auto whole = answers(MMDataParallel(Detector{}, {.devices = first_devices(1)}), 5);
  for (const auto& [devices, samples_per_device] :
       {std::pair(2, 3), std::pair(3, 2), std::pair(3, 4), std::pair(8, 1), std::pair(8, 3)}) {
    CAPTURE(devices, samples_per_device);
    const auto divided = answers(MMDataParallel(Detector{}, {.devices = first_devices(devices)}), samples_per_device);
    REQUIRE(divided.first.size() == 5);
    for (std::size_t i = 0; i < 5; ++i) CHECK(divided.first[i] == Approx(whole.first[i]).epsilon(1e-12));
    for (std::size_t i = 0; i < 2; ++i) CHECK(divided.second[i] == Approx(whole.second[i]).epsilon(1e-12));
  }
}

TEST_CASE("the loader makes the batches") {
  const int samples = 11, per_device = 2;
  for (const int devices : {2, 3})
    for (const int workers : {0, 2}) {
      CAPTURE(devices, workers);
      const MMDataParallel net(Detector{}, {.devices = first_devices(devices)});
      DataLoader loader(Pictures{samples}, {.batch_size = devices * per_device, .workers = workers},
                        Collate{.samples_per_device = per_device});
      Doubles answers;
      for (const StepSample& batch : loader)
        for (const double answer : values(net(batch))) answers.push_back(answer);
      REQUIRE(answers.size() == samples);
      const MMDataParallel one(Detector{}, {.devices = {}});
      for (int i = 0; i < samples; ++i) {
        const StepSample alone = collate(std::vector{Pictures{samples}.get(i)});
        CHECK(answers[static_cast<std::size_t>(i)] == Approx(one(alone).item<double>()).epsilon(1e-12));
      }
    }
}

TEST_CASE("without devices a container is unwrapped as on a device") {
  const MMDataParallel net(Detector{}, {.devices = {}});
  CHECK(values(net(batch_of(3, 3))).size() == 3);
  CHECK(net(batch_of(3, 3)).device() == Device::cpu());
  const MMDataParallel copy = net;
  MMDataParallel assigned(Detector{}, {.devices = first_devices(1)});
  assigned = net;
  for (const auto* wrapper : {&net, &copy, static_cast<const MMDataParallel<Detector>*>(&assigned)}) {
    CHECK(missing(message_of<InvalidArgument>([&] { (*wrapper)(batch_of(3, 2)); }),
                  {"divided into 1 to 1 parts", "got 2", "samples_per_device"}) == "");
    CHECK(missing(message_of<InvalidArgument>([&] {
                    wrapper->reduce_with([](const Tensor& y, const auto&) { return mean(y); }, batch_of(2, 2),
                                         std::tuple(batch_of(2, 1)));
                  }),
                  {"got 2", "samples_per_device"}) == "");
  }

  // Arguments of a plain DataParallel are left alone.
  const DataParallel plain(Detector{}, {.devices = {}});
  CHECK(values(plain(batch_of(3, 2))).size() == 2);

  // What is on a device comes to cpu, as by any scatter.
  struct Where : Module<Where> {
    Value forward(const Tensor& x, int) const { return to_string(x.device()); }
  };
  const MMDataParallel where(Where{}, {.devices = {}});
  CHECK(where.forward_ungathered(counting({2}, Device::host(1)), 5)[0].as_string() == "cpu");
}

TEST_CASE("no arguments at all") {
  struct Nullary : Module<Nullary> {
    Parameter weight{tensor({3}, {1})};
    Tensor forward() const { return weight.on(Device::cpu()) * 2; }
    int train_step() { return ++calls; }
    int val_step() const { return -1; }
    void members(Members& m) override { m("weight", weight); }
    int calls = 0;
  };
  const MMDataParallel net(Nullary{}, {.devices = {}});
  CHECK(values(net().detach()) == Doubles{6});
  CHECK(net.train_step() == 1);
  CHECK(net.train_step() == 2);  // the module itself, not a copy
  CHECK(net.val_step() == -1);
  CHECK(net.module().calls == 2);
  const MMDataParallel there(Nullary{}, {.devices = devices_at({3})});
  CHECK(there.train_step() == 1);
  CHECK(there.val_step() == -1);
}

TEST_CASE("the weights of reduce_with are the samples of the containers") {
  // Lists: the first tensor of a group says nothing of how many samples there are.
  struct Means : Module<Means> {
    Parameter weight{tensor({2}, {1})};
    Tensor forward(const DataContainer<Tensor>& rows) const {
      Tensor total;
      for (const Tensor& row : rows.list()) total = total.defined() ? total + sum(row) : sum(row);
      return total * weight.on(total.device()) * (1.0 / static_cast<double>(rows.list().size()));
    }
    void members(Members& m) override { m("weight", weight); }
  };
  std::vector<DataContainer<Tensor>> rows;
  for (int i = 0; i < 5; ++i) rows.emplace_back(counting({3 + i}, Device::cpu(), i));
  const auto loss = [&](int devices, std::int64_t samples_per_device) {
    const MMDataParallel net(Means{}, {.devices = first_devices(devices)});
    return net.reduce_with([](const Tensor& y) { return sum(y); }, collate(rows, samples_per_device)).item<double>();
  };
  CHECK(loss(2, 4) == Approx(loss(1, 5)).epsilon(1e-12));
  CHECK(loss(3, 2) == Approx(loss(1, 5)).epsilon(1e-12));
}

TEST_CASE("outputs that cannot be gathered stay where they are") {
  struct Predicts : Module<Predicts> {
    std::vector<DataSample> forward(const StepSample& batch) const {
      std::vector<DataSample> samples;
      for (std::size_t i = 0; i < batch.meta.list().size(); ++i) {
        samples.emplace_back().metainfo = batch.meta.list()[i];
        samples.back().pred_instances = batch.truth.list()[i];
      }
      return samples;
    }
  };
  const MMDataParallel net(Predicts{}, {.devices = first_devices(3)});
  const auto replicas = net.forward_ungathered(batch_of(5, 2));
  REQUIRE(replicas.size() == 3);
  CHECK(replicas[2].size() == 1);
  CHECK(replicas[2][0].metainfo.img_id == 4);
  CHECK(replicas[1][1].pred_instances->scores().device() == Device::host(1));

  // Containers too.
  struct Echo : Module<Echo> {
    StepSample forward(const StepSample& batch) const { return batch; }
  };
  const auto echoed = MMDataParallel(Echo{}, {.devices = first_devices(3)}).forward_ungathered(batch_of(5, 2));
  CHECK(echoed[1].image.stacked().size(0) == 2);
  CHECK(echoed[2].meta.list()[0].img_id == 4);
}
