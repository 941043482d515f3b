#include "lockstep/parallel/comm/loopback/loopback_communicator.h"

#include "lockstep/parallel/comm/store/store.h"
#include "lockstep/runtime/copy/copy.h"

namespace lockstep {
namespace {

class LoopbackCommunicator final : public Communicator {
 public:
  LoopbackCommunicator(Device device, Milliseconds timeout) : Communicator(0, 1, device, timeout) {}
  const char* backend() const override { return "loopback"; }

 private:
  void enqueue(const Collective& collective, const Stream& stream) override {
    if (!collective.input || !collective.output || collective.input == collective.output) return;
    const std::size_t bytes = static_cast<std::size_t>(collective.count) * size_of(collective.dtype);
    copy_bytes({collective.output, device(), collective.input, device(), bytes}, stream, stream);
  }
  void enqueue_batch(std::vector<Collective>, const Stream&) override {}  // there is nobody to send to
  std::vector<std::string> exchange(const Collective&, const std::string& mine) override { return {mine}; }
  std::unique_ptr<Communicator> make_split(const std::vector<int>&, int, const std::string&) override {
    return make_loopback_communicator(device(), timeout());
  }
  detail::RollCall roll_call() override { return {.store = make_local_store(), .prefix = "loopback"}; }
  void on_broken(const CommError&) override {}  // there are no others
};

}  // namespace

std::unique_ptr<Communicator> make_loopback_communicator(Device device, Milliseconds timeout) {
  return std::make_unique<LoopbackCommunicator>(device, timeout);
}

}  // namespace lockstep
