// A server whose weights are replaced while it answers: every answer is of one version, whatever way it is served.
//
//   lockstep-user-serving [answers per way and caller]
//
// Last line: `serving: answers=N torn=0 loads=M`. Exit code 1 when an answer was torn, or a refresh was held up.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/parallel/data_parallel.h"
#include "lockstep/tensor/io/safetensors.h"
#include "lockstep/tensor/nn/slab_set.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"

namespace {

using namespace lockstep;

constexpr int kCallers = 4, kParts = 8;

// Each row of its answer says which version of each part it has read.
struct Net : Module<Net> {
  std::vector<Parameter> parts;
  Net() {
    for (int i = 0; i < kParts; ++i) parts.emplace_back(zeros({64}, {.dtype = DType::f64}), false);
  }
  Tensor forward(const Tensor& x) const {
    std::vector<Tensor> seen;
    for (const Parameter& part : parts) seen.push_back(x * part.on(x.device()).narrow(0, 63, 1));
    return cat(seen, 1);
  }
  void members(Members& m) override { m("parts", parts); }
};

std::vector<NamedTensor> version(double number) {
  std::vector<NamedTensor> state;
  for (int i = 0; i < kParts; ++i)
    state.push_back({"parts." + std::to_string(i), full({64}, number, {.dtype = DType::f64})});
  return state;
}

struct Counts {
  std::atomic<long> answers{0}, torn{0}, loads{0};
  std::mutex mutex;
  std::string error;
  void failed(const std::exception& e) {
    const std::lock_guard lock(mutex);
    error = e.what();
  }
};

// `answer(caller)` from four threads, `load()`, which says what it has loaded, in a fifth until they are through. Then
// each of two loads is what the next answer is of.
void serve(const char* way, long answers, Counts& counts, const std::function<Tensor(int)>& answer,
           const std::function<double()>& load) {
  const long torn_before = counts.torn, loads_before = counts.loads;
  std::atomic<int> serving{kCallers};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller)
    callers.emplace_back([&, caller] {
      try {
        const NoGrad no_grad;
        for (long i = 0; i < answers; ++i) {
          const std::vector<double> seen = answer(caller).to_vector<double>();
          bool torn = seen.empty();
          for (const double value : seen) torn = torn || value != seen[0];
          counts.torn += torn;
          ++counts.answers;
        }
      } catch (const std::exception& error) {
        counts.failed(error);
      }
      --serving;
    });
  try {
    while (serving > 0) {
      load();
      ++counts.loads;
    }
  } catch (const std::exception& error) {
    counts.failed(error);
  }
  for (std::thread& caller : callers) caller.join();
  const NoGrad no_grad;
  for (int i = 0; i < 2; ++i) {
    const double expected = load(), got = answer(0).to_vector<double>().at(0);
    if (got != expected)
      counts.failed(
          Error(cat(way, ": expected an answer of version ", expected, ", which was loaded, got one of ", got)));
  }
  std::printf("%-24s %ld answers, %ld torn, %ld loads\n", way, answers * kCallers, counts.torn - torn_before,
              counts.loads - loads_before);
}

void serve_all(long answers, Counts& counts) {
  const std::vector<Device> two{Device::host(0), Device::host(1)};
  const std::vector<std::vector<NamedTensor>> versions{version(0), version(1)};
  long turn = 0;
  const auto load_into = [&](auto& module) {
    return [&] {
      module.load_state_dict(versions[static_cast<std::size_t>(++turn % 2)]);
      return static_cast<double>(turn % 2);
    };
  };
  const auto rows = [](std::int64_t count, Device device) {
    return ones({count, 1}, {.dtype = DType::f64, .device = device});
  };
  {
    DataParallel net(Net(), {.devices = two, .output_device = Device::cpu()});
    serve(
        "two devices", answers, counts, [&](int) { return net(rows(4, Device::cpu())); }, load_into(net.module()));
  }
  {
    DataParallel net(Net(), {.devices = two});
    const auto step = [](const Tensor& y) { return y.mean(); };
    serve(
        "ungathered, reduced", answers, counts,
        [&](int caller) {
          if (caller % 2 == 0) return net.reduce_with(step, rows(4, Device::host(0)));
          const std::vector<Tensor> parts = net.forward_ungathered(rows(4, Device::host(0)));
          return cat({parts[0].to(Device::cpu()), parts[1].to(Device::cpu())});
        },
        load_into(net.module()));
  }
  {
    DataParallel net(Net(), {.devices = {Device::host(1)}});
    serve(
        "one device", answers, counts, [&](int) { return net(rows(2, Device::host(1))); }, load_into(net.module()));
  }
  {
    Net net;
    net.to(two[0]);
    const auto replicas = replicate(net, two);
    serve(
        "replicas", answers, counts,
        [&](int caller) {
          const auto& replica = replicas[static_cast<std::size_t>(caller % 2)];
          return replica(rows(2, replica.device()));
        },
        [&] {
          const double loaded = load_into(net)();
          replicate(net, two);
          return loaded;
        });
  }
  {
    Net net;
    net.to(two[0]);
    serve(
        "the module", answers, counts, [&](int) { return net(rows(2, two[0])); }, load_into(net));
  }
  {
    Net net;
    net.to(two[1]);
    std::deque<Stream> streams;
    for (int i = 0; i < kCallers; ++i) streams.emplace_back(two[1]);
    serve(
        "streams of one's own", answers, counts,
        [&](int caller) {
          const StreamScope scope(streams[static_cast<std::size_t>(caller)]);
          return net(rows(2, two[1])).to(Device::cpu());
        },
        load_into(net));
  }
  {
    Net net;
    std::string folder = "/tmp/lockstep-serving-XXXXXX";
    if (!::mkdtemp(folder.data())) throw Error("no folder");
    for (int i = 0; i < 2; ++i)
      save_safetensors(folder + "/" + std::to_string(i), versions[static_cast<std::size_t>(i)]);
    serve(
        "files", answers, counts, [&](int) { return net(rows(2, Device::cpu())); },
        [&] {
          load_model(net, folder + "/" + std::to_string(++turn % 2));
          return static_cast<double>(turn % 2);
        });
    for (int i = 0; i < 2; ++i) ::unlink((folder + "/" + std::to_string(i)).c_str());
    ::rmdir(folder.c_str());
  }
}

// How many calls four constant readers of one replica make while a refresh waits for them: the most of one reader.
long calls_during_refresh(int rounds) {
  Net net;
  const std::vector<Device> two{Device::host(0), Device::host(1)};
  net.to(two[0]);
  const auto replicas = replicate(net, two);
  const ReadGate& gate = net.parts[0].body()->slabs->gate(two[1]);
  std::atomic<bool> stop{false};
  std::atomic<long> calls[kCallers] = {}, most{0}, refresh{0};
  std::vector<std::thread> readers;
  for (int reader = 0; reader < kCallers; ++reader)
    readers.emplace_back([&, reader] {
      const NoGrad no_grad;
      const Tensor x = ones({1, 1}, {.dtype = DType::f64, .device = two[1]});
      for (long passed = 0; !stop; ++calls[reader]) {
        const long which = refresh;
        const bool waits = gate.wanted();
        (void)replicas[1](x).to_vector<double>();
        passed = waits && gate.wanted() && refresh == which ? passed + 1 : 0;
        if (passed > most) most = passed;
      }
    });
  for (int round = 0; round < rounds; ++round) {
    for (const auto& reader : calls)
      for (const long before = reader; reader == before;) std::this_thread::sleep_for(std::chrono::microseconds(50));
    net.parts[0].tensor().fill_(round);
    ++refresh;
    replicate(net, two);
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  return most;
}

}  // namespace

int main(int count, char** arguments) try {
  ::alarm(600);  // a server that hangs ends here
  const long answers = count > 1 ? std::atol(arguments[1]) : 100;
  Counts counts;
  serve_all(answers, counts);
  const long calls = calls_during_refresh(20);
  std::printf("a refresh under %d constant readers: at most %ld calls of each\n", kCallers, calls);
  std::printf("serving: answers=%ld torn=%ld loads=%ld\n", counts.answers.load(), counts.torn.load(),
              counts.loads.load());
  if (!counts.error.empty()) std::printf("failed: %s\n", counts.error.c_str());
  return counts.torn == 0 && counts.error.empty() && calls <= 3 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
