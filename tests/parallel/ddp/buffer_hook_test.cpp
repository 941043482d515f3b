// What a module's own handling of buffers sees and when, and how it fails.
#include "lockstep/parallel/ddp/buffer_hook.h"

#include "parallel/ddp/support.h"

using namespace parallel_test;

namespace {

// Adds 1 to its buffer in each training call.
struct CountingBuffer : Module<CountingBuffer> {
  Parameter weight{counting({2})};
  Buffer calls{zeros({1}, {.dtype = DType::f64})};
  Tensor forward(const Tensor& x) const {
    const Tensor y = x * weight.on(x.device()) + calls.on(x.device()).clone();
    const NoGrad no_grad;
    Tensor mine = calls.on(x.device());
    if (is_training()) mine.add_(1.0);
    return y;
  }
  void members(Members& m) override { m("weight", weight), m("calls", calls); }
};

BufferHook sums(BufferHook::When when) {
  return {"sums",
          [](std::span<const NamedParameter> buffers, Communicator& communicator) {
            if (buffers.size() != 1 || buffers[0].name != "calls") throw Error("other buffers");
            communicator.all_reduce(buffers[0].parameter.tensor());
          },
          when};
}

}  // namespace

TEST_CASE("a buffer hook works before or after the forward, in place of the broadcast") {
  for (const int ranks : {1, 2, 3}) {
    for (const auto when : {BufferHook::When::before_forward, BufferHook::When::after_forward}) {
      const auto result = run_ranks(ranks, [&](Communicator& communicator) {
        DistributedDataParallel<CountingBuffer> net(CountingBuffer{}, communicator);
        net.register_buffer_hook(sums(when));
        Doubles seen;
        const auto look = [&] { seen.push_back(values(net.module().calls.tensor())[0]); };
        net.module().calls.assign(full({1}, communicator.rank(), {.dtype = DType::f64}));
        sum(net(counting({1, 2}))).backward(), look();
        {
          const auto scope = net.no_sync();
          sum(net(counting({1, 2}))).backward(), look();
        }
        net.eval();
        net(counting({1, 2})), look();
        net.train();
        const NoGrad no_grad;
        net(counting({1, 2})), look();
        return seen;
      });
      const double all = ranks * (ranks - 1) / 2;
      const double first = when == BufferHook::When::before_forward ? all + 1 : all + ranks;
      for (const Doubles& rank : result) CHECK(rank == Doubles{first, first + 1, first + 1, first + 2});
    }
  }
}

TEST_CASE("a buffer hook works on the module's buffers, whatever the forward computes in") {
  for (const auto when : {BufferHook::When::before_forward, BufferHook::When::after_forward}) {
    const auto result = run_ranks(2, [&](Communicator& communicator) {
      DistributedDataParallel<CountingBuffer> net(CountingBuffer{}, communicator,
                                                  {.mixed_precision = {.buffer_dtype = DType::bf16}});
      bool wide = true;
      net.register_buffer_hook({"adds",
                                [&](std::span<const NamedParameter> buffers, Communicator&) {
                                  Tensor here = buffers[0].parameter.on(communicator.device());
                                  wide = here.dtype() == DType::f64;
                                  here.add_(10.0);
                                },
                                when});
      sum(net(counting({1, 2}))).backward();
      return Doubles{values(net.module().calls.tensor())[0], double(wide)};
    });
    for (const Doubles& rank : result) CHECK(rank == Doubles{11, 1});
  }
}

TEST_CASE("a buffer hook sees a tied buffer once, and none that is ignored") {
  struct Tied : Module<Tied> {
    Parameter weight{counting({2})};
    Buffer first{zeros({1})}, second{zeros({1})}, left{zeros({1})};
    Tied() { second = first; }
    Tensor forward(const Tensor& x) const { return x * weight.on(x.device()); }
    void members(Members& m) override { m("weight", weight), m("first", first), m("second", second), m("left", left); }
  };
  const auto seen = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<Tied> net(Tied{}, communicator, {.ignore = {"left"}});
    std::string names;
    net.register_buffer_hook({"looks", [&](std::span<const NamedParameter> buffers, Communicator&) {
                                for (const NamedParameter& buffer : buffers) names += buffer.name + ' ';
                              }});
    sum(net(counting({1, 2}))).backward();
    return names;
  });
  for (const std::string& names : seen) CHECK(names == "first ");
}

TEST_CASE("buffer hooks that are refused, or fail") {
  const auto said = [](const std::function<void(DistributedDataParallel<CountingBuffer>&, int)>& body,
                       bool broadcast = true) {
    return messages_of_ranks(2, [&](Communicator& communicator) {
      DistributedDataParallel<CountingBuffer> net(CountingBuffer{}, communicator, {.broadcast_buffers = broadcast});
      body(net, communicator.rank());
      synchronize(communicator.device());
      communicator.barrier();
    });
  };
  // Both ranks have each of the parts.
  const auto absent = [](const std::vector<std::string>& ranks, std::initializer_list<std::string> parts) {
    return missing(ranks[0], parts) + missing(ranks[1], parts);
  };
  constexpr auto before = BufferHook::When::before_forward, after = BufferHook::When::after_forward;
  CHECK(absent(said([](auto& net, int) { net.register_buffer_hook({"none", nullptr}); }), {"can be called"}) == "");
  CHECK(absent(said([](auto& net, int) { net.register_buffer_hook(sums(before)); }, false), {"broadcast_buffers"}) ==
        "");
  CHECK(absent(said([](auto& net, int) {
                 net.register_buffer_hook(sums(before));
                 net.register_buffer_hook(sums(after));
               }),
               {"expected one hook, got 'sums' where 'sums'"}) == "");
  CHECK(absent(said([](auto& net, int rank) { net.register_buffer_hook(sums(rank == 0 ? before : after)); }),
               {"'sums before the forward' on rank 0, 'sums after the forward' on rank 1"}) == "");
  for (const auto when : {before, after}) {
    const auto failed = said([&](auto& net, int rank) {
      net.register_buffer_hook({"fragile",
                                [rank](std::span<const NamedParameter>, Communicator&) {
                                  if (rank == 1) throw Error("no more");
                                },
                                when});
      sum(net(counting({1, 2}))).backward();
    });
    CHECK(absent(failed, {"buffer hook 'fragile' failed on rank 1: no more"}) == "");
    CHECK(missing(failed[0], {"CommError"}) == "");
    CHECK(failed[1].find("CommError") == std::string::npos);
  }
}
