// What train_text does with gradients, by the name of a communication hook.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"

namespace example {

class TextHook {
 public:
  static std::vector<std::string> names() {
    return {"none", "all_reduce", "f16_compress", "bf16_compress", "power_sgd", "post_local_sgd", "no_op"};
  }
  // Whether ranks remember what a checkpoint does not have, or are different.
  static bool has_state(const std::string& name) {
    return name == "power_sgd" || name == "post_local_sgd" || name == "no_op";
  }

  template <class Net>
  TextHook(const std::string& name, Net& net) {
    using namespace lockstep;
    if (name == "all_reduce") net.register_comm_hook(all_reduce_hook());
    if (name == "f16_compress") net.register_comm_hook(f16_compress_hook());
    if (name == "bf16_compress") net.register_comm_hook(bf16_compress_hook());
    if (name == "no_op") net.register_comm_hook(no_op_hook());
    if (name == "power_sgd") {
      power_sgd_ = std::make_unique<PowerSgd>(PowerSgdOptions{.rank = 2, .start_iteration = 10});
      net.register_comm_hook(power_sgd_->hook());
    }
    if (name == "post_local_sgd") {
      averager_ = std::make_unique<PeriodicModelAverager>(net.communicator(),
                                                          ModelAveragerOptions{.period = 4, .warmup_steps = 20});
      local_ = std::make_unique<PostLocalSgd>(*averager_, PostLocalSgdOptions{.start_iteration = 20});
      net.register_comm_hook(local_->hook());
    }
  }

  void after_step(lockstep::ModuleBase& net) {
    if (averager_) averager_->average(net);
  }

 private:
  std::unique_ptr<lockstep::PowerSgd> power_sgd_;
  std::unique_ptr<lockstep::ModelAverager> averager_;
  std::unique_ptr<lockstep::PostLocalSgd> local_;
};

}  // namespace example
