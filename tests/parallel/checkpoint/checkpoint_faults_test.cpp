// Kills, power cuts, full disks, ranks that disagree.
#include <latch>

#include "lockstep/parallel/checkpoint/checkpoint_writer.h"
#include "parallel/checkpoint/disk.h"
#include "parallel/checkpoint/seen.h"

using namespace parallel_test;
using lockstep::test::TemporaryFolder;
using lockstep::test::write_bytes;

namespace {

std::vector<CheckpointEntry> state(std::int64_t step, int rank = 0, int ranks = 1) {
  const double first = static_cast<double>(1000 * step);
  return {{"w", counting({5, 3}, Device::cpu(), first)},
          {"part", counting({2, 2}, Device::cpu(), first), TensorShard{{2 * ranks, 2}, 0, 2 * rank}}};
}

// The steps of whole checkpoints, newest first, each with what belongs to it.
std::vector<std::int64_t> whole(const std::string& folder) {
  std::vector<std::int64_t> steps;
  for (const auto& each : std::filesystem::directory_iterator(folder)) try {
      if (each.path().filename().string().size() != 13) continue;  // step-00000010
      const Checkpoint found(each.path().string());
      found.verify();
      if (values(found.load("w")) !=
          values(counting({5, 3}, Device::cpu(), 1000.0 * static_cast<double>(found.step()))))
        throw Error("step " + std::to_string(found.step()) + " has another's tensors");
      steps.push_back(found.step());
    } catch (const FormatError&) {
    }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

std::string try_save(const std::string& folder, std::int64_t step, const CheckpointOptions& options) {
  std::string failure;
  run_ranks(1, [&](Communicator& communicator) {
    failure = message_of<Error>([&] {
      CheckpointWriter writer(folder, communicator, options);
      writer.save(step, state(step), {{"step", std::to_string(step)}});
      writer.close();
    });
  });
  return failure;
}

}  // namespace

TEST_CASE("a kill or a power cut at any byte of a save leaves the checkpoint before it or the new one, whole") {
  int steps = 1 << 30, times_new = 0;
  for (int limit = 0; limit <= steps; ++limit) {
    const TemporaryFolder folder;
    const std::string root = folder / "run";
    REQUIRE(try_save(root, 10, {.keep = 1}) == "no error");
    const auto disk = std::make_shared<Disk>(root, limit);
    const bool saved = try_save(root, 20, {.keep = 1, .files = disk}) == "no error";
    if (saved) steps = disk->steps();
    REQUIRE(saved == (limit >= steps));
    for (const Left left : {Left::killed, Left::early_names, Left::late_names}) {
      INFO("step " << limit << ", left " << static_cast<int>(left));
      const TemporaryFolder after;
      disk->leave(after.path().string(), left);
      const std::vector<std::int64_t> found = whole(after.path().string());
      REQUIRE_FALSE(found.empty());
      REQUIRE(newest_checkpoint(after.path().string())->step() == found.front());
      CHECK((found.front() == 20 || found == std::vector<std::int64_t>{10}));
      if (saved) CHECK(found == std::vector<std::int64_t>{20});
      times_new += found.front() == 20;
      if (limit % 7 == 0 && left == Left::killed) {  // and the next writer goes on from there, and tidies up
        REQUIRE(try_save(after.path().string(), 30, {.keep = 1}) == "no error");
        CHECK(after.count() == 1);
        CHECK(whole(after.path().string()) == std::vector<std::int64_t>{30});
      }
    }
  }
  CHECK(steps > 30);
  CHECK(times_new > 10);
}

TEST_CASE("an error of one rank comes out on every rank at its next call, the older checkpoints stay, and it goes on") {
  for (const char* what : {"create", "write", "sync", "sync_folder"}) {
    INFO(what);
    const TemporaryFolder folder;
    const std::string root = folder.path().string();
    check_ranks(3, [&](Communicator& communicator, Seen& seen) {
      const int rank = communicator.rank();
      const auto disk = std::make_shared<Watched>();
      std::atomic<bool> full{false};
      disk->before = [&](const std::string& step, const std::string& path) {
        if (full && rank == 1 && step == what)
          throw Error("cannot " + std::string(what) + " '" + path + "': No space left on device");
      };
      CheckpointWriter writer(root, communicator, {.files = disk});
      writer.save(10, state(10, rank, 3));
      writer.wait();
      communicator.barrier();
      full = true;
      writer.save(20, state(20, rank, 3));
      const std::string error = message_of<Error>([&] { writer.save(30, state(30, rank, 3)); });
      seen.nothing(missing(
          error, {"[CheckpointWriter] step 20: rank 1: cannot ", "step-00000020.tmp-", "No space left on device"}));
      SEE(writer.saved_step() == 10);
      communicator.barrier();
      if (rank == 0) {
        SEE(whole(root) == std::vector<std::int64_t>{10});
        SEE(folder.count() == 1);
      }
      communicator.barrier();
      full = false;
      writer.save(30, state(30, rank, 3));
      writer.close();
      writer.check();
      if (rank == 0) SEE(whole(root) == std::vector<std::int64_t>{30, 10});
    });
  }
}

TEST_CASE("an error comes out at check, and once") {
  const TemporaryFolder folder;
  check_ranks(1, [&](Communicator& communicator, Seen& seen) {
    const auto disk = std::make_shared<Disk>(folder.path().string(), 3);
    CheckpointWriter writer(folder.path().string(), communicator, {.files = disk});
    writer.check();
    writer.save(10, state(10));
    std::string error = "no error";
    while (error == "no error") error = message_of<Error>([&] { writer.check(); });
    seen.nothing(missing(error, {"step 10", "the process is dead"}));
    writer.check();
    writer.close();
    SEE(throws<InvalidArgument>([&] { (void)(writer.save(20, state(20))); }));
  });
}

TEST_CASE("a folder that cannot be made or written to is an error on every rank before anything is trained") {
  const TemporaryFolder folder;
  write_bytes(folder / "file", "");
  check_ranks(2, [&](Communicator& communicator, Seen& seen) {
    const std::string error = message_of<Error>([&] { CheckpointWriter(folder / "file/runs", communicator); });
    seen.nothing(missing(error, {"[CheckpointWriter] rank 0: cannot make the folder '", "file/runs"}));
    SEE(throws<InvalidArgument>([&] { (void)(CheckpointWriter("", communicator)); }));
    SEE(throws<InvalidArgument>([&] { (void)(CheckpointWriter(folder / "a", communicator, {.keep = 0})); }));
  });
}

TEST_CASE("while one checkpoint is being written the next waits, or is skipped on every rank") {
  for (const auto busy : {CheckpointOptions::Busy::wait, CheckpointOptions::Busy::skip}) {
    const TemporaryFolder folder;
    const std::string root = folder.path().string();
    std::latch gate(1);
    check_ranks(2, [&](Communicator& communicator, Seen& seen) {
      const int rank = communicator.rank();
      const auto disk = std::make_shared<Watched>();
      // Rank 1 is done at once with what it can do; rank 0 is not.
      if (rank == 0)
        disk->before = [&](const std::string& step, const std::string&) {
          if (step == "rename") gate.wait();
        };
      CheckpointWriter writer(root, communicator, {.keep = 9, .busy = busy, .files = disk});
      SEE(writer.save(10, state(10, rank, 2)));
      SEE(!(writer.saved_step()));
      if (busy == CheckpointOptions::Busy::skip) {
        SEE(!(writer.save(20, state(20, rank, 2))));
        communicator.barrier();
        if (rank == 0) gate.count_down();
        writer.wait();
      } else {
        communicator.barrier();
        if (rank == 0) gate.count_down();
      }
      SEE(writer.save(30, state(30, rank, 2)));
      writer.close();
      communicator.barrier();
      if (rank == 0) SEE(whole(root) == std::vector<std::int64_t>{30, 10});
    });
  }
}

TEST_CASE("a disk that does not answer is an error of the next save, and no wait for ever") {
  const TemporaryFolder folder;
  std::latch gate(1);
  check_ranks(1, [&](Communicator& communicator, Seen& seen) {
    const auto disk = std::make_shared<Watched>();
    disk->before = [&](const std::string& step, const std::string&) {
      if (step == "sync") gate.wait();
    };
    CheckpointWriter writer(folder.path().string(), communicator, {.timeout = Milliseconds(100), .files = disk});
    writer.save(10, state(10));
    const std::string error = message_of<TimeoutError>([&] { writer.save(20, state(20)); });
    seen.nothing(missing(error, {"step 10 is not written after 100 ms", folder.path().string()}));
    gate.count_down();
  });
}

TEST_CASE("ranks that save different things all hear of it") {
  const TemporaryFolder folder;
  const std::string root = folder.path().string();
  check_ranks(3, [&](Communicator& communicator, Seen& seen) {
    const int rank = communicator.rank();
    CheckpointWriter writer(root, communicator);
    const auto failure = [&](std::int64_t step, const std::vector<CheckpointEntry>& entries) {
      return message_of<Error>([&] {
        writer.save(step, entries);
        writer.wait();
      });
    };
    const Tensor w = counting({4});
    seen.nothing(missing(failure(rank == 2 ? 130 : 120, {{"w", w}}),
                         {"the same step on every rank", "120 on rank 0", "130 on rank 2"}));
    seen.nothing(missing(failure(1, {{rank == 2 ? "v" : "w", w}}), {"the whole tensors of rank 0", "rank 2"}));
    const auto part = [&](std::int64_t offset, Shape shape = {12}) {
      return std::vector<CheckpointEntry>{{"w", w, TensorShard{shape, 0, offset}}};
    };
    seen.nothing(
        missing(failure(2, part(rank == 2 ? 0 : 4 * rank)), {"'w'", "expected a part from 4", "got one from 0"}));
    seen.nothing(missing(failure(3, part(4 * rank, {16})), {"'w'", "expected parts up to 16", "got them up to 12"}));
    seen.nothing(missing(failure(4, part(4 * rank, {rank == 1 ? 13 : 12})), {"'w'", "of [12]", "of [13]"}));
    seen.nothing(missing(failure(5, {{"w", w, rank == 1 ? std::optional(TensorShard{{4}, 0, 0}) : std::nullopt}}),
                         {"'w'", "as on rank 0"}));
    communicator.barrier();
    if (rank == 0) SEE(folder.count() == 0);
    communicator.barrier();
    SEE(failure(5, rank == 0 ? std::vector<CheckpointEntry>{{"w", w}} : std::vector<CheckpointEntry>{}) == "no error");
    seen.nothing(missing(failure(5, {{"w", w}}), {"step 5", "expected a step after 5"}));
    seen.nothing(missing(failure(4, {{"w", w}}), {"step 4", "expected a step after 5"}));
  });
}

TEST_CASE("what cannot be saved is named before anything is written") {
  const TemporaryFolder folder;
  check_ranks(1, [&](Communicator& communicator, Seen& seen) {
    CheckpointWriter writer(folder.path().string(), communicator);
    const Tensor w = counting({4, 2});
    const auto failure = [&](const std::vector<CheckpointEntry>& entries) {
      return message_of<InvalidArgument>([&] { writer.save(1, entries); });
    };
    seen.nothing(missing(failure({{"w", Tensor()}}), {"expected a tensor for", "w"}));
    seen.nothing(missing(failure({{"w", w}, {"w", w}}), {"every name once", "w"}));
    seen.nothing(missing(failure({{"w", w, TensorShard{{6, 2}, 0, 3}}}),
                         {"a part of [6, 2] along dimension 0 from 3", "[4, 2]"}));
    seen.nothing(missing(failure({{"w", w, TensorShard{{4, 3}, 0, 0}}}), {"a part of [4, 3]"}));
    seen.nothing(missing(failure({{"w", w, TensorShard{{4, 2}, 2, 0}}}), {"along dimension 2"}));
    SEE(throws<InvalidArgument>([&] { (void)(writer.save(-1, {})); }));
    writer.close();
    SEE(folder.count() == 0);
  });
}

TEST_CASE("a rank that dies while a checkpoint is written is an error of the others, and leaves the older one") {
  const TemporaryFolder folder;
  const std::string root = folder.path().string();
  Seen seen;
  CHECK_THROWS_AS(run_ranks(3,
                            [&](Communicator& communicator) {
                              CheckpointWriter writer(root, communicator);
                              const int rank = communicator.rank();
                              writer.save(10, state(10, rank, 3));
                              writer.wait();
                              communicator.barrier();
                              if (rank == 1) throw Error("gone");
                              writer.save(20, state(20, rank, 3));
                              SEE(throws<CommError>([&] { writer.wait(); }));
                            }),
                  CommError);
  CHECK(seen.wrong() == "");
  CHECK(whole(root) == std::vector<std::int64_t>{10});
}
