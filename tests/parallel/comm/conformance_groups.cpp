// Pairs, host messages, splits, and several communicators side by side.
#include <limits>
#include <numeric>

#include "lockstep/runtime/stream/stream.h"
#include "lockstep/tensor/ops/factory.h"
#include "parallel/comm/conformance.h"

namespace conformance {
namespace {

using Doubles = std::vector<double>;

Doubles counting(std::int64_t count, double first) {
  Doubles values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), first);
  return values;
}

}  // namespace

void send_and_receive(const Ranks& ranks) {
  for (const int n : counts(ranks, 2)) {
    expect_all(ranks, n, [](Communicator& comm) -> std::string {
      const int rank = comm.rank(), size = comm.size(), next = (rank + 1) % size, before = (rank + size - 1) % size;
      // Around the ring, in one piece and in several; rank 0 sends first, the others pass on.
      for (const std::int64_t count : {0, 1, 1'001, 70'001}) {
        const Tensor mine = tensor_of(counting(count, 1), DType::f64, comm.device());
        const Tensor got = tensor_of(Doubles(static_cast<std::size_t>(count)), DType::f64, comm.device());
        if (rank == 0) {
          comm.send(mine, next);
          comm.recv(got, before);
        } else {
          comm.recv(got, before);
          comm.send(got, next);
        }
        const std::string wrong = differs(got, counting(count, 1));
        if (!wrong.empty()) return cat("ring, ", count, " elements: ", wrong);
      }
      // In order per pair, whatever happens between others.
      if (rank == 0) {
        for (int round = 0; round < 20; ++round)
          for (int to = size - 1; to > 0; --to)
            comm.send(tensor_of({static_cast<double>(100 * to + round)}, DType::i32, comm.device()), to);
      } else {
        for (int round = 0; round < 20; ++round) {
          const Tensor got = tensor_of({0}, DType::i32, comm.device());
          comm.recv(got, 0);
          const std::string wrong = differs(got, {static_cast<double>(100 * rank + round)});
          if (!wrong.empty()) return cat("round ", round, ": ", wrong);
        }
      }
      // Beside collectives.
      const Tensor x = tensor_of({1}, DType::f32, comm.device());
      comm.all_reduce(x);
      return differs(x, {static_cast<double>(size)});
    });
  }
}

void exchanges(const Ranks& ranks) {
  for (const int n : counts(ranks)) {
    expect_all(ranks, n, [](Communicator& comm) -> std::string {
      const auto message = [](int rank, int round) {
        const std::size_t length = round % 5 == 4 && rank == 0 ? 300'000 : static_cast<std::size_t>(rank * 37 * round);
        std::string text(length, static_cast<char>('a' + rank));
        if (length > 3) text[3] = '\0', text[length - 1] = static_cast<char>(round);
        return text;
      };
      for (int round = 0; round < 25; ++round) {
        const std::vector<std::string> all = comm.all_gather_bytes(message(comm.rank(), round));
        if (all.size() != static_cast<std::size_t>(comm.size())) return cat("got ", all.size(), " messages");
        for (int r = 0; r < comm.size(); ++r)
          if (all[static_cast<std::size_t>(r)] != message(r, round)) return cat("round ", round, ": wrong from ", r);
        const int root = round % comm.size();
        if (comm.broadcast_bytes(cat("from ", comm.rank()), root) != cat("from ", root)) return "wrong broadcast";
        comm.barrier();
        // The hosts' messages do not wait for the devices' work, nor disturb it.
        const Tensor x = tensor_of(Doubles(static_cast<std::size_t>(round), 2), DType::f32, comm.device());
        comm.all_reduce(x, RedOp::product);
        comm.barrier();
        const std::string wrong =
            differs(x, Doubles(static_cast<std::size_t>(round), static_cast<double>(1 << comm.size())));
        if (!wrong.empty()) return wrong;
      }
      return "";
    });
  }
}

void splits(const Ranks& ranks) {
  for (const int n : counts(ranks)) {
    expect_all(ranks, n, [](Communicator& comm) -> std::string {
      const int rank = comm.rank(), size = comm.size();
      // Odd and even ranks, the last ones first.
      const std::unique_ptr<Communicator> half = comm.split(rank % 2, -rank);
      const int members = rank % 2 ? size / 2 : (size + 1) / 2;
      if (half->size() != members) return cat("expected ", members, " members, got ", half->size());
      if (half->rank() != members - 1 - rank / 2) return cat("rank ", rank, " became ", half->rank());
      if (half->device() != comm.device() || std::string(half->backend()) != comm.backend()) return "another kind";
      // The parent's time-out, also one that was set later.
      if (half->timeout() != comm.timeout()) return "another time-out";
      const Milliseconds before = comm.timeout();
      comm.set_timeout(before + Milliseconds(4321 + rank));
      const std::unique_ptr<Communicator> patient = comm.split(0);
      comm.set_timeout(before);
      if (patient->timeout() != before + Milliseconds(4321 + rank)) return "another time-out than the one of then";
      const Tensor x = tensor_of({static_cast<double>(rank)}, DType::i64, comm.device());
      half->all_reduce(x);
      double sum = 0;
      for (int r = rank % 2; r < size; r += 2) sum += r;
      std::string wrong = differs(x, {sum});
      if (!wrong.empty()) return "half: " + wrong;
      // Equal keys: in the order of the ranks. A negative color is left out.
      const std::unique_ptr<Communicator> rest = comm.split(rank == 0 ? -1 : 5);
      if ((rank == 0) != (rest == nullptr)) return "expected rank 0, and no other, to be left out";
      if (rest && (rest->rank() != rank - 1 || rest->size() != size - 1)) return "wrong place in the rest";
      // Splits of splits, twice with one color, and the parent goes on.
      const std::unique_ptr<Communicator> again = half->split(0), once_more = half->split(0);
      for (Communicator* each : {again.get(), once_more.get(), &comm}) {
        const Tensor y = tensor_of({1}, DType::f32, comm.device());
        each->all_reduce(y);
        each->barrier();
        wrong = differs(y, {static_cast<double>(each->size())});
        if (!wrong.empty()) return "again: " + wrong;
      }
      if (rest) rest->barrier();
      // Any number is a key.
      const int lowest = std::numeric_limits<int>::min(), highest = std::numeric_limits<int>::max();
      const std::unique_ptr<Communicator> turned = comm.split(highest, rank == 0 ? highest : lowest + rank);
      if (turned->rank() != (rank + size - 1) % size)
        return cat("rank ", rank, " became ", turned->rank(), " by its key");
      return "";
    });
  }
}

void two_at_once(const Ranks& ranks) {
  for (const int n : counts(ranks, 2)) {
    expect_all(ranks, n, [](Communicator& comm) -> std::string {
      const std::unique_ptr<Communicator> other = comm.split(0, -comm.rank());
      Stream side(comm.device());
      const Tensor x = tensor_of(Doubles(3'000, 1), DType::f64, comm.device());
      const Tensor y = tensor_of(Doubles(3'000, comm.rank()), DType::f64, comm.device());
      side.wait_for(current_stream(comm.device()));
      for (int round = 0; round < 30; ++round) {
        comm.all_reduce(x, RedOp::avg);
        const StreamScope scope(side);
        other->broadcast(y, round % comm.size());
      }
      synchronize(side, kPatience);
      const std::string wrong = differs(x, Doubles(3'000, 1));
      // Rank 0 of the other communicator, whose value it was at first, is the last one of `comm`.
      return wrong.empty() ? differs(y, Doubles(3'000, comm.size() - 1)) : wrong;
    });
  }
}

}  // namespace conformance
