// Digits behind a ReplicaPool.
#pragma once

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "../support/digits_model.h"
#include "../support/usage_error.h"
#include "http.h"
#include "options.h"

namespace example {

class DigitsService {
 public:
  // Throws UsageError for a file that train_digits --save did not write.
  explicit DigitsService(const ServeOptions& options) : timeout_(options.request_seconds * 1000) {
    lockstep::Safetensors file = lockstep::load_safetensors(options.digits);
    const auto size = [&](const char* name) {
      std::int64_t value = 0;
      std::istringstream in(file.metadata[name]);
      if (file.metadata["model"] != "train_digits" || !(in >> value) || value < 4 || value > 1024)
        throw UsageError(lockstep::cat("--digits: expected a file that train_digits --save wrote, with ", name,
                                       ", got '", options.digits, "'"));
      return value;
    };
    rows_ = size("rows"), columns_ = size("columns");
    for (const lockstep::NamedTensor& named : file.tensors) dtype_ = named.tensor.dtype();
    const lockstep::DefaultDType dtype(dtype_);
    DigitsNet net(rows_, columns_);
    lockstep::load_model(net, std::move(file), options.digits, {});
    const std::vector<lockstep::Device> devices(static_cast<std::size_t>(options.replicas),
                                                lockstep::Device::parse(options.device));
    pool_ = std::make_unique<Pool>(std::move(net),
                                   lockstep::ReplicaPoolOptions{.devices = devices,
                                                                .max_queued = static_cast<std::size_t>(options.queue),
                                                                .when_full = lockstep::WhenFull::refuse});
    pool_->warm_up(std::tuple(lockstep::zeros({1, 1, rows_, columns_}, {.dtype = dtype_})));
  }

  json shape() const { return {{"rows", rows_}, {"columns", columns_}}; }

  // {"pixels": rows * columns numbers from 0 to 1} -> {"digit": d, "probabilities": ten numbers}. Throws HttpError.
  json answer(const json& request) const {
    const auto pixels = request.find("pixels");
    const auto count = static_cast<std::size_t>(rows_ * columns_);
    const std::string wanted = lockstep::cat("expected ", count, " numbers from 0 to 1");
    if (pixels == request.end() || !pixels->is_array() || pixels->size() != count)
      throw HttpError(400, "pixels: " + wanted, "pixels", "invalid_value");
    std::vector<double> values;
    for (const json& pixel : *pixels) {
      const double value = pixel.is_number() ? pixel.get<double>() : -1;
      if (!(value >= 0 && value <= 1)) throw HttpError(400, "pixels: " + wanted, "pixels", "invalid_value");
      values.push_back(value);
    }
    const lockstep::Tensor image = lockstep::from_data(values, {1, 1, rows_, columns_}).to(dtype_);
    const lockstep::Tensor scores = pool_->submit(image, {.timeout = timeout_}).get();
    const lockstep::NoGrad no_grad;
    const auto chances = lockstep::softmax(scores.to(lockstep::DType::f64), 1).to_vector<double>();
    const auto best = std::max_element(chances.begin(), chances.end()) - chances.begin();
    return {{"digit", best}, {"probabilities", chances}};
  }

  std::string metrics() const { return lockstep::to_prometheus(pool_->stats(), "digits"); }
  void close() { pool_->close(); }

 private:
  using Pool = lockstep::ReplicaPool<DigitsNet, lockstep::Tensor(const lockstep::Tensor&)>;
  std::int64_t rows_ = 0, columns_ = 0;
  lockstep::Milliseconds timeout_;
  lockstep::DType dtype_ = lockstep::DType::f32;
  std::unique_ptr<Pool> pool_;
};

}  // namespace example
