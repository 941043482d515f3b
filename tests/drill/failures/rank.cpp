#include "rank.h"

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "in_use.h"
#include "lockstep/parallel/comm/parameter_hash.h"
#include "lockstep/parallel/comm/store/tcp_store.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/tensor/io/safetensors.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/optim/sgd.h"
#include "machine.h"
#include "net.h"
#include "strike.h"

namespace failures {
namespace {

constexpr Milliseconds kPatience{60'000}, kDeadline{kDeadlineMilliseconds};
constexpr Milliseconds kForEver{3'600'000};  // beyond the limit of a cell: who waits that long hangs
constexpr int kStrikeStep = 3, kLastStep = 8, kMoreSteps = 3;
constexpr std::int64_t kLarge = 150'000;

using Wrapped = DistributedDataParallel<Net>;

struct Wrong {
  std::string what;
};

std::string bytes_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// One rank, until the failure and after it.
class Rank {
 public:
  Rank(const RankProcess& process, int rank, std::shared_ptr<Store> store)
      : process_(process),
        cell_(process.cell),
        rank_(rank),
        victim_(cell_.victim(process.seed)),
        device_(device_of(cell_, rank)),
        store_(std::move(store)),
        checkpoint_(process.folder + "/checkpoint"),
        module_(std::make_unique<Net>()) {}

  // What it says.
  std::string run() try {
    std::string said;
    try {
      live();
      if (!fails()) return "wrong nothing has failed";
      said = "failed without an error";
    } catch (const CommError& error) {
      said = judge(error);
    } catch (const NoSuchRow&) {
      if (!fails()) throw;
      said = "failed by its exception";
    }
    let_go();
    if (lost()) return said + hear_that_others_went_on();
    return "good " + go_on() + ' ' + said;
  } catch (const Wrong& wrong) {
    return "wrong " + wrong.what;
  } catch (const std::exception& error) {
    return cat("wrong ", fails() ? "for the victim: " : "", error.what());
  }

 private:
  bool fails() const { return rank_ == victim_; }
  bool lost(int rank) const {
    const std::vector<int> all = cell_.lost(process_.seed);
    return std::find(all.begin(), all.end(), rank) != all.end();
  }
  bool lost() const { return lost(rank_); }
  bool here(Place place) const { return fails() && cell_.place == place; }
  Milliseconds patience() const { return cell_.noticed_at_deadline() ? kDeadline : kPatience; }

  void mark() { store_->set(kStruck, std::to_string(shared_clock())); }

  void strike() {
    mark();
    switch (cell_.fault) {
      case Fault::exception:
        throw NoSuchRow();
      case Fault::killed:
        ::raise(SIGKILL);
        return;
      case Fault::stopped:
        ::raise(SIGSTOP);  // to this thread: it goes no further
        return;
      case Fault::wrong_collective:
        return wrong_collective(true);
      case Fault::wrong_shape:
        return wrong_shape(true);
    }
  }
  void wrong_collective(bool waits) {
    if (cell_.place == Place::between) return communicator_->barrier();
    communicator_->broadcast(full({7}, 1.0, {.device = device_}), rank_);
    if (waits) synchronize(current_stream(device_));
  }
  void wrong_shape(bool waits) {
    communicator_->all_reduce(full({77}, 1.0, {.device = device_}));
    if (waits) synchronize(current_stream(device_));
  }

  // Nobody is late by what came before.
  void meet(const std::string& name) {
    store_->set(cat(name, '/', rank_), "");
    for (int r = 0; r < kRanks; ++r) (void)store_->get(cat(name, '/', r), Deadline::after(kPatience));
  }

  void make() {
    meet("make");
    if (here(Place::before_init)) strike();
    std::shared_ptr<Store> store = store_;
    std::string group = "ranks";
    int size = kRanks;
    if (here(Place::in_init)) {
      if (cell_.fault == Fault::wrong_collective)
        mark(), group = "others";
      else if (cell_.fault == Fault::wrong_shape)
        mark(), ++size;
      else
        store = make_striking_store(store_, cell_.layout == Layout::nccl ? 4 : 1, [this] { strike(); });
    }
    const bool at_risk = cell_.place == Place::before_init || cell_.place == Place::in_init;
    communicator_ = make_ranks(cell_.layout, store, group, rank_, size, device_, at_risk ? patience() : kPatience);
    communicator_->set_timeout(kPatience);
  }

  // Ends with the failure.
  void live() {
    make();
    stream_ = std::make_unique<Stream>(device_);
    const StreamScope scope(*stream_);
    wrapped_ =
        std::make_unique<Wrapped>(std::move(*module_), *communicator_,
                                  DistributedDataParallelOptions{.bucket_cap_mb = 1e-4, .first_bucket_mb = 5e-5});
    module_.reset();
    SGD optimizer(wrapped_->parameters(), {.lr = 0.05, .momentum = 0.9});
    for (int step = 0; step < kLastStep; ++step) {
      const bool now = step == kStrikeStep;
      if (now) {
        meet("strike");
        communicator_->set_timeout(patience());
        if (here(Place::backward))
          wrapped_->module().first.weight.tensor().register_hook([this](Tensor&) { strike(); });
      }
      optimizer.zero_grad();
      const Tensor x = batch_of(step, rank_, device_), y = (*wrapped_)(x), loss = mean(y * y);
      loss.backward();
      optimizer.step();
      (void)loss.item<float>();
      if (now && here(Place::between)) strike();
      Tensor total = full({4}, 1.0, {.device = device_});
      communicator_->all_reduce(total);
      synchronize(*stream_);
      if (now && cell_.place == Place::collective) in_collective();
      if (step == 1 || (now && cell_.place == Place::checkpoint)) save(now);
      if (now && here(Place::destruction)) return destroy();
    }
  }

  // The victim is in it already, and the others come when its fault has struck. A wrong call is the second of two, made
  // while the first is in flight (where streams work on their own).
  void in_collective() {
    const Tensor large = full({kLarge}, 1.0, {.device = device_});
    const auto call = [&] {
      communicator_->all_reduce(large);
      synchronize(*stream_);
    };
    if (!fails()) {
      (void)store_->get(kStruck, Deadline::after(kPatience));
      if (cell_.wrong_call()) communicator_->all_reduce(large);
      return call();
    }
    if (cell_.wrong_call()) return mark(), communicator_->all_reduce(large), strike();
    communicator_->set_timeout(kPatience);  // it waits for its own fault
    const bool struck = strike_inside(call, [this] {
      if (cell_.fault != Fault::exception) return strike();
      mark();
      communicator_->abort(NoSuchRow().what());
    });
    if (!struck) throw Wrong{"the collective was over before the fault struck"};
  }

  void save(bool now) {
    if (fails()) {
      const auto write = [this] { save_safetensors(checkpoint_, wrapped_->module().state_dict()); };
      if (now) {
        const StrikesInWrite strikes(2, [this] { strike(); });
        write();
      } else {
        write();
      }
    }
    Tensor written = full({1}, 1.0, {.device = device_});
    communicator_->all_reduce(written);
    synchronize(*stream_);
    if (!now) saved_ = bytes_of(checkpoint_);
  }

  void destroy() {
    if (cell_.fault == Fault::exception) {
      const std::unique_ptr<Communicator> dies_last = std::move(communicator_);
      const std::unique_ptr<Wrapped> dies_first = std::move(wrapped_);
      strike();
    }
    if (cell_.wrong_call()) {
      mark();
      cell_.fault == Fault::wrong_shape ? wrong_shape(false) : wrong_collective(false);
    }
    module_ = std::make_unique<Net>(std::move(wrapped_->module()));
    wrapped_.reset();
    if (cell_.takes_process()) return strike();
    communicator_.reset();
  }

  // "wrong …", unless the error says in time who has failed.
  std::string judge(const CommError& error) {
    const std::int64_t now = shared_clock();
    if (lost()) return cat("failed with an error: ", error.what());
    const std::optional<std::string> struck = store_->try_get(kStruck);
    if (!struck) throw Wrong{cat("there was an error before the fault struck: ", error.what())};
    const std::int64_t milliseconds = (now - std::stoll(*struck)) / 1'000'000;
    if (!lost(error.rank))
      throw Wrong{cat("the error names rank ", error.rank, ", not rank ", victim_, ": ", error.what())};
    const std::string text = error.what();
    if (text.find(cat("rank ", error.rank)) == text.npos) throw Wrong{cat("the message names no rank: ", text)};
    if (error.collective.empty() || text.find(error.collective) == text.npos)
      throw Wrong{cat("the error names no collective: ", text)};
    if (milliseconds > kSlack * kDeadlineMilliseconds)
      throw Wrong{cat("the error came after ", milliseconds, " ms: ", text)};
    failed_ = error.rank;
    return cat("after ", milliseconds, " ms: ", text);
  }

  // What is left of the training; the module stays, and the communicator where it is of use.
  void let_go() {
    if (wrapped_) module_ = std::make_unique<Net>(std::move(wrapped_->module()));
    wrapped_.reset();
    if (lost() && cell_.fault != Fault::stopped) communicator_.reset();
    for (int tries = 0; tries < 10; ++tries) {  // errors that the failed collectives have left on the streams
      try {
        synchronize(device_);
        break;
      } catch (const Error&) {
      }
    }
    stream_.reset();
  }

  // How long survivors wait for ranks that no error names. Those of a process that is stopped do not come, but have
  // not ended either.
  Milliseconds roll_call() const {
    return cell_.fault == Fault::stopped && cell_.layout == Layout::threads ? 2 * kDeadline : kForEver;
  }

  // A group of those who are left.
  void regroup() {
    const std::vector<int> left = cell_.survivors(process_.seed);
    const auto index = static_cast<int>(std::find(left.begin(), left.end(), rank_) - left.begin());
    const auto size = static_cast<int>(left.size());
    if (communicator_) {
      communicator_->set_timeout(kPatience);  // of the one that is made of it, too
      communicator_ = communicator_->shrink({.exclude = {failed_}, .timeout = roll_call()});
    } else {  // the failure came before there was one: who started the ranks starts those that are left
      communicator_ = make_ranks(cell_.layout, store_, "survivors", index, size, device_, kPatience);
    }
    if (communicator_->rank() != index || communicator_->size() != size)
      throw Wrong{cat("rank ", communicator_->rank(), " of ", communicator_->size(), " goes on, expected ", index,
                      " of ", size)};
  }

  // A rank that was stopped and goes on calls shrink, as a survivor would: the others have gone on without it.
  std::string hear_that_others_went_on() {
    if (!communicator_) return "";
    try {
      communicator_ = communicator_->shrink({.timeout = kForEver});
    } catch (const CommError& error) {
      communicator_.reset();
      return cat("; left out: ", error.what());
    }
    throw Wrong{cat("it was stopped, and shrink made a group of ", communicator_->size(), " for it")};
  }

  // Returns a checksum of what the survivors have made of the module.
  std::string go_on() {
    if (!saved_.empty() && bytes_of(checkpoint_) != saved_) throw Wrong{"the checkpoint of before is not what it was"};
    if (!saved_.empty()) (void)load_safetensors(checkpoint_);
    regroup();
    const Stream stream(device_);
    const StreamScope scope(stream);
    Wrapped wrapped(std::move(*module_), *communicator_);
    module_.reset();
    SGD optimizer(wrapped.parameters(), {.lr = 0.05, .momentum = 0.9});
    for (int step = 0; step < kMoreSteps; ++step) {
      optimizer.zero_grad();
      const Tensor y = wrapped(batch_of(100 + step, communicator_->rank(), device_)), loss = mean(y * y);
      loss.backward();
      optimizer.step();
      if (!std::isfinite(loss.item<float>())) throw Wrong{"the loss is not finite after the failure"};
    }
    const std::string hash = parameters_sha256(wrapped.module());
    communicator_->barrier();  // none is torn down while others compute
    return hash;
  }

  const RankProcess& process_;
  const Cell cell_;
  const int rank_, victim_;
  int failed_ = -1;  // who it is by the error
  const Device device_;
  const std::shared_ptr<Store> store_;
  const std::string checkpoint_;
  std::string saved_;
  std::unique_ptr<Net> module_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Wrapped> wrapped_;
};

// What the library keeps is there once a rank alone has trained.
void warm_up(const RankProcess& process, Device device) {
  const auto alone = make_ranks(process.cell.layout, make_local_store(), "alone", 0, 1, device, kPatience);
  const Stream stream(device);
  const StreamScope scope(stream);
  Wrapped wrapped(Net{}, *alone);
  SGD optimizer(wrapped.parameters(), {.lr = 0.05, .momentum = 0.9});
  const Tensor y = wrapped(batch_of(0, 0, device));
  mean(y * y).backward();
  optimizer.step();
  synchronize(stream);
}

}  // namespace

int run_rank_process(const RankProcess& process) {
  set_up_devices(process.cell.layout);
  std::vector<int> ranks;
  std::vector<Device> devices;
  for (int r = 0; r < kRanks; ++r)
    if (process.cell.process_of(r) == process.process)
      ranks.push_back(r), devices.push_back(device_of(process.cell, r));
  {
    std::vector<std::thread> threads;
    for (const Device device : devices) threads.emplace_back([&, device] { warm_up(process, device); });
    for (std::thread& thread : threads) thread.join();
  }
  const auto settles = [&](const std::function<bool(const InUse&)>& done) {
    InUse now = in_use(devices);
    for (int tries = 0; tries < 1000 && !done(now); ++tries) {
      std::this_thread::sleep_for(Milliseconds(10));
      now = in_use(devices);
    }
    return now;
  };
  const InUse before = settles([](const InUse& now) { return now.memory == 0; });
  std::vector<std::string> said(ranks.size());
  {
    const std::shared_ptr<Store> store = make_tcp_store({.address = process.store});
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < ranks.size(); ++i)
      threads.emplace_back([&, i] { said[i] = Rank(process, ranks[i], store).run(); });
    for (std::thread& thread : threads) thread.join();
  }
  const InUse after = settles([&](const InUse& now) {
    return now.memory == before.memory && now.files.size() <= before.files.size() && now.threads <= before.threads;
  });
  std::string text;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    std::replace(said[i].begin(), said[i].end(), '\n', ' ');
    text += cat("rank ", ranks[i], ' ', said[i], '\n');
  }
  std::string left;
  if (after.memory != before.memory || after.files.size() > before.files.size() || after.threads > before.threads)
    left = cat("left ", after.text(), ", of ", before.text());
  if (left.empty()) left = broken_rules(process.cell.layout, process.cell.wrong_call() ? "NCCL order" : "");
  std::replace(left.begin(), left.end(), '\n', ' ');
  text += cat("process ", left.empty() ? "clean" : left, '\n');
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
  return 0;
}

}  // namespace failures
