// Ranks that go on without some of them.
#include "parallel/comm/conformance.h"

namespace conformance {
namespace {

// Nobody waits that long: who is gone must be noticed.
constexpr Milliseconds kForEver{3'600'000};

Tensor one_of(Communicator& comm) { return tensor_of({1}, DType::f32, comm.device()); }

// "" when `made` has these ranks and works.
std::string wrong_with(Communicator& made, const Communicator& from, int rank, int size) {
  if (made.rank() != rank || made.size() != size)
    return cat("expected rank ", rank, " of ", size, ", got ", made.rank(), " of ", made.size());
  if (std::string(made.backend()) != from.backend() || made.device() != from.device()) return "another kind";
  if (made.timeout() != from.timeout()) return "another time-out";
  const Tensor x = tensor_of({made.rank() + 1.0}, DType::i64, made.device());
  made.all_reduce(x);
  made.barrier();
  return differs(x, {size * (size + 1) / 2.0});
}

std::string not_supported(Communicator& comm) {
  try {
    comm.shrink();
  } catch (const NotSupported& error) {
    return missing(error.what(), {"[shrink]", "MPI", "start it again"});
  } catch (const std::exception& error) {
    return cat("not a NotSupported: ", error.what());
  }
  return "expected a NotSupported, got none";
}

// "" when this rank is not among those that go on.
std::string left_out(Communicator& comm) {
  return comm_error(comm, {"[shrink]", cat("rank ", comm.rank(), " was left out")}, [&] { comm.shrink(); });
}

}  // namespace

void shrinks(const Ranks& ranks) {
  for (const int n : counts(ranks)) {
    if (!ranks.shrinks) {
      expect_all(ranks, n, [](Communicator& comm) { return not_supported(comm); });
      continue;
    }
    for (const bool first_leaves : {true, false}) {
      if (n == 1) continue;
      expect_all(ranks, n, [first_leaves](Communicator& comm) -> std::string {
        const int leaver = first_leaves ? 0 : comm.size() - 1, size = comm.size() - 1;
        const int rank = comm.rank() - (first_leaves ? 1 : 0);
        comm.barrier();
        if (comm.rank() == leaver) {
          comm.abort("out of ideas");
          return "";
        }
        std::string wrong = comm_error(comm, {"out of ideas"}, [&] { comm.all_reduce(one_of(comm)); });
        if (!wrong.empty()) return wrong;
        std::unique_ptr<Communicator> made = comm.shrink({.timeout = kForEver});
        wrong = wrong_with(*made, comm, rank, size);
        if (!wrong.empty()) return wrong;
        if (!comm.broken()) return "expected the first communicator to stay broken";
        // And again, from what is left, by a rank that just goes.
        if (made->rank() == size - 1 && size > 1) return "";
        if (size > 1) {
          const std::unique_ptr<Communicator> last = made->shrink({.timeout = kForEver});
          return wrong_with(*last, comm, rank, size - 1);
        }
        // Alone: the same communicator once more.
        return wrong_with(*comm.shrink({.timeout = kForEver}), comm, 0, 1);
      });
    }
  }
}

void shrinks_without_failure(const Ranks& ranks) {
  if (!ranks.shrinks) return;
  for (const int n : counts(ranks)) {
    expect_all(ranks, n, [](Communicator& comm) -> std::string {
      // Everybody comes.
      const std::unique_ptr<Communicator> all = comm.shrink({.timeout = kForEver});
      std::string wrong = wrong_with(*all, comm, comm.rank(), comm.size());
      if (!wrong.empty() || comm.size() == 1) return wrong;
      // Rank 0 is excluded by rank 1, and comes too; all but it go on.
      const std::vector<int> out = comm.rank() == 1 ? std::vector<int>{0} : std::vector<int>{};
      if (comm.rank() == 0) {
        wrong = left_out(*all);
      } else {
        const std::unique_ptr<Communicator> made = all->shrink({.exclude = out, .timeout = kForEver});
        wrong = wrong_with(*made, comm, comm.rank() - 1, comm.size() - 1);
      }
      if (!wrong.empty()) return wrong;
      // Rank 1 is late: rank 0 goes on after the deadline, and it is told, however often it asks. Of two ranks, since
      // of more one that is slow would be late as well.
      if (comm.size() > 2) return "";
      comm.barrier();
      const int last = comm.size() - 1;
      if (comm.rank() != last) {
        const std::unique_ptr<Communicator> made = comm.shrink({.timeout = Milliseconds(50)});
        wrong = wrong_with(*made, comm, comm.rank(), last);
      }
      comm.barrier();
      if (comm.rank() == last) wrong = left_out(comm) + left_out(comm);
      if (!wrong.empty()) return wrong;
      // Nobody need wait for it any more; and the first communicator works as ever.
      if (comm.rank() != last) wrong = wrong_with(*comm.shrink({.timeout = kForEver}), comm, comm.rank(), last);
      const Tensor x = one_of(comm);
      comm.all_reduce(x);
      return wrong + differs(x, {comm.size() + 0.0});
    });
  }
}

}  // namespace conformance
