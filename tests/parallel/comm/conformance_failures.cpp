// What goes wrong, and what everybody is told.
#include "lockstep/tensor/ops/factory.h"
#include "parallel/comm/conformance.h"

namespace conformance {
namespace {

Tensor ones_of(Communicator& comm, std::int64_t count, DType dtype = DType::f32) {
  return tensor_of(std::vector<double>(static_cast<std::size_t>(count), 1), dtype, comm.device());
}

struct Difference {
  const char* what;
  std::function<void(Communicator&)> usual, odd;  // odd: the last rank's
  std::string usual_call, odd_call;               // as the message has them
};

std::vector<Difference> differences() {
  return {
      {"kind", [](Communicator& c) { c.all_reduce(ones_of(c, 3)); },
       [](Communicator& c) { c.broadcast(ones_of(c, 3), 0); }, "all_reduce(sum, f32, 3 elements)",
       "broadcast(f32, 3 elements, root 0)"},
      {"count", [](Communicator& c) { c.all_reduce(ones_of(c, 3)); },
       [](Communicator& c) { c.all_reduce(ones_of(c, 1)); }, "all_reduce(sum, f32, 3 elements)",
       "all_reduce(sum, f32, 1 element)"},
      {"large and small", [](Communicator& c) { c.all_reduce(ones_of(c, 300'000)); },
       [](Communicator& c) { c.all_reduce(ones_of(c, 2)); }, "f32, 300000 elements", "f32, 2 elements"},
      {"dtype", [](Communicator& c) { c.all_reduce(ones_of(c, 4)); },
       [](Communicator& c) { c.all_reduce(ones_of(c, 4, DType::i32)); }, "all_reduce(sum, f32, 4 elements)",
       "all_reduce(sum, i32, 4 elements)"},
      {"reduction", [](Communicator& c) { c.all_reduce(ones_of(c, 4)); },
       [](Communicator& c) { c.all_reduce(ones_of(c, 4), RedOp::max); }, "all_reduce(sum, f32, 4 elements)",
       "all_reduce(max, f32, 4 elements)"},
      {"root", [](Communicator& c) { c.broadcast(ones_of(c, 4), 0); },
       [](Communicator& c) { c.broadcast(ones_of(c, 4), 1); }, "broadcast(f32, 4 elements, root 0)",
       "broadcast(f32, 4 elements, root 1)"},
  };
}

}  // namespace

void wrong_arguments(const Ranks& ranks) {
  for (const int n : counts(ranks)) {
    expect_all(ranks, n, [](Communicator& comm) -> std::string {
      const Tensor x = ones_of(comm, 12 * comm.size()), elsewhere = tensor_of({1}, DType::f32, Device::cpu());
      for (const std::string& wrong : {
               refused({"[all_reduce]", "defined"}, [&] { comm.all_reduce(Tensor()); }),
               refused({"[all_reduce]", "cpu"}, [&] { comm.all_reduce(elsewhere); }),
               refused({"[all_reduce]", "contiguous"},
                       [&] {
                         comm.all_reduce(x.reshape({2, -1}).t());
                       }),
               refused({"[all_reduce]", "dtype"}, [&] { comm.all_reduce(x, ones_of(comm, x.count(), DType::i32)); }),
               refused({"[all_reduce]", "avg", "i64"},
                       [&] { comm.all_reduce(ones_of(comm, 2, DType::i64), RedOp::avg); }),
               refused({"[all_reduce]", "avg", "bool"},
                       [&] { comm.all_reduce(ones_of(comm, 2, DType::boolean), RedOp::avg); }),
               refused({"[all_reduce]", "apart"}, [&] { comm.all_reduce(x.narrow(0, 0, 2), x.narrow(0, 1, 2)); }),
               refused({"[broadcast]", "got 9"}, [&] { comm.broadcast(x, 9); }),
               refused({"[all_gather]", "times"}, [&] { comm.all_gather(x, ones_of(comm, x.count() + 1)); }),
               refused({"[reduce_scatter]", "times"}, [&] { comm.reduce_scatter(x, ones_of(comm, 5)); }),
               refused({"[all_to_all]", "apart"}, [&] { comm.all_to_all(x, x); }),
               refused({"[send]", "another rank"}, [&] { comm.send(x, comm.rank()); }),
               refused({"[broadcast_bytes]", "got -1"}, [&] { comm.broadcast_bytes("", -1); }),
           })
        if (!wrong.empty()) return wrong;
      // Nothing has happened: the next collective is right.
      if (comm.broken()) return "broken";
      comm.all_reduce(x);
      return differs(x, std::vector<double>(static_cast<std::size_t>(x.count()), comm.size()));
    });
  }
}

void disagreements(const Ranks& ranks) {
  if (!ranks.compares) return;
  for (const int n : counts(ranks, 2)) {
    for (const Difference& difference : differences()) {
      for (const int odd : {n - 1, 0}) {
        expect_all(ranks, n, [&](Communicator& comm) -> std::string {
          const Tensor x = ones_of(comm, 2);
          comm.all_reduce(x);  // number 1
          const std::string wrong =
              comm_error(comm, {difference.usual_call, difference.odd_call, "number 2", "rank 0", "rank "},
                         [&] { comm.rank() == odd ? difference.odd(comm) : difference.usual(comm); });
          if (!wrong.empty()) return cat(difference.what, ": ", wrong);
          if (!comm.broken()) return "expected it to be broken";
          const int named = n > 2 ? odd : 1;  // of two, nobody is the odd one
          if (comm.failure()->rank != named)
            return cat("expected rank ", named, " to be named, got ", comm.failure()->rank);
          return "";
        });
      }
    }
  }
}

void disagreeing_pairs(const Ranks& ranks) {
  if (!ranks.compares) return;
  for (const int n : counts(ranks, 2)) {
    expect_all(ranks, n, [](Communicator& comm) -> std::string {
      // The others hear of it where they wait for all.
      return comm_error(
          comm, {"send(f32, 3 elements)", "recv(f32, 4 elements)", "rank 0", "rank 1", "number 1"},
          [&] {
            if (comm.rank() == 0) comm.send(ones_of(comm, 3), 1);
            if (comm.rank() == 1) comm.recv(ones_of(comm, 4), 0);
            comm.all_reduce(ones_of(comm, 1));
          },
          1);
    });
  }
}

void aborts(const Ranks& ranks) {
  for (const int n : counts(ranks, 2)) {
    for (const bool host : {false, true}) {
      expect_all(ranks, n, [&](Communicator& comm) -> std::string {
        const int last = comm.size() - 1;
        if (comm.rank() == last) {
          comm.all_reduce(ones_of(comm, 2));
          comm.abort("out of ideas");
          if (!comm.broken()) return "expected it to be broken";
          return comm_error(comm, {"out of ideas", cat("rank ", last)}, [&] { comm.all_reduce(ones_of(comm, 2)); });
        }
        // The abort may come while this rank is still in the first call, which the last one has left.
        const std::string wrong = comm_error(comm, {"out of ideas", cat("rank ", last)}, [&] {
          comm.all_reduce(ones_of(comm, 2));
          host ? comm.barrier() : comm.all_reduce(ones_of(comm, 2));
        });
        if (!wrong.empty()) return wrong;
        if (!comm.broken() || !comm.failure()) return "expected who is told to find it broken";
        const std::string collective = comm.failure()->collective;
        if (collective == "all_reduce" || (host && collective == "exchange") || !ranks.hears_in_calls) return "";
        return cat("expected the error to name the collective that this rank was in, got ", collective);
      });
    }
  }
}

void leaving(const Ranks& ranks) {
  if (!ranks.notices_leaving) return;
  for (const int n : counts(ranks, 2)) {
    for (const bool host : {false, true}) {
      expect_all(ranks, n, [&](Communicator& comm) -> std::string {
        const Tensor x = ones_of(comm, 2);
        const int last = comm.size() - 1;
        if (comm.rank() == last) {
          comm.all_reduce(x);
          return differs(x, {comm.size() + 0.0, comm.size() + 0.0});
        }
        // A third rank's word of it may come while this one is still in the first call, which the last one has left.
        return comm_error(comm, {cat("rank ", last), "left"}, [&] {
          comm.all_reduce(x);
          host ? comm.barrier() : comm.all_reduce(ones_of(comm, 2));
        });
      });
    }
  }
}

void deadlines(const Ranks& ranks) {
  for (const int n : counts(ranks, 2)) {
    for (const bool host : {false, true}) {
      expect_all(ranks, n, [&](Communicator& comm) -> std::string {
        // On another communicator the missing rank stays until the others have given up.
        const std::unique_ptr<Communicator> side = comm.split(0);
        const int last = comm.size() - 1;
        std::string wrong;
        if (comm.rank() != last) {
          comm.set_timeout(Milliseconds(100));
          const std::string who = ranks.names_missing ? cat("rank ", last) : "";
          wrong = comm_error(comm, {who, "100 ms"}, [&] { host ? comm.barrier() : comm.all_reduce(ones_of(comm, 2)); });
        }
        side->barrier();
        if (comm.rank() == last)
          wrong = comm_error(comm, {"100 ms"}, [&] { host ? comm.barrier() : comm.all_reduce(ones_of(comm, 2)); });
        side->barrier();
        return wrong;
      });
    }
  }
}

void all_missing(const Ranks& ranks) {
  if (!ranks.names_missing) return;
  for (const int n : counts(ranks, 3)) {
    expect_all(ranks, n, [&](Communicator& comm) -> std::string {
      // Rank 0 alone comes; the others stay until it has been told.
      const std::unique_ptr<Communicator> side = comm.split(0);
      std::string wrong;
      if (comm.rank() == 0) {
        comm.set_timeout(Milliseconds(100));
        wrong = comm_error(comm, {"100 ms"}, [&] { comm.barrier(); });
        for (int r = 1; r < comm.size() && wrong.empty(); ++r)
          wrong = missing(comm.failure()->what(), {cat("rank ", r)});
      }
      side->barrier();
      return wrong;
    });
  }
}

void after_a_failure(const Ranks& ranks) {
  for (const int n : counts(ranks, 2)) {
    expect_all(ranks, n, [](Communicator& comm) -> std::string {
      const std::unique_ptr<Communicator> next = comm.split(0);
      if (comm.rank() == 0) comm.abort("enough");
      std::string wrong = comm_error(comm, {"enough"}, [&] { comm.all_reduce(ones_of(comm, 2)); });
      if (!wrong.empty()) return wrong;
      // Every kind of call throws the first error.
      const std::string first = comm.failure()->what();
      const Tensor x = ones_of(comm, comm.size());
      const int other = comm.rank() == 0 ? 1 : 0;
      const std::function<void()> calls[] = {[&] { comm.all_reduce(x); },  [&] { comm.broadcast(x, 0); },
                                             [&] { comm.send(x, other); }, [&] { comm.recv(x, other); },
                                             [&] { comm.barrier(); },      [&] { comm.split(0); },
                                             [&] { comm.check(); }};
      comm.abort("again");
      for (const auto& call : calls) {
        wrong = comm_error(comm, {first}, call);
        if (!wrong.empty()) return wrong;
      }
      next->all_reduce(x);
      return differs(x, std::vector<double>(static_cast<std::size_t>(comm.size()), comm.size()));
    });
  }
}

}  // namespace conformance
