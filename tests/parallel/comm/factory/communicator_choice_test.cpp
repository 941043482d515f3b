#include "lockstep/parallel/comm/factory/communicator_choice.h"

#include <functional>

#include "lockstep/runtime/error.h"
#include "support/catch.h"
#include "support/messages.h"

using namespace lockstep;
using detail::choose;
using detail::RankTraits;
using support::message_of;
using support::missing;

namespace {

std::vector<RankTraits> ranks_of(int count, const std::string& kind, bool processes = false) {
  std::vector<RankTraits> ranks;
  for (int r = 0; r < count; ++r)
    ranks.push_back({.machine = "m",
                     .process = processes ? cat("p", r) : "p",
                     .gpu = kind == "cuda" ? cat("m#", r) : "",
                     .kind = kind,
                     .why_not = {{"mpi", "not by mpirun"}}});
  return ranks;
}

std::vector<RankTraits> with(std::vector<RankTraits> ranks, const std::function<void(RankTraits&)>& change) {
  for (RankTraits& rank : ranks) change(rank);
  return ranks;
}

std::string chosen(const std::vector<RankTraits>& ranks) { return choose(ranks).backend->name; }

}  // namespace

TEST_CASE("rank choice: what a rank says of itself comes back as it was") {
  const std::vector<std::string> texts = {"", "0", "1", "3:abc", "a b  c\n", std::string("\0:9", 3), "12:"};
  for (std::size_t shift = 0; shift < texts.size(); ++shift) {
    const auto text = [&](std::size_t i) { return texts[(i + shift) % texts.size()]; };
    const RankTraits traits{.machine = text(0),
                            .process = text(1),
                            .gpu = text(2),
                            .shares_gpu = text(5),
                            .kind = text(3),
                            .backend = text(4),
                            .why_not = {{"x" + text(5), text(6)}, {"y", text(0)}}};
    CHECK(detail::unpack(detail::pack(traits)) == traits);
  }
  const std::string whole = detail::pack({.machine = "m", .why_not = {{"mpi", "none"}}});
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes)
    CHECK_THROWS_AS(detail::unpack(whole.substr(0, bytes)), Error);
  CHECK_THROWS_AS(detail::unpack(whole + "1"), Error);
  for (const char* wrong : {"x", "1", "-1:", "99999999999999999999:", "1;a"})
    CHECK_THROWS_AS(detail::unpack(wrong), Error);
}

TEST_CASE("rank choice: what suits is chosen, and the reason says what did not") {
  CHECK(chosen(ranks_of(2, "host")) == "shared_memory");
  CHECK(choose(ranks_of(2, "host", true)).reason == "2 ranks in 2 processes on 1 machine");
  CHECK(chosen(ranks_of(3, "cuda")) == "nccl");
  CHECK(chosen(ranks_of(3, "cuda", true)) == "nccl");
  // One rank that cannot is enough.
  auto ranks = ranks_of(3, "cuda");
  ranks[2].why_not["nccl"] = "no libnccl.so.2";
  CHECK(chosen(ranks) == "peer");
  CHECK(missing(choose(ranks).reason, {"nccl cannot be used by rank 2: no libnccl.so.2"}) == "");
  ranks = ranks_of(3, "cuda");
  ranks[2].gpu = ranks[0].gpu;
  CHECK(chosen(ranks) == "peer");
  CHECK(missing(choose(ranks).reason, {"ranks 0 and 2 share one"}) == "");
  for (RankTraits& rank : ranks) rank.shares_gpu = "1";
  CHECK(chosen(ranks) == "peer");  // of one process
  for (RankTraits& rank : ranks) rank.process = cat("p", &rank - ranks.data());
  CHECK(chosen(ranks) == "nccl");
  ranks[1].gpu = ranks[0].gpu, ranks[2].process = ranks[1].process;
  CHECK(missing(message_of<Error>([&] { choose(ranks); }), {"ranks 1 and 2 share one"}) == "");
  ranks[1].gpu = "m#7", ranks[2].process = "p2";
  ranks[2].shares_gpu.clear();  // both have to say so
  CHECK_THROWS_AS(choose(ranks), NotSupported);
  CHECK(missing(message_of<Error>([&] { choose(ranks); }), {"peer needs ranks that are threads of one process"}) == "");
  // The same GPU number on two machines is two GPUs.
  ranks = ranks_of(2, "cuda", true);
  ranks[1].machine = "n", ranks[1].gpu = "n#0";
  CHECK(chosen(ranks) == "nccl");

  ranks = ranks_of(2, "host", true);
  ranks[1].machine = "n";
  CHECK_THROWS_AS(choose(ranks), NotSupported);
  CHECK(missing(message_of<Error>([&] { choose(ranks); }), {"mpi cannot be used by rank 0: not by mpirun"}) == "");
  ranks = with(ranks, [](RankTraits& rank) { rank.why_not.clear(); });
  CHECK(chosen(ranks) == "mpi");
  ranks[1].why_not["mpi"] = "no plug-in";
  CHECK(missing(message_of<Error>([&] { choose(ranks); }), {"mpi cannot be used by rank 1: no plug-in"}) == "");
}

TEST_CASE("rank choice: what is asked for is had, or an error says why not") {
  const auto asked = [](std::vector<RankTraits> ranks, const char* backend) {
    return with(std::move(ranks), [&](RankTraits& rank) { rank.backend = backend; });
  };
  CHECK(chosen(asked(ranks_of(2, "cuda"), "peer")) == "peer");
  CHECK(chosen(asked(ranks_of(2, "host"), "peer")) == "peer");
  CHECK(chosen(asked(with(ranks_of(2, "host", true), [](RankTraits& rank) { rank.why_not.clear(); }), "mpi")) == "mpi");
  const auto refused = [&](const char* kind, bool processes, const char* backend, const char* why) {
    const auto ranks = asked(ranks_of(2, kind, processes), backend);
    CHECK_THROWS_AS(choose(ranks), NotSupported);
    CHECK(missing(message_of<Error>([&] { choose(ranks); }), {why}) == "");
  };
  refused("host", false, "nccl", "nccl works on CUDA devices");
  refused("cuda", false, "shared_memory", "shared_memory works on host devices");
  refused("cuda", true, "mpi", "mpi works on host devices");
  refused("host", true, "mpi", "not by mpirun");
  refused("cuda", true, "peer", "peer needs ranks that are threads");
  refused("host", false, "loopback", "loopback needs a rank alone");
  CHECK(chosen(asked(ranks_of(1, "cuda"), "loopback")) == "loopback");
  CHECK(chosen(ranks_of(1, "host")) == "shared_memory");
  const auto unknown = asked(ranks_of(2, "host"), "gloo");
  CHECK(missing(message_of<InvalidArgument>([&] { choose(unknown); }),
                {"expected nccl, peer, shared_memory, mpi or loopback", "got 'gloo'"}) == "");

  auto ranks = ranks_of(2, "host");
  ranks[1].backend = "mpi";
  CHECK_THROWS_AS(choose(ranks), InvalidArgument);
  CHECK(missing(message_of<Error>([&] { choose(ranks); }), {"none on rank 0 and mpi on rank 1"}) == "");
  ranks = ranks_of(2, "host");
  ranks[1].kind = "cuda";
  CHECK_THROWS_AS(choose(ranks), InvalidArgument);
}
