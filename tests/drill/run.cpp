#include "run.h"

#include <algorithm>
#include <memory>
#include <thread>

#include "judge.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/thread/device_thread.h"
#include "lockstep/tensor/optim/sgd.h"
#include "net.h"

namespace drill {
namespace {

class Run {
 public:
  Run(const Plan& plan, Patience patience) : plan_(plan), machine_(*plan_.machine), patience_(patience) {}

  Result run() {
    machine_.start(plan_, patience_.factor);
    set_log_level(LogLevel::off);
    const std::vector<std::size_t> before = in_use();
    try {
      for (std::size_t i = 0; i < plan_.steps.size() && !all_lost_; ++i) perform(i);
      if (armed_) machine_.clear();  // what it has not met by now, it does not meet
      settle(0);
      drop();
      recover();
      // A device thread may be the last to let go of a call that is over; what leaks stays.
      const Deadline patience = Deadline::after(Milliseconds(10 * kShort * patience_.factor));
      std::vector<std::size_t> after = in_use();
      for (; after != before && !patience.passed(); after = in_use()) std::this_thread::sleep_for(Milliseconds(1));
      if (after != before) {
        for (std::size_t i = 0; i < after.size(); ++i) {
          if (after[i] != before[i])
            fail(Verdict::leak, cat(after[i] - before[i], " bytes left on ", all_devices()[i]));
        }
      }
    } catch (const WrongResult& wrong) {
      fail(Verdict::wrong, wrong.what);
    } catch (...) {
      fail(plan_.with_fault ? Verdict::misreported : Verdict::wrong,
           cat("after the faults were over: ", detail::describe(std::current_exception())));
    }
    machine_.clear();
    drop();
    const std::string left = machine_.left_over(), rules = machine_.broken_rules();
    if (!left.empty()) fail(Verdict::leak, left);
    if (!rules.empty()) fail(Verdict::wrong, rules);
    return result_;
  }

 private:
  // ---- faults

  void arm() {
    settle(0);
    if (plan_.fault.from_empty_caches) {
      for (const Device device : all_devices()) empty_cache(device);
    }
    machine_.arm();
  }

  // Waits for everything that was enqueued. With a limit, and a task that hangs: TimeoutError is what must come, and
  // after the release the work goes on.
  void settle(int limit_milliseconds) {
    for (const Device device : all_devices()) {
      if (is_lost(device)) continue;
      bool released = limit_milliseconds == 0;
      for (;;) {
        try {
          synchronize(device, Milliseconds(released ? 60'000 * patience_.factor : limit_milliseconds));
          break;
        } catch (const TimeoutError& late) {
          if (released || !machine_.may_hang()) throw;
          if (std::string(late.what()).find(to_string(device)) == std::string::npos) {
            fail(Verdict::misreported, cat("a wait for ", device, " ended with: ", late.what()));
          }
          if (!machine_.struck()) continue;  // the machine is slow
          result_.thrown = true;
          released = true;
          machine_.release();
        }
      }
    }
  }

  // The end of all faults, and of all work; whatever is still wrong with it was told already.
  void recover() {
    machine_.clear();
    for (const Device device : all_devices()) {
      if (!is_lost(device)) drain(device);
    }
  }
  void drain(Device device) {
    for (int errors = 0;; ++errors) {
      try {
        synchronize(device, Milliseconds(60'000 * patience_.factor));
        break;
      } catch (const TimeoutError&) {
        throw;
      } catch (const Error&) {
        if (errors == 100) throw;
      }
    }
    if (!machine_.may_hang() || device.is_cpu()) return;
    const Deadline deadline = Deadline::after(Milliseconds(60'000 * patience_.factor));
    while (device_thread(device).lost()) {
      if (deadline.passed()) throw TimeoutError(cat("[drill] ", device, " is still lost"));
      std::this_thread::yield();
    }
  }

  // A device that is lost answers so, and the others go on without it.
  void leave_lost_out() {
    lost_ = machine_.lost();
    for (const Device device : lost_) {
      std::string answer = "no error";
      try {
        check(tensor_of({1, 2}, {2}, device), {1, 2}, "what is on a lost device");
      } catch (const DeviceError& error) {
        answer = machine_.judge(error, plan_);
        if (error.device != device) answer = cat("an error of ", error.device);
      } catch (const WrongResult& wrong) {
        answer = wrong.what;
      } catch (...) {
        answer = detail::describe(std::current_exception());
      }
      if (!answer.empty()) fail(Verdict::misreported, cat(device, " is lost and answers with ", answer));
    }
    all_lost_ = !plan_.leave_out(lost_);
  }
  bool is_lost(Device device) const { return std::find(lost_.begin(), lost_.end(), device) != lost_.end(); }

  // ---- steps

  void perform(std::size_t index) {
    const Step& step = plan_.steps[index];
    if (plan_.with_fault && index == plan_.fault.step) {
      arm();
      armed_ = true;
    }
    if (!armed_) return attempt(step);
    const Model before = model_;
    try {
      attempt(step);
      settle(kShort * patience_.factor);
      if (!machine_.struck()) return;
      result_.struck = true;
      if (machine_.lasts()) return;
      armed_ = false;
      if (machine_.lost().empty()) return recover();
    } catch (const WrongResult&) {
      throw;
    } catch (...) {
      result_.struck = result_.thrown = true;
      const std::string wrong = judge(std::current_exception(), plan_);
      if (!wrong.empty()) fail(Verdict::misreported, cat(to_string(step.attempt), ": ", wrong));
    }
    armed_ = false;
    machine_.clear();
    leave_lost_out();
    recover();
    if (all_lost_) return;
    model_ = before;
    // What an inference has not changed must still be there; a training is taken up again from what was saved.
    if (step.attempt == Attempt::build || !lost_.empty()) {
      drop();
    } else if (step.attempt == Attempt::train) {
      restore();
    }
    if (step.attempt != Attempt::build && !net_) {
      model_.forget_speed();
      build();
    }
    attempt(step);
  }
  void drop() { net_.reset(), other_.reset(), optimizer_.reset(); }

  void attempt(const Step& step) {
    switch (step.attempt) {
      case Attempt::build:
        return build();
      case Attempt::train:
        return train(step);
      case Attempt::infer:
        return infer(step, *net_, plan_.devices, 1);
      case Attempt::overlap:
        return overlap(step);
      case Attempt::divide:
        return divide(step);
      case Attempt::graph:
        return graph(step);
    }
  }

  void build() {
    const Milliseconds timeout((plan_.peeks ? 2000 : 60'000) * patience_.factor);
    const ScatterPolicy policy = plan_.balanced ? ScatterPolicy::balanced() : ScatterPolicy::chunk();
    const Net net(model_, plan_.peeks);
    net_ = std::make_unique<DataParallel<Net>>(
        net, DataParallelOptions{
                 .devices = plan_.devices, .output_device = plan_.output_device, .policy = policy, .timeout = timeout});
    other_ = std::make_unique<DataParallel<Net>>(
        net, DataParallelOptions{.devices = plan_.others, .policy = policy, .timeout = timeout});
    new_optimizer();
  }
  void new_optimizer() {
    const Net& net = net_->module();
    optimizer_ =
        std::make_unique<SGD>(std::vector<Parameter>{net.scale, net.shift}, SgdOptions{.lr = 1, .momentum = 1});
  }
  void restore() {
    const Net& net = net_->module();
    net.scale.assign(tensor_of(model_.scale, {kIn}));
    net.shift.assign(tensor_of(model_.shift, {kIn}));
    net.seen.assign(tensor_of({model_.seen}, {1}));
    net_->zero_grad();
    new_optimizer();
    model_.forget_speed();
  }

  Integers sizes(const Step& step, const std::vector<Device>& devices) const {
    return piece_sizes(step.rows, static_cast<Integer>(devices.size()), plan_.balanced);
  }

  void train(const Step& step) {
    const Integers xs = numbers(step.rows * kIn, step.rows), cs = numbers(step.rows * kOut, step.rows + 3);
    const Model::Gradients expected = model_.backward(xs, cs);
    const Integers pieces = sizes(step, plan_.devices);
    const SideStream side(plan_.devices[0], step.on_side_stream);
    Tensor x = tensor_of(xs, {step.rows, kIn}, step.source);
    if (step.wants_input_gradient) x.set_requires_grad();
    const Tensor c = tensor_of(cs, {step.rows, kOut}, plan_.output_device);
    net_->zero_grad();
    const Tensor y = (*net_)(x);
    (y * c).sum().backward();
    const auto read = [&] {
      check(y, model_.forward(xs, pieces, true), "outputs in training");
      check(net_->module().scale.grad(), expected.scale, "the gradient of scale");
      check(net_->module().shift.grad(), expected.shift, "the gradient of shift");
      if (step.wants_input_gradient) check(x.grad(), expected.x, "the gradient of the batch");
    };
    if (!step.reads_late) read();
    optimizer_->step();
    if (step.reads_late) read();
    model_.step(expected, pieces[0]);
    check(net_->module().scale.tensor(), model_.scale, "scale after the step");
    check(net_->module().shift.tensor(), model_.shift, "shift after the step");
    check(net_->module().seen.tensor(), {model_.seen}, "the buffer at home");
  }

  void infer(const Step& step, const DataParallel<Net>& net, const std::vector<Device>& devices, int calls) {
    const NoGrad off;
    const TrainingScope evaluation(false);
    const Integers xs = numbers(step.rows * kIn, step.rows + 1);
    const Tensor x = tensor_of(xs, {step.rows, kIn}, step.source);
    for (int i = 0; i < calls; ++i) {
      check(net(x), model_.forward(xs, sizes(step, devices), false), "outputs in inference");
    }
  }

  void overlap(const Step& step) {
    std::exception_ptr there, here;
    std::thread other([&] {
      try {
        infer(step, *other_, plan_.others, 2);
      } catch (...) {
        there = std::current_exception();
      }
    });
    try {
      infer(step, *net_, plan_.devices, 2);
    } catch (...) {
      here = std::current_exception();
    }
    other.join();
    if (here && there) {
      const std::string wrong = judge(there, plan_);
      if (!wrong.empty()) fail(Verdict::misreported, cat("overlap: ", wrong));
    }
    if (here) std::rethrow_exception(here);
    if (there) std::rethrow_exception(there);
  }

  void divide(const Step& step) {
    const Integers xs = numbers(step.rows * kIn, step.rows + 2), cs = numbers(step.rows * kIn, step.rows + 4);
    const Integers pieces = piece_sizes(step.rows, static_cast<Integer>(plan_.devices.size()), step.balanced);
    Integers expected, gradient;
    std::size_t at = 0;
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      const auto factor = static_cast<Integer>(p) + 2;
      for (const std::size_t end = at + static_cast<std::size_t>(pieces[p] * kIn); at < end; ++at) {
        expected.push_back(xs[at] * factor + factor);
        gradient.push_back(cs[at] * factor);
      }
    }
    Tensor x = tensor_of(xs, {step.rows, kIn}, step.source);
    x.set_requires_grad();
    std::vector<Tensor> parts =
        scatter(x, plan_.devices, 0, step.balanced ? ScatterPolicy::balanced() : ScatterPolicy::chunk());
    if (parts.size() != pieces.size()) throw WrongResult{cat(parts.size(), " pieces")};
    std::vector<Tensor> results;  // the pieces live until the side streams are joined
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const SideStream side(plan_.devices[p], step.on_side_stream && p % 2 == 1);
      const auto factor = static_cast<double>(p) + 2;
      const Tensor product = parts[p] * factor;
      results.push_back(product + factor);
    }
    const Tensor y = gather(results, plan_.output_device);
    (y * tensor_of(cs, {step.rows, kIn}, plan_.output_device)).sum().backward();
    check(y, expected, "what was divided and put together");
    check(x.grad(), gradient, "the gradient of what was divided");
  }

  void graph(const Step& step) {
    const Integers xs = numbers(step.rows, step.rows + 5);
    const Device home = plan_.devices[0];
    Tensor x = tensor_of(xs, {step.rows}, home);
    x.set_requires_grad();
    Tensor sum;
    Integer linear = 0;
    for (std::size_t d = 0; d < plan_.devices.size(); ++d) {
      const Tensor there = x.to(plan_.devices[d]);
      const Tensor part = (there * there + there * (static_cast<double>(d) + 2)).to(home);
      sum = sum.defined() ? sum + part : part;
      linear += static_cast<Integer>(d) + 2;
    }
    sum.sum().backward();
    Integers expected, gradient;
    const auto count = static_cast<Integer>(plan_.devices.size());
    for (const Integer value : xs) {
      expected.push_back(count * value * value + linear * value);
      gradient.push_back(2 * count * value + linear);
    }
    check(sum, expected, "a sum over devices");
    check(x.grad(), gradient, "the gradient through several devices");
  }

  // ---- looking

  void check(const Tensor& tensor, const Integers& expected, const char* what) {
    if (!tensor.defined()) throw WrongResult{cat(what, ": undefined")};
    // Reading has no limit of its own but the default one.
    if (armed_ && machine_.may_hang() && std::this_thread::get_id() == main_) {
      settle(kShort * patience_.factor);
    }
    const std::vector<double> got = tensor.detach().to_vector<double>(), wanted = exact(expected);
    if (got.size() != wanted.size()) throw WrongResult{cat(what, ": ", got.size(), " elements, not ", wanted.size())};
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (got[i] != wanted[i]) {
        throw WrongResult{cat(what, ": element ", i, " of ", got.size(), " is ", got[i], ", not ", wanted[i])};
      }
    }
  }
  static std::vector<std::size_t> in_use() {
    std::vector<std::size_t> bytes;
    for (const Device device : all_devices()) bytes.push_back(memory_stats(device).in_use_bytes);
    return bytes;
  }
  void fail(Verdict verdict, const std::string& message) {
    if (result_.verdict == Verdict::good) result_.verdict = verdict;
    result_.message += cat(result_.message.empty() ? "" : "; ", message);
  }

  static constexpr int kShort = 300;  // milliseconds

  Plan plan_;
  Machine& machine_;
  const Patience patience_;
  Result result_;
  Model model_;
  std::unique_ptr<DataParallel<Net>> net_, other_;
  std::unique_ptr<SGD> optimizer_;
  bool armed_ = false, all_lost_ = false;
  std::vector<Device> lost_;
  const std::thread::id main_ = std::this_thread::get_id();
};

}  // namespace

Result run(const Plan& plan, Patience patience) { return Run(plan, patience).run(); }

}  // namespace drill
