// Uneven parts, batches of sends and receives, and several tensors in one call.
#include <algorithm>

#include "parallel/comm/conformance.h"

namespace conformance {
namespace {

using Doubles = std::vector<double>;
using Counts = std::vector<std::int64_t>;

Doubles zeros_of(std::int64_t count) { return Doubles(static_cast<std::size_t>(count)); }

// What rank `source` has for rank `destination`: no two messages are alike.
Doubles message(int source, int destination, std::int64_t count, int round = 0) {
  Doubles values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<double>(i % 97) + 100 * source + 1'000 * destination + 10'000 * round;
  return values;
}

// Some are 0, and none is that of the other direction.
std::int64_t uneven(int source, int destination, std::int64_t scale) {
  return (3 * source + 5 * destination + 2) % 7 * scale;
}

}  // namespace

void uneven_all_to_all(const Ranks& ranks) {
  for (const int n : counts(ranks)) {
    expect_all(ranks, n, [](Communicator& comm) -> std::string {
      const int rank = comm.rank(), size = comm.size();
      for (const DType dtype : {DType::f64, DType::i32}) {
        for (const std::int64_t scale : {0, 1, 3'001}) {
          Doubles sent, expected;
          Counts sent_counts, received_counts;
          for (int r = 0; r < size; ++r) {
            sent_counts.push_back(uneven(rank, r, scale));
            received_counts.push_back(uneven(r, rank, scale));
            const Doubles to = message(rank, r, sent_counts.back()), from = message(r, rank, received_counts.back());
            sent.insert(sent.end(), to.begin(), to.end());
            expected.insert(expected.end(), from.begin(), from.end());
          }
          const Tensor input = tensor_of(sent, dtype, comm.device());
          const Tensor output = tensor_of(zeros_of(static_cast<std::int64_t>(expected.size())), dtype, comm.device());
          comm.all_to_all(input, sent_counts, output, received_counts);
          const std::string wrong = differs(output, expected);
          if (!wrong.empty()) return cat("scale ", scale, ": ", wrong);
        }
      }
      // Refused before anything is enqueued: the next call is right.
      const Tensor x = tensor_of(zeros_of(size), DType::f32, comm.device()), y = x.clone();
      Counts ones(static_cast<std::size_t>(size), 1), more = ones, negative = ones;
      more.back() = 2;
      negative.back() = -1;
      for (const std::string& wrong : {
               refused({"[all_to_all]", "each of"}, [&] { comm.all_to_all(x, Counts{}, y, ones); }),
               refused({"[all_to_all]", "input", "sum", cat(size)},
                       [&] { comm.all_to_all(x, Counts(static_cast<std::size_t>(size), 0), y, ones); }),
               refused({"[all_to_all]", "output"}, [&] { comm.all_to_all(x, ones, y, more); }),
               refused({"[all_to_all]", "-1"}, [&] { comm.all_to_all(x, ones, y, negative); }),
               refused({"[all_to_all]", "apart"}, [&] { comm.all_to_all(x, ones, x, ones); }),
           })
        if (!wrong.empty()) return wrong;
      comm.all_to_all(x, ones, y, ones);
      return differs(y, zeros_of(size));
    });
  }
  if (!ranks.compares) return;
  for (const int n : counts(ranks, 2)) {
    for (const std::int64_t sent : {3, 0}) {
      expect_all(ranks, n, [sent](Communicator& comm) -> std::string {
        // Rank 1 sends to rank 0 what that does not expect; all hear of it.
        Counts to(static_cast<std::size_t>(comm.size()), 2), from = to;
        if (comm.rank() == 1) to[0] = sent;
        if (comm.rank() == 0) from[1] = 4;
        const std::int64_t inputs = 2 * comm.size() + (comm.rank() == 1 ? sent - 2 : 0);
        const std::int64_t outputs = 2 * comm.size() + (comm.rank() == 0 ? 2 : 0);
        const Tensor input = tensor_of(zeros_of(inputs), DType::f32, comm.device());
        const Tensor output = tensor_of(zeros_of(outputs), DType::f32, comm.device());
        const std::string call = cat("send(f32, ", sent, " elements)");
        const auto calls = [&] {
          comm.all_to_all(input, to, output, from);
          comm.all_reduce(tensor_of({1}, DType::f32, comm.device()));  // for ranks that have what they wanted
        };
        return comm_error(comm, {call, "recv(f32, 4 elements)", "rank 0", "rank 1"}, calls, 1);
      });
    }
  }
}

void batches(const Ranks& ranks) {
  for (const int n : counts(ranks)) {
    expect_all(ranks, n, [](Communicator& comm) -> std::string {
      const int rank = comm.rank(), size = comm.size();
      const auto of = [&](const Doubles& values) { return tensor_of(values, DType::f64, comm.device()); };
      // Everybody with everybody, two messages in each direction, each rank in an order of its own.
      for (const std::int64_t count : {0, 1, 2'003, 40'001}) {
        std::vector<Transfer> sends, receives;
        std::vector<Doubles> expected;
        for (int step = 1; step < size; ++step) {
          const int other = (rank + step) % size;
          for (const int round : {0, 1}) {
            sends.push_back(Transfer::to(other, of(message(rank, other, count + round, round))));
            receives.push_back(Transfer::from(other, of(zeros_of(count + round))));
            expected.push_back(message(other, rank, count + round, round));
          }
        }
        std::vector<Transfer> all = rank % 2 ? receives : sends;
        const std::vector<Transfer>& rest = rank % 2 ? sends : receives;
        all.insert(all.end(), rest.begin(), rest.end());
        comm.transfer(all);
        for (std::size_t i = 0; i < receives.size(); ++i) {
          const std::string wrong = differs(receives[i].tensor, expected[i]);
          if (!wrong.empty()) return cat(count, " elements from rank ", receives[i].peer, ": ", wrong);
        }
      }
      // The other side need not have a batch, and may have its calls in either order.
      for (const bool receives_first : {false, true}) {
        if (size == 1 || rank > 1) break;
        const Tensor got = of(zeros_of(30'000)), mine = of(message(rank, 1 - rank, 30'000));
        if (rank == 0) {
          comm.transfer(std::vector{Transfer::to(1, mine), Transfer::from(1, got)});
        } else if (receives_first) {
          comm.recv(got, 0);
          comm.send(mine, 0);
        } else {
          comm.send(mine, 0);
          comm.recv(got, 0);
        }
        const std::string wrong = differs(got, message(1 - rank, rank, 30'000));
        if (!wrong.empty()) return cat("no batch: ", wrong);
      }
      // Nor need several others have one: in a circle, of which rank 0 does both halves at once.
      if (size > 2) {
        const Tensor got = of(zeros_of(100)), mine = of(message(0, 1, 100));
        const int next = (rank + 1) % size, before = (rank + size - 1) % size;
        if (rank == 0) {
          comm.transfer(std::vector{Transfer::from(before, got), Transfer::to(next, mine)});
        } else {
          comm.recv(got, before);
          comm.send(got, next);
        }
        const std::string wrong = differs(got, message(0, 1, 100));
        if (!wrong.empty()) return cat("circle: ", wrong);
      }
      comm.transfer({});
      const Tensor x = of({1, 2, 3});
      const int other = (rank + 1) % size;
      for (const std::string& wrong : {
               refused({"[transfer]", "tensor 0 of 1", cat("got ", rank)},
                       [&] { comm.transfer(std::vector{Transfer::to(rank, x)}); }),
               refused({"[transfer]", "got 9"}, [&] { comm.transfer(std::vector{Transfer::from(9, x)}); }),
               refused({"[transfer]", "defined"}, [&] { comm.transfer(std::vector{Transfer::from(other, Tensor())}); }),
               size == 1 ? ""
                         : refused({"[transfer]", "tensor 0 of 2 and tensor 1 of 2"},
                                   [&] {
                                     comm.transfer(std::vector{Transfer::to(other, x), Transfer::from(other, x)});
                                   }),
           })
        if (!wrong.empty()) return wrong;
      comm.all_reduce(x);
      return differs(x, {1.0 * size, 2.0 * size, 3.0 * size});
    });
  }
  if (!ranks.compares) return;
  for (const int n : counts(ranks, 2)) {
    expect_all(ranks, n, [](Communicator& comm) -> std::string {
      // What ranks 0 and 1 send each other does not fit; what they send the others does.
      const int rank = comm.rank(), size = comm.size();
      const auto some = [&](std::int64_t count) { return tensor_of(zeros_of(count), DType::f32, comm.device()); };
      std::vector<Transfer> transfers;
      for (int step = 1; step < size; ++step) {
        const int other = (rank + step) % size;
        const bool pair = rank + other == 1;
        transfers.push_back(Transfer::to(other, some(pair && rank == 1 ? 4 : 3)));
        transfers.push_back(Transfer::from(other, some(pair && rank == 0 ? 5 : 3)));
      }
      const auto calls = [&] {
        comm.transfer(transfers);
        comm.all_reduce(some(1));
      };
      return comm_error(comm, {"send(f32, 4 elements)", "recv(f32, 5 elements)", "rank 0", "rank 1"}, calls, 1);
    });
  }
}

void several_tensors(const Ranks& ranks) {
  for (const int n : counts(ranks)) {
    expect_all(ranks, n, [](Communicator& comm) -> std::string {
      const int rank = comm.rank(), size = comm.size();
      const double sum = size * (size + 1) / 2.0;
      const auto list = [&](int first) {
        return std::vector<Tensor>{tensor_of({first + 0.0, 2.0 * first}, DType::f32, comm.device()),
                                   tensor_of({}, DType::f64, comm.device()),
                                   tensor_of({3.0 * first}, DType::i64, comm.device()),
                                   tensor_of({1.0 * (rank == 0), 0, 1}, DType::boolean, comm.device())};
      };
      const auto check = [&](const char* what, const std::vector<Tensor>& got,
                             const std::vector<Doubles>& expected) -> std::string {
        for (std::size_t i = 0; i < got.size(); ++i) {
          const std::string wrong = differs(got[i], expected[i]);
          if (!wrong.empty()) return cat(what, ", tensor ", i, ": ", wrong);
        }
        return "";
      };
      std::vector<Tensor> tensors = list(rank + 1);
      comm.all_reduce(tensors);
      std::string wrong = check("all_reduce", tensors, {{sum, 2 * sum}, {}, {3 * sum}, {1, 0, 1}});
      if (!wrong.empty()) return wrong;
      tensors = list(rank + 1);
      comm.all_reduce(tensors, RedOp::min);
      wrong = check("min", tensors, {{1, 2}, {}, {3}, {1.0 * (size == 1), 0, 1}});
      if (!wrong.empty()) return wrong;
      tensors = list(rank + 1);
      comm.broadcast(tensors, size - 1);
      const double last = size;
      wrong = check("broadcast", tensors, {{last, 2 * last}, {}, {3 * last}, {1.0 * (size == 1), 0, 1}});
      if (!wrong.empty()) return wrong;
      std::vector<Tensor> inputs = list(rank + 1), outputs;
      std::vector<Doubles> expected(4);
      for (const Tensor& input : inputs)
        outputs.push_back(tensor_of(zeros_of(size * input.count()), input.dtype(), comm.device()));
      for (int r = 0; r < size; ++r) {
        const double own = r + 1;
        for (const double value : {own, 2 * own}) expected[0].push_back(value);
        expected[2].push_back(3 * own);
        for (const double value : {1.0 * (r == 0), 0.0, 1.0}) expected[3].push_back(value);
      }
      comm.all_gather(inputs, outputs);
      wrong = check("all_gather", outputs, expected);
      if (!wrong.empty()) return wrong;
      // All are looked at before any is enqueued.
      tensors = {tensor_of({1}, DType::f32, comm.device()), tensor_of({1}, DType::f32, Device::cpu())};
      const std::vector<Tensor> mixed = {tensors[0], tensor_of({1}, DType::i32, comm.device())};
      for (const std::string& refusal : {
               refused({"[all_reduce]", "tensor 1 of 2", "cpu"}, [&] { comm.all_reduce(tensors); }),
               refused({"[all_reduce]", "tensor 1 of 2", "avg"}, [&] { comm.all_reduce(mixed, RedOp::avg); }),
               refused({"[broadcast]", "tensor 1 of 2"}, [&] { comm.broadcast(tensors, 0); }),
               refused({"[all_reduce]", "at least one"}, [&] { comm.all_reduce(std::vector<Tensor>{}); }),
               refused({"tensor 1 of 2", "dtype"},
                       [&] {
                         comm.all_gather(mixed, std::vector{tensor_of(zeros_of(size), DType::f32, comm.device()),
                                                            tensor_of(zeros_of(size), DType::f32, comm.device())});
                       }),
           })
        if (!refusal.empty()) return refusal;
      comm.all_reduce(tensors[0]);
      return differs(tensors[0], {1.0 * size});
    });
  }
}

void disagreeing_lists(const Ranks& ranks) {
  if (!ranks.compares) return;
  for (const int n : counts(ranks, 2)) {
    expect_all(ranks, n, [](Communicator& comm) -> std::string {
      const auto one = [&] { return tensor_of({1, 2}, DType::f32, comm.device()); };
      const std::vector<Tensor> two = {one(), one()}, three = {one(), one(), one()};
      return comm_error(
          comm, {"tensor 0 of 3", "tensor 0 of 2", "rank 0", cat("rank ", comm.size() - 1)},
          [&] { comm.all_reduce(comm.rank() == comm.size() - 1 ? two : three); }, comm.size() - 1);
    });
    expect_all(ranks, n, [](Communicator& comm) -> std::string {
      const DType dtype = comm.rank() == comm.size() - 1 ? DType::i32 : DType::f32;
      const std::vector<Tensor> list = {tensor_of({1}, DType::f64, comm.device()),
                                        tensor_of({1, 2}, dtype, comm.device())};
      return comm_error(
          comm, {"f32", "i32", "tensor 1 of 2"}, [&] { comm.broadcast(list, 0); }, comm.size() - 1);
    });
  }
}

}  // namespace conformance
