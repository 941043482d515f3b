// Joins over joinables of one's own: who is active in which step, what ends it, and what is refused.
#include "lockstep/parallel/join/join.h"

#include "parallel/ddp/support.h"

using namespace parallel_test;

namespace {

// How many steps each of `ranks` ranks has.
std::vector<std::vector<int>> uneven(int ranks) {
  std::vector<std::vector<int>> all;
  std::vector<int> even, by_one, many, zero_first, last_only;
  for (int r = 0; r < ranks; ++r) {
    even.push_back(3);
    by_one.push_back(r == 0 ? 2 : 3);
    many.push_back(1 + 5 * ((r + 1) % ranks));
    zero_first.push_back(r == 0 ? 0 : 4 - r % 2);
    last_only.push_back(r == ranks - 1 ? 4 : 0);
  }
  return {even, by_one, many, zero_first, last_only, std::vector<int>(static_cast<std::size_t>(ranks), 0)};
}

// Adds numbers up over the ranks that have one.
class Adder : public Joinable {
 public:
  explicit Adder(Communicator& communicator) : communicator_(communicator) {}
  Communicator& communicator() const override { return communicator_; }
  // The sum, then the turn.
  Doubles add(double value) {
    const JoinTurn turn = announce("add");
    return {exchange_sum(value), double(turn.active), double(turn.divisor), double(turn.root)};
  }
  // Another step of the same joinable.
  double speak(double value) {
    const JoinTurn turn = announce("speak up");
    return said_by(turn.root, value);
  }
  void shadow(std::string_view step, const JoinTurn& turn) override {
    ++shadowed;
    if (step == "add") {
      exchange_sum(0);
    } else if (step == "speak up") {
      said_by(turn.root, -1);
    } else {
      throw Error(cat("another step: ", step));
    }
  }
  void take_over(int root) override { taken_over.push_back(root); }
  using Joinable::joined;

  int shadowed = 0;
  std::vector<int> taken_over;

 private:
  double exchange_sum(double value) {
    const Tensor x = tensor(Doubles{value}, {1}, communicator_.device());
    communicator_.all_reduce(x);
    return values(x)[0];
  }
  double said_by(int root, double value) {
    const Tensor x = tensor(Doubles{value}, {1}, communicator_.device());
    communicator_.broadcast(x, root);
    return values(x)[0];
  }
  Communicator& communicator_;
};

// Of each rank: "" or what its join threw. CommErrors and errors by their kinds.
std::vector<std::string> joins(int ranks, const std::function<void(Communicator&, Adder&, Adder&)>& body) {
  return messages_of_ranks(ranks, [&](Communicator& communicator) {
    Adder first(communicator), second(communicator);
    body(communicator, first, second);
  });
}

}  // namespace

TEST_CASE("join: ranks that have run out shadow what the others announce") {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const std::vector<int>& steps : uneven(ranks)) {
      for (const bool initial : {true, false}) {
        const int most = *std::max_element(steps.begin(), steps.end());
        const auto result = run_ranks(ranks, [&](Communicator& communicator) {
          Adder adder(communicator), other(communicator);
          std::vector<Doubles> seen;
          join({adder, other}, {.divide_by_initial_world_size = initial}, [&] {
            for (int i = 0; i < steps[static_cast<std::size_t>(communicator.rank())]; ++i) {
              Doubles step = adder.add(100 * i + communicator.rank() + 1);
              step.push_back(other.speak(communicator.rank()));
              if (i % 2 == 0) step.push_back(adder.speak(10 + communicator.rank()));
              seen.push_back(step);
            }
          });
          const auto& roots = adder.taken_over;
          seen.push_back({double(adder.shadowed), double(other.shadowed), double(roots.size()), double(roots.at(0)),
                          double(other.taken_over.at(0)), double(adder.joined())});
          return seen;
        });
        int last_root = ranks - 1;
        std::vector<Doubles> all_steps;
        for (int i = 0; i < most; ++i) {
          double sum = 0;
          int active = 0, root = -1;
          for (int r = 0; r < ranks; ++r) {
            if (steps[static_cast<std::size_t>(r)] <= i) continue;
            sum += 100 * i + r + 1;
            ++active;
            root = r;
          }
          all_steps.push_back({sum, double(active), double(initial ? ranks : active), double(root), double(root)});
          if (i % 2 == 0) all_steps.back().push_back(10 + root);
          last_root = root;
        }
        for (int r = 0; r < ranks; ++r) {
          const int mine = steps[static_cast<std::size_t>(r)];
          std::vector<Doubles> wanted(all_steps.begin(), all_steps.begin() + mine);
          const int missed = most - mine, spoken = (most + 1) / 2 - (mine + 1) / 2;
          wanted.push_back({double(missed + spoken), double(missed), 1, double(last_root), double(last_root), 0});
          CHECK(result[static_cast<std::size_t>(r)] == wanted);
        }
      }
    }
  }
}

TEST_CASE("join: outside, and where it is not enabled, nothing is exchanged") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    Adder adder(communicator);
    Doubles all = adder.add(1);
    join({adder}, {.enable = false}, [&] {
      for (const double x : adder.add(2)) all.push_back(x);
      all.push_back(adder.joined());
    });
    all.push_back(static_cast<double>(adder.taken_over.size()));
    // A rank alone may enter and leave: nobody waits for it.
    if (communicator.rank() == 0) join({adder}, {.enable = false}, [] {});
    return all;
  });
  for (const Doubles& rank : result) CHECK(rank == Doubles{2, 2, 2, 0, 4, 2, 2, 0, 0, 0});
}

TEST_CASE("join: the first rank that runs out ends it for all, where that is asked for") {
  for (const bool caught_inside : {false, true}) {
    const auto result = run_ranks(3, [&](Communicator& communicator) {
      Adder adder(communicator);
      Doubles seen;
      std::string message;
      std::vector<int> out;
      const auto body = [&] {
        for (int i = 0; i < (communicator.rank() == 1 ? 2 : 5); ++i) {
          try {
            seen.push_back(adder.add(1)[0]);
          } catch (const InputsExhausted&) {
            if (!caught_inside) throw;
            seen.push_back(-1);
          }
        }
      };
      try {
        join({adder}, {.throw_on_early_termination = true}, body);
      } catch (const InputsExhausted& error) {
        message = error.what();
        out = error.ranks;
      }
      // The communicator is whole.
      seen.push_back(adder.add(7)[0]);
      seen.push_back(out == std::vector<int>{1});
      seen.push_back(missing(message, {"[join]", "rank 1 has run out", "3 ranks"}).empty());
      seen.push_back(static_cast<double>(adder.taken_over.size()));
      return seen;
    });
    const Doubles end{21, 1, 1, 0};
    for (int r = 0; r < 3; ++r) {
      Doubles wanted{3, 3};
      if (caught_inside && r != 1) wanted.insert(wanted.end(), {-1, -1, -1});
      wanted.insert(wanted.end(), end.begin(), end.end());
      CHECK(result[static_cast<std::size_t>(r)] == wanted);
    }
  }
  // All at once is no early end.
  const auto even = run_ranks(2, [](Communicator& communicator) {
    Adder adder(communicator);
    join({adder}, {.throw_on_early_termination = true}, [&] { adder.add(1); });
    return adder.taken_over.size();
  });
  CHECK(even == std::vector<std::size_t>{1, 1});
}

TEST_CASE("join: a rank that leaves with an exception is named on the others") {
  for (const bool others_wait : {false, true}) {
    const auto said = joins(3, [&](Communicator& communicator, Adder& adder, Adder&) {
      join({adder}, [&] {
        const int steps = others_wait && communicator.rank() != 1 ? 1 : 4;  // they shadow, or they announce
        for (int i = 0; i < steps; ++i) {
          if (i == 2 && communicator.rank() == 1) throw std::out_of_range("no such row");
          adder.add(1);
        }
      });
    });
    CHECK(said[1] == "no such row");
    for (const std::size_t other : {0u, 2u}) CHECK(missing(said[other], {"CommError", "rank 1", "no such row"}) == "");
  }
}

TEST_CASE("join: what it refuses, it refuses on every rank") {
  const auto count = [](const std::vector<std::string>& said, std::initializer_list<std::string> parts) {
    int with = 0;
    for (const std::string& message : said) with += missing(message, parts).empty();
    return with;
  };
  CHECK(count(joins(2, [](Communicator&, Adder&, Adder&) { join({}, [] {}); }), {"[join]", "at least one"}) == 2);
  CHECK(count(joins(2, [](Communicator&, Adder& a, Adder&) { join({a, a}, [] {}); }), {"number 0 and 1"}) == 2);
  CHECK(count(joins(2, [](Communicator&, Adder& a, Adder&) { join({a}, [&] { join({a}, [] {}); }); }),
              {"joinable 0 is in one"}) == 2);
  for (const bool one_rank : {false, true}) {
    const auto said = joins(3, [&](Communicator& communicator, Adder& a, Adder& b) {
      const auto part = communicator.split(0);
      Adder c(*part);
      join({a, one_rank && communicator.rank() != 1 ? b : c}, [] {});
    });
    CHECK(count(said, {"joinables of one communicator", "joinable 1"}) == 3);
    CHECK(count(said, {"rank 1: "}) == (one_rank ? 2 : 0));
  }
  const auto differ = [&](const std::function<void(Communicator&, Adder&, Adder&)>& body,
                          std::initializer_list<std::string> parts) { return count(joins(2, body), parts); };
  CHECK(differ(
            [](Communicator& c, Adder& a, Adder& b) {
              if (c.rank() == 0) return join({a, b}, [] {});
              join({a}, [] {});
            },
            {"1 joinables", "2 joinables"}) == 2);
  CHECK(differ([](Communicator& c, Adder& a,
                  Adder&) { join({a}, {.divide_by_initial_world_size = c.rank() == 0}, [] {}); },
               {"initial", "current", "rank 0", "rank 1"}) == 2);
  // Other steps, another joinable, and a join within one that another rank has left.
  CHECK(differ([](Communicator& c, Adder& a, Adder&) { join({a}, [&] { c.rank() == 0 ? a.speak(1) : a.add(1)[0]; }); },
               {"rank 0 announces 'speak up' of joinable 0", "rank 1 announces 'add' of joinable 0"}) == 2);
  CHECK(differ(
            [](Communicator& c, Adder& a, Adder& b) {
              join({a, b}, [&] { (c.rank() == 0 ? a : b).add(1); });
            },
            {"'add' of joinable 0", "'add' of joinable 1"}) == 2);
  CHECK(differ(
            [](Communicator& c, Adder& a, Adder& b) {
              join({a}, [&] {
                if (c.rank() == 0) join({b}, [] {});
              });
            },
            {"[join]", "rank "}) == 2);
}

TEST_CASE("join: an InputsExhausted of another join, or of the body's own, is an exception like others") {
  // An inner join ends for the ranks of its group alone; their fellows in the outer one hear of it.
  const auto nested = messages_of_ranks(4, [](Communicator& world) {
    world.set_timeout(Milliseconds(60'000));
    const int rank = world.rank();
    const auto outer = world.split(rank % 2), inner = world.split(rank / 2);
    Adder all(*outer), part(*inner);
    std::exception_ptr error;
    try {
      join({all}, [&] {
        for (int step = 0; step < 3; ++step) {
          join({part}, {.throw_on_early_termination = true}, [&] {
            if (rank != 1 || step == 0) part.add(1);
          });
          all.add(1);
        }
      });
    } catch (...) {
      error = std::current_exception();
    }
    world.barrier();  // nobody's communicators go before
    std::rethrow_exception(error);
  });
  for (const std::size_t left : {0u, 1u})
    CHECK(missing(nested[left], {"[join]", "rank 1 has run out", "2 ranks"}) == "");
  for (const std::size_t other : {2u, 3u})
    CHECK(missing(nested[other], {"CommError", "rank 0", "left its join", "rank 1 has run out"}) == "");
  const auto own = joins(2, [](Communicator& communicator, Adder& adder, Adder&) {
    communicator.set_timeout(Milliseconds(60'000));
    std::exception_ptr error;
    try {
      join({adder}, [&] {
        if (communicator.rank() == 1) throw InputsExhausted({7}, 8);
        adder.add(1);
      });
    } catch (...) {
      error = std::current_exception();
    }
    std::rethrow_exception(error);
  });
  CHECK(missing(own[1], {"[join]", "rank 7 has run out", "8 ranks"}) == "");
  CHECK(missing(own[0], {"CommError", "rank 1", "left its join"}) == "");
}
