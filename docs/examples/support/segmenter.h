// The model of detect_shapes: it says for every pixel of an image which kind of shape it is part of.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "lockstep/parallel/openmmlab/runner/metric.h"
#include "shapes.h"

namespace example {

// Two convolutions, each normalised by the image's own statistics.
struct ConvBlock : lockstep::Module<ConvBlock> {
  lockstep::Conv2d conv1, conv2;
  lockstep::GroupNorm norm1, norm2;
  ConvBlock(std::int64_t inputs, std::int64_t outputs)
      : conv1(inputs, outputs, 3, {.padding = 1, .bias = false}),
        conv2(outputs, outputs, 3, {.padding = 1, .bias = false}),
        norm1(4, outputs),
        norm2(4, outputs) {}
  lockstep::Tensor forward(const lockstep::Tensor& x) const {
    return lockstep::relu(norm2(conv2(lockstep::relu(norm1(conv1(x))))));
  }
  void members(lockstep::Members& m) override {
    m("conv1", conv1), m("norm1", norm1), m("conv2", conv2), m("norm2", norm2);
  }
};

// A U-Net (Ronneberger et al., 2015) with sums in place of joints: it halves the images three times and comes back,
// adding at each size what it had on the way down. Images of any size, at least 4 x 4.
struct Segmenter : lockstep::BaseModel<Segmenter> {
  static constexpr int kSizes = 3;
  static constexpr std::int64_t kIgnored = -1;  // the class of padding
  std::vector<ConvBlock> down, up;
  lockstep::Conv2d head;

  explicit Segmenter(std::int64_t width) : head(width, kShapeClasses, 1) {
    std::int64_t inputs = 3;
    for (int size = 0; size < kSizes; ++size) {
      const std::int64_t outputs = width << size;
      down.emplace_back(inputs, outputs);
      if (size > 0) up.emplace_back(outputs, outputs / 2);
      inputs = outputs;
    }
  }

  // Scores [n, classes, height, width]; the loss of the pixels that are in an image; or the class of each of these,
  // [height, width] of every image.
  lockstep::ModelOutput<lockstep::Tensor, std::vector<lockstep::Tensor>> forward(
      const lockstep::DataContainer<lockstep::Tensor>& image, const lockstep::DataContainer<lockstep::Tensor>& truth,
      const lockstep::DataContainer<lockstep::ImageMeta>& meta, lockstep::Mode mode) const {
    using namespace lockstep;
    const Tensor scores = scores_of(image.stacked());
    const std::int64_t height = scores.size(2), width = scores.size(3);
    if (mode == Mode::loss) {
      std::vector<Tensor> padded;
      for (const Tensor& labels : truth.list()) {
        const Tensor target = full({height, width}, kIgnored, {.dtype = DType::i64, .device = scores.device()});
        target.narrow(0, 0, labels.size(0)).narrow(1, 0, labels.size(1)).copy_(labels);
        padded.push_back(target);
      }
      return Losses{{"loss_seg", cross_entropy(scores, stack(padded), {.ignore_index = kIgnored})}};
    }
    if (mode == Mode::tensor) return scores;
    const Tensor classes = argmax(scores, 1);
    std::vector<Tensor> cropped;
    for (const ImageMeta& each : meta.list())
      cropped.push_back(classes.select(0, static_cast<std::int64_t>(cropped.size()))
                            .narrow(0, 0, each.img_shape.height)
                            .narrow(1, 0, each.img_shape.width));
    return cropped;
  }
  void members(lockstep::Members& m) override { m("down", down), m("up", up), m("head", head); }

 private:
  lockstep::Tensor scores_of(const lockstep::Tensor& images) const {
    using namespace lockstep;
    std::vector<Tensor> seen;
    for (const ConvBlock& block : down) seen.push_back(block(seen.empty() ? images : max_pool2d(seen.back(), 2)));
    Tensor x = seen.back();
    for (std::size_t size = down.size() - 1; size > 0; --size) {
      const Tensor& same = seen[size - 1];
      const Size2 larger(static_cast<int>(same.size(2)), static_cast<int>(same.size(3)));
      x = interpolate(up[size - 1](x), {.size = larger, .mode = InterpolateMode::bilinear}) + same;
    }
    return head(x);
  }
};

// Of one image, by class: pixels that have it in both truth and prediction, and in either.
struct Overlap {
  std::array<std::int64_t, kShapeClasses> both{}, either{};
};
inline Overlap overlap(const lockstep::Tensor& truth, const lockstep::Tensor& prediction) {
  Overlap counts;
  const auto a = truth.to_vector<std::int64_t>(), b = prediction.to_vector<std::int64_t>();
  for (std::size_t i = 0; i < a.size(); ++i) {
    ++counts.either[static_cast<std::size_t>(a[i])];
    if (a[i] == b[i])
      ++counts.both[static_cast<std::size_t>(a[i])];
    else
      ++counts.either[static_cast<std::size_t>(b[i])];
  }
  return counts;
}

// Intersection over union of each class over all images, and "mIoU", the mean over the shapes.
struct MeanIoU : lockstep::BaseMetric<Overlap> {
  void process(const ShapeSample& batch, const std::vector<lockstep::Tensor>& predictions) {
    std::size_t number = 0;
    for (std::size_t group = 0; group < batch.truth.group_count(); ++group)
      for (const lockstep::Tensor& truth : batch.truth.list(group))
        results.push_back(overlap(truth, predictions.at(number++)));
  }
  lockstep::NamedValues compute_metrics(const std::vector<Overlap>& all) const override {
    lockstep::NamedValues metrics{{"mIoU", 0.0}};
    double sum = 0;
    for (std::size_t label = 0; label < kShapeClasses; ++label) {
      std::int64_t both = 0, either = 0;
      for (const Overlap& counts : all) both += counts.both[label], either += counts.either[label];
      const double iou = either > 0 ? static_cast<double>(both) / static_cast<double>(either) : 0;
      metrics[lockstep::cat("IoU_", kShapeNames[label])] = iou;
      if (label > 0) sum += iou / (kShapeClasses - 1);
    }
    metrics["mIoU"] = sum;
    return metrics;
  }
};

}  // namespace example
