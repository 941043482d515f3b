#include "lockstep/parallel/comm/nccl/nccl_communicator.h"

#include "lockstep/parallel/comm/nccl/nccl_rank.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/stream/capture.h"

namespace lockstep {
namespace {

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const std::shared_ptr<Store>& store, int rank, int size, Device device, const NcclOptions& options)
      : Communicator(rank, size, device, options.timeout),
        check_collectives_(options.check_collectives),
        blocking_(options.blocking),
        rank_(std::make_shared<nccl::Rank>(nccl::OutOfBand(store, rank, size), device, options.blocking,
                                           [this](const CommError& error) { break_with(error); })) {
    try {
      rank_->connect(options.timeout);
      detail::add_in_flight(rank_);
    } catch (const CommError& error) {
      rank_->fail(error);
      rank_->close();
      throw *rank_->failure();
    } catch (...) {
      rank_->fail(CommError(rank, "make_nccl_communicator", detail::describe(std::current_exception())));
      rank_->close();
      throw;
    }
  }
  ~NcclCommunicator() override { rank_->close(); }

  const char* backend() const override { return "nccl"; }

 private:
  void enqueue(const Collective& collective, const Stream& stream) override {
    guarded(collective, [&] {
      if (detail::current_capture) return rank_->record({&collective, 1}, stream);
      if (check_collectives_) rank_->check_agreement(collective);
      rank_->launch({&collective, 1}, stream);
    });
  }

  void enqueue_batch(std::vector<Collective> transfers, const Stream& stream) override {
    guarded(transfers[0], [&] {
      if (detail::current_capture) return rank_->record(transfers, stream);
      if (check_collectives_) rank_->check_pairs(transfers);
      rank_->launch(transfers, stream);
    });
  }

  std::string why_not_captured() override {
    if (check_collectives_)
      return "a collective that the ranks compare through the store (check_collectives), which no replay would do";
    return rank_->why_not_recorded();
  }

  std::vector<std::string> exchange(const Collective& collective, const std::string& mine) override {
    std::vector<std::string> all;
    guarded(collective, [&] { all = rank_->exchange(collective, mine); });
    return all;
  }

  std::unique_ptr<Communicator> make_split(const std::vector<int>& members, int index, const std::string& id) override {
    const NcclOptions options{.timeout = timeout(), .check_collectives = check_collectives_, .blocking = blocking_};
    return std::make_unique<NcclCommunicator>(make_prefix_store(rank_->oob().store(), cat("split/", id)), index,
                                              static_cast<int>(members.size()), device(), options);
  }

  detail::RollCall roll_call() override { return rank_->oob().roll_call(); }

  void on_broken(const CommError& error) override { rank_->fail(error); }

  // What goes wrong breaks the communicator.
  template <class Body>
  void guarded(const Collective& collective, Body&& body) {
    struct InCall {
      nccl::Rank& rank;
      ~InCall() { rank.leave(); }
    };
    rank_->enter(collective.kind);
    const InCall until_the_end{*rank_};
    try {
      body();
    } catch (const CommError& error) {
      const CommError first = break_with(error);
      rank_->mark_reported();
      rank_->wait_for_abort();
      throw first;
    } catch (const InvalidArgument&) {
      throw;  // nothing was done
    } catch (const NotSupported&) {
      throw;  // a capture cannot record it
    } catch (...) {
      break_with(CommError(rank(), to_string(collective.kind), detail::describe(std::current_exception())));
      rank_->wait_for_abort();
      throw;
    }
  }

  const bool check_collectives_, blocking_;
  const std::shared_ptr<nccl::Rank> rank_;
};

}  // namespace

std::string why_no_nccl() { return nccl::library_error(); }

std::unique_ptr<Communicator> make_nccl_communicator(const std::shared_ptr<Store>& store, int rank, int size,
                                                     Device device, const NcclOptions& options) {
  constexpr const char* kName = "make_nccl_communicator";
  LOCKSTEP_CHECK(store, "[", kName, "] expected a store");
  LOCKSTEP_CHECK(rank >= 0 && rank < size, "[", kName, "] expected a rank below the number of ranks, got rank ", rank,
                 " of ", size);
  LOCKSTEP_CHECK(device.type() == DeviceType::cuda, "[", kName, "] expected a CUDA device, got ", device);
  nccl::library();
  // Every rank counts the communicators that it has asked for, so that no rank reads what another one was sent.
  const std::int64_t generation = store->add(cat("nccl/asked/", rank), 1);
  return std::make_unique<NcclCommunicator>(make_prefix_store(store, cat("nccl/", generation)), rank, size, device,
                                            options);
}

}  // namespace lockstep
