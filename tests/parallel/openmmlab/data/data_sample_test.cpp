// What is known about a sample.
#include "lockstep/parallel/openmmlab/data/data_sample.h"

#include "parallel/support.h"

using namespace parallel_test;

namespace {

InstanceData three_objects(Device device = Device::cpu()) {
  return {{"bboxes", counting({3, 4}, device)},
          {"labels", from_data(std::vector<std::int64_t>{7, 8, 9}, {3}, {.device = device})},
          {"scores", tensor({0.25, 0.75, 0.5}, {3}, device)}};
}
std::vector<std::int64_t> labels(const InstanceData& instances) { return instances.labels().to_vector<std::int64_t>(); }

}  // namespace

TEST_CASE("instances have tensors whose first sizes agree") {
  InstanceData instances = three_objects();
  CHECK(instances.size() == 3);
  CHECK(instances.count() == 3);
  CHECK(instances.bboxes().shape() == Shape{3, 4});
  CHECK(values(instances.scores()) == Doubles{0.25, 0.75, 0.5});
  CHECK(InstanceData().size() == 0);

  instances.set("embedding", counting({3, 8}));
  CHECK(instances.at("embedding").shape() == Shape{3, 8});
  CHECK(missing(message_of<InvalidArgument>([&] {
                  instances.set("masks", counting({2, 5, 5}));
                }),
                {"[InstanceData] expected 3 objects", "'bboxes' (f64[3, 4] on cpu)", "'masks', f64[2, 5, 5]"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { instances.set("masks", tensor({1}, {})); }),
                {"one entry per object", "'masks', f64[]"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { instances.set("masks", Tensor()); }),
                {"[InstanceData] expected a tensor", "undefined one as 'masks'"}) == "");
  CHECK_FALSE(instances.contains("masks"));
  CHECK(missing(message_of<InvalidArgument>([&] { (void)instances.masks(); }),
                {"a name out of (bboxes, labels, scores, embedding), got 'masks'"}) == "");

  // The only tensor may be replaced by one of another size, and keeps its place.
  instances.set("scores", tensor({1, 2, 3}, {3}));
  CHECK(std::vector<std::string>{instances.begin()->first, (instances.begin() + 2)->first} ==
        std::vector<std::string>{"bboxes", "scores"});
  for (const char* name : {"labels", "scores", "embedding", "nothing"}) instances.remove(name);
  instances.set("bboxes", counting({1, 4}));
  CHECK(instances.size() == 1);
}

TEST_CASE("instances are picked by indices and by masks") {
  InstanceData instances = three_objects();
  instances.set("masks", from_data(std::vector<bool>{true, false, false, true, true, true}, {3, 1, 2}));
  const InstanceData some = instances[std::vector<std::int64_t>{2, 0, -2, 2}];
  CHECK(labels(some) == std::vector<std::int64_t>{9, 7, 8, 9});
  CHECK(values(some.bboxes()) == Doubles{9, 10, 11, 12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  CHECK(some.masks().to_vector<bool>() == std::vector<bool>{true, true, true, false, false, true, true, true});
  CHECK(labels(instances[std::vector<bool>{true, false, true}]) == std::vector<std::int64_t>{7, 9});
  CHECK(instances[std::vector<bool>{false, false, false}].size() == 0);
  CHECK(instances[std::vector<bool>{false, false, false}].bboxes().shape() == Shape{0, 4});

  const InstanceData there = three_objects(Device::host(1));
  const InstanceData sure = there[there.scores() > 0.3];
  CHECK(labels(sure) == std::vector<std::int64_t>{8, 9});
  CHECK(sure.bboxes().device() == Device::host(1));
  CHECK(labels(there[from_data(std::vector<std::int64_t>{1}, {1})]) == std::vector<std::int64_t>{8});

  for (const std::int64_t index : {3, -4})
    CHECK(missing(message_of<InvalidArgument>([&] {
                    (void)instances[std::vector<std::int64_t>{0, index}];
                  }),
                  {"an index of 3 objects, got " + std::to_string(index)}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { (void)instances[std::vector<bool>{true}]; }),
                {"a mask of 3 objects, got one of 1"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { (void)instances[instances.bboxes() > 2]; }),
                {"of one dimension, got", "[3, 4]"}) == "");
}

TEST_CASE("pixel data has tensors whose last two sizes agree") {
  PixelData pixels{{"sem_seg", counting({1, 4, 6})}};
  CHECK(pixels.shape() == ImageSize{4, 6});
  CHECK(PixelData().shape() == ImageSize{});
  CHECK(to_string(pixels.shape()) == "4x6");
  pixels.set("depth", counting({4, 6}));
  CHECK(pixels.sem_seg().shape() == Shape{1, 4, 6});
  for (const Shape& shape : {Shape{1, 4, 5}, Shape{1, 5, 6}})
    CHECK(missing(message_of<InvalidArgument>([&] { pixels.set("logits", counting(shape)); }),
                  {"[PixelData] expected the height and width of 'sem_seg' (f64[1, 4, 6] on cpu), got 'logits', f64",
                   to_string(shape)}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { pixels.set("row", counting({6})); }),
                {"[PixelData] expected height and width, got 'row', f64[6]"}) == "");
}

TEST_CASE("the tensors of a sample are found, and moved, by the usual walk") {
  DataSample sample;
  sample.metainfo.img_path = "a.jpg";
  sample.gt_instances = three_objects();
  sample.gt_sem_seg = PixelData{{"sem_seg", counting({2, 2})}};
  sample.pred_label = LabelData{counting({1}), Tensor()};
  int tensors = 0;
  for_each_tensor(std::as_const(sample), [&](const Tensor&) { ++tensors; });
  CHECK(tensors == 5);
  for_each_tensor(sample, [](Tensor& tensor) { tensor = tensor.to(Device::host(2)); });
  CHECK(sample.gt_instances->labels().device() == Device::host(2));
  CHECK(sample.gt_sem_seg->sem_seg().device() == Device::host(2));
  CHECK(sample.pred_label->label.device() == Device::host(2));
  CHECK(sample.metainfo.img_path == "a.jpg");
}
