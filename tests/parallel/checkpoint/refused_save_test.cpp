// A save that one rank alone refuses: the others hear of it, and all go on with the same steps.
#include <functional>
#include <limits>

#include "lockstep/parallel/checkpoint/checkpoint_writer.h"
#include "parallel/checkpoint/seen.h"
#include "parallel/ddp/support.h"
#include "support/temporary_folder.h"

using namespace parallel_test;
using Catch::Matchers::Contains;
using lockstep::test::TemporaryFolder;

namespace {

using Entries = std::vector<CheckpointEntry>;

Entries entries_of(std::int64_t step, const Communicator& c) {
  const double first = static_cast<double>(1000 * step);
  return {{"w", counting({5, 3}, c.device(), first)},
          {"part", counting({2, 2}, c.device(), first),
           TensorShard{{std::int64_t{2} * c.size(), 2}, 0, std::int64_t{2} * c.rank()}}};
}

bool has_step(const std::string& root, std::int64_t step, int ranks) {
  const std::optional<Checkpoint> found = newest_checkpoint(root);
  if (!found || found->step() != step) return false;
  const double first = static_cast<double>(1000 * step);
  bool right = values(found->load("w")) == values(counting({5, 3}, Device::cpu(), first));
  for (int rank = 0; rank < ranks; ++rank)
    right = right &&
            values(found->load("part", 0, std::int64_t{2} * rank, 2)) == values(counting({2, 2}, Device::cpu(), first));
  return right;
}

// What is wrong with entries, and what is said of it.
struct Mistake {
  std::function<void(std::int64_t& step, Entries& entries)> make;
  std::string said;
};
const std::vector<Mistake>& mistakes() {
  static const std::vector<Mistake> all{
      {[](auto&, Entries& entries) { entries[0].tensor = Tensor(); },
       "expected a tensor for 'w', got an undefined one"},
      {[](auto&, Entries& entries) { entries[1].name = "w"; }, "expected every name once, got 'w' twice"},
      {[](auto&, Entries& entries) { entries[1].name = "a\xff"; }, "expected names in UTF-8, got 'a\xef\xbf\xbd'"},
      {[](auto&, Entries& entries) { entries[1].shard->offset += 1000; }, "expected a part of ["},
      {[](auto&, Entries& entries) { entries[1].shard->offset = std::numeric_limits<std::int64_t>::max(); },
       "expected a part of ["},
      {[](std::int64_t& step, Entries&) { step = -7; }, "expected a step, got -7"}};
  return all;
}

}  // namespace

TEST_CASE("a save that one rank refuses is an error with its reason on every rank, and the next ones pair again") {
  for (const auto busy : {CheckpointOptions::Busy::wait, CheckpointOptions::Busy::skip})
    for (const bool waits : {true, false}) {
      if (!waits && busy == CheckpointOptions::Busy::skip) continue;  // the next save may find it under way
      INFO((waits ? "heard at wait, " : "heard at the next save, ") << static_cast<int>(busy));
      const TemporaryFolder folder;
      const std::string root = folder.path().string();
      check_ranks(3, [&](Communicator& c, Seen& seen) {
        CheckpointWriter writer(root, c, {.keep = 1, .busy = busy});
        std::int64_t step = 10;
        const auto save_whole = [&](std::int64_t at) {
          SEE(writer.save(at, entries_of(at, c)));
          writer.wait();
          SEE(writer.saved_step() == at);
          c.barrier();
          if (c.rank() == 0) SEE(folder.count() == 1 && has_step(root, at, 3));
          c.barrier();
        };
        save_whole(step);
        for (int i = 0; i < std::ssize(mistakes()); ++i) {
          const Mistake& mistake = mistakes()[static_cast<std::size_t>(i)];
          const int at_fault = (i + 1) % 3;
          const std::int64_t whole = step, refused = whole + 10;
          step += 30;
          Entries entries = entries_of(refused, c);
          std::int64_t given = refused;
          if (c.rank() == at_fault) {
            mistake.make(given, entries);
            seen.nothing(missing(message_of<InvalidArgument>([&] { writer.save(given, entries); }), {mistake.said}));
            writer.check();  // which has been said
          } else {
            SEE(writer.save(given, entries));
          }
          const std::string error = message_of<Error>([&] {
            if (waits)
              writer.wait();
            else
              writer.save(refused + 10, entries_of(refused + 10, c));
          });
          if (waits && c.rank() == at_fault)
            SEE(error == "no error");
          else
            seen.nothing(
                missing(error, {cat("[CheckpointWriter] step ", given, ": rank ", at_fault, ": ", mistake.said)}));
          SEE(writer.saved_step() == whole);
          c.barrier();
          if (c.rank() == 0) SEE(folder.count() == 1 && has_step(root, whole, 3));
          c.barrier();
          save_whole(step);
        }
        writer.close();
      });
    }
}

TEST_CASE("a save that every rank refuses is no error of the next one") {
  const TemporaryFolder folder;
  const std::string root = folder.path().string();
  check_ranks(2, [&](Communicator& c, Seen& seen) {
    CheckpointWriter writer(root, c);
    for (const Mistake& mistake : mistakes()) {
      Entries entries = entries_of(10, c);
      std::int64_t step = 10;
      mistake.make(step, entries);
      seen.nothing(missing(message_of<InvalidArgument>([&] { writer.save(step, entries); }), {mistake.said}));
    }
    writer.wait();
    c.barrier();
    SEE(folder.count() == 0);
    SEE(!writer.saved_step());
    c.barrier();
    SEE(writer.save(10, entries_of(10, c)));
    writer.close();
    SEE(writer.saved_step() == 10);
  });
  CHECK(has_step(root, 10, 2));
}

TEST_CASE("a rank that ends because it refused a save makes nobody wait") {
  const TemporaryFolder folder;
  const auto messages = messages_of_ranks(3, [&](Communicator& c) {
    CheckpointWriter writer(folder.path().string(), c);
    Entries entries = entries_of(10, c);
    if (c.rank() == 1) entries[0].tensor = Tensor();
    writer.save(10, entries);  // rank 1 leaves here
    writer.close();
  });
  for (std::size_t rank = 0; rank < messages.size(); ++rank)
    CHECK_THAT(messages[rank], Contains("expected a tensor for 'w'") &&
                                   Contains(rank == 1 ? "[CheckpointWriter] " : "step 10: rank 1: "));
  CHECK(folder.count() == 0);
}
