// What becomes of a batch's other transfers when one of them fails. The other ranks are played by the test, at the
// place where they meet, so that they come and go when it wants them to.
#include "lockstep/parallel/comm/peer/peer_rank.h"
#include "parallel/comm/peer/peer_support.h"

using namespace comm_test;
using detail::Meeting;

namespace {

constexpr Milliseconds kPatience{60'000};

Tensor ones_on(const Communicator& c, std::int64_t count) {
  return ones({count}, {.dtype = DType::f32, .device = c.device()});
}

// Member `receiver` comes to the first send of rank 0 to it, or says that it is done with that.
void come(detail::PeerGroup& group, int receiver, std::int64_t count, int phase) {
  std::vector<detail::MeetingPlace::Arrival> one;
  one.push_back(
      {{0, receiver, 1, phase}, {.fingerprint = {.sequence = 1, .count = count, .kind = Collective::Kind::recv}}});
  group.place().come(std::move(one), receiver);
}

std::vector<detail::Contribution> collect(detail::PeerGroup& group, const Meeting& meeting) {
  return group.place().collect(meeting, "recv", kPatience, Deadline::after(kPatience));
}

// What the place has failed with: thrown to who waits for what cannot come about.
int rank_of_failure(detail::PeerGroup& group) {
  const Meeting nobody{1, 2, 99};
  std::vector<detail::MeetingPlace::Arrival> one;
  one.push_back({nobody, {}});
  try {
    group.place().come(std::move(one), 1);
    (void)collect(group, nobody);
  } catch (const CommError& error) {
    return error.rank;
  }
  return -1;
}

}  // namespace

TEST_CASE("peer: a transfer that others still read from is waited for, also beyond the deadline of its batch") {
  const auto group = std::make_shared<detail::PeerGroup>(support::first_devices(3), PeerOptions().one_shot_bytes);
  Group sender;
  sender.push_back(std::make_unique<detail::PeerCommunicator>(group, 0, PeerOptions{.timeout = Milliseconds(100)}));
  come(*group, 1, 3, 0);
  std::vector<Outcome> outcomes;
  std::thread rank0([&] {
    outcomes = on_ranks(sender, [](Communicator& c) {
      c.transfer(std::vector{Transfer::to(1, ones_on(c, 3)), Transfer::to(2, ones_on(c, 3))});
    });
  });
  // Rank 2 does not come; that rank 1 has not finished is not held against it.
  CHECK(rank_of_failure(*group) == 2);
  come(*group, 1, 3, 1);
  rank0.join();
  CHECK(outcomes[0].comm_error);
  CHECK(outcomes[0].rank == 2);
}

TEST_CASE("peer: what goes wrong with one transfer of a batch is not told to those of the others") {
  const auto group = std::make_shared<detail::PeerGroup>(support::first_devices(3), PeerOptions().one_shot_bytes);
  Group sender;
  sender.push_back(std::make_unique<detail::PeerCommunicator>(group, 0, PeerOptions{.timeout = kPatience}));
  come(*group, 2, 4, 0);  // not what rank 0 sends
  come(*group, 1, 3, 0);
  come(*group, 1, 3, 1);
  const auto outcomes = on_ranks(sender, [](Communicator& c) {
    c.transfer(std::vector{Transfer::to(2, ones_on(c, 3)), Transfer::to(1, ones_on(c, 3))});
  });
  CHECK(outcomes[0].rank == 2);
  CHECK(missing(outcomes[0].message, {"send(f32, 3 elements)", "recv(f32, 4 elements)"}) == "");
  const auto told = collect(*group, {0, 1, 1, 1});
  REQUIRE(told.size() == 3);
  CHECK(told[0].error == "");
}
