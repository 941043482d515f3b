// Errors that ranks hear of at different moments, folders and values that differ, disks that are really full.
#include <sys/resource.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "lockstep/parallel/checkpoint/checkpoint_writer.h"
#include "parallel/checkpoint/disk.h"
#include "parallel/checkpoint/seen.h"

using namespace parallel_test;
using lockstep::test::TemporaryFolder;
using lockstep::test::write_bytes;

namespace {

std::vector<CheckpointEntry> state(std::int64_t step, const Communicator& c) {
  const double first = static_cast<double>(1000 * step);
  return {{"w", counting({5, 3}, Device::cpu(), first)},
          {"part", counting({2, 2}, Device::cpu(), first), TensorShard{{2 * c.size(), 2}, 0, 2 * c.rank()}}};
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& each : std::filesystem::directory_iterator(folder)) names.push_back(each.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// As a full disk: no file of the process grows beyond `bytes`.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit now = before_;
    now.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;
  ~FileLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

}  // namespace

TEST_CASE("an error that check() has told one rank comes out at the next save of all, so that they go on together") {
  const TemporaryFolder folder;
  const std::string root = folder.path().string();
  check_ranks(2, [&](Communicator& c, Seen& seen) {
    const auto disk = std::make_shared<Watched>();
    std::atomic<bool> full{true};
    disk->before = [&](const std::string& what, const std::string&) {
      if (full && c.rank() == 0 && what == "write") throw Error("No space left on device");
    };
    CheckpointWriter writer(root, c, {.files = disk});
    writer.save(10, state(10, c));
    if (c.rank() == 0) {  // rank 1 does not look
      std::string told = "no error";
      while (told == "no error") told = message_of<Error>([&] { writer.check(); });
      seen.nothing(missing(told, {"step 10", "No space left"}));
      writer.check();  // which has said it
    }
    full = false;
    c.barrier();
    const std::string again = message_of<Error>([&] { writer.save(20, state(20, c)); });
    seen.nothing(missing(again, {"step 10", "No space left"}));
    for (const std::int64_t step : {30, 40}) {
      writer.save(step, state(step, c));
      writer.wait();
      SEE(writer.saved_step() == step);
    }
    writer.close();
  });
  CHECK(names_in(root) == std::vector<std::string>{"step-00000030", "step-00000040"});
}

TEST_CASE("a disk that is full is an error at the next call, on every rank, and leaves the older checkpoint") {
  const TemporaryFolder folder;
  const std::string root = folder.path().string();
  check_ranks(2, [&](Communicator& c, Seen& seen) {
    CheckpointWriter writer(root, c);
    writer.save(10, state(10, c));
    writer.wait();
    c.barrier();
    std::optional<FileLimit> limit;
    if (c.rank() == 0) limit.emplace(64 << 10);
    c.barrier();
    const std::int64_t rows = 8192;  // all of them on rank 1
    const Tensor part = zeros({c.rank() == 1 ? rows : 0, 2});
    writer.save(20, {{"part", part, TensorShard{{rows, 2}, 0, c.rank() == 1 ? 0 : rows}}});
    const std::string error = message_of<Error>([&] { writer.wait(); });
    seen.nothing(missing(
        error, {"[CheckpointWriter] step 20: rank 1: cannot write '", "rank-00001.safetensors", std::strerror(EFBIG)}));
    c.barrier();
    limit.reset();
    SEE(names_in(root) == std::vector<std::string>{"step-00000010"});
    SEE(newest_checkpoint(root, c)->step() == 10);
    writer.save(30, state(30, c));
    writer.close();
    SEE(newest_checkpoint(root, c)->step() == 30);
  });
}

TEST_CASE("a folder that is gone while the training goes on is an error on every rank at the next call") {
  const TemporaryFolder folder;
  const std::string root = folder / "run";
  check_ranks(2, [&](Communicator& c, Seen& seen) {
    CheckpointWriter writer(root, c);
    c.barrier();
    if (c.rank() == 0) {
      std::filesystem::remove_all(root);
      write_bytes(root, "a file");
    }
    c.barrier();
    writer.save(10, state(10, c));
    const std::string error = message_of<Error>([&] { writer.wait(); });
    seen.nothing(missing(error, {"[CheckpointWriter] step 10: rank 0: ", "/run"}));
  });
}

TEST_CASE("ranks that write to different folders all hear of it, and nothing is left") {
  const TemporaryFolder folder;
  check_ranks(2, [&](Communicator& c, Seen& seen) {
    if (c.rank() == 1) std::filesystem::create_directory(folder / "b");
    CheckpointWriter writer(folder / (c.rank() == 0 ? "a" : "b"), c);
    writer.save(10, state(10, c));
    const std::string error = message_of<Error>([&] { writer.close(); });
    seen.nothing(missing(error, {"step 10: rank 1: cannot create '", "/b/step-00000010.tmp-"}));
  });
  CHECK(names_in(folder / "a").empty());
  CHECK(names_in(folder / "b").empty());
}

TEST_CASE("values that are no text on one rank are an error there at once, and on the others at the next call") {
  const TemporaryFolder folder;
  check_ranks(2, [&](Communicator& c, Seen& seen) {
    CheckpointWriter writer(folder.path().string(), c);
    const std::string refusal = message_of<InvalidArgument>([&] {
      writer.save(10, state(10, c), {{"note", c.rank() == 1 ? "\xff" : "fine"}});
    });
    const std::string heard = message_of<Error>([&] { writer.wait(); });
    seen.nothing(missing(c.rank() == 0 ? heard : refusal, {"expected values in UTF-8, got 'note'"}));
    seen.nothing(missing(heard, {c.rank() == 0 ? "step 10: rank 1: " : "no error"}));
    writer.save(10, state(10, c), {{"note", "fine"}});
    writer.close();
    SEE(writer.saved_step() == 10);
  });
}

TEST_CASE("as many whole checkpoints stay as are to be kept, the newest, and torn ones do not count") {
  for (const int keep : {1, 2, 3}) {
    const TemporaryFolder folder;
    const std::string root = folder.path().string();
    check_ranks(2, [&](Communicator& c, Seen& seen) {
      CheckpointWriter writer(root, c, {.keep = keep});
      for (std::int64_t step = 1; step <= 5; ++step) {
        writer.save(step, state(step, c));
        writer.wait();
        c.barrier();
        std::vector<std::string> expected;
        for (std::int64_t kept = std::max<std::int64_t>(1, step - keep + 1); kept <= step; ++kept)
          expected.push_back("step-0000000" + std::to_string(kept));
        SEE(names_in(root) == expected);
        c.barrier();
      }
      if (c.rank() == 0) std::filesystem::remove(folder / "step-00000005/checkpoint.json");
      c.barrier();
      writer.save(6, state(6, c));
      writer.close();
      c.barrier();
      const auto left = names_in(root);
      SEE(left.size() == static_cast<std::size_t>(keep));
      SEE(left.back() == "step-00000006");
      SEE(std::count(left.begin(), left.end(), "step-00000005") == 0);
    });
  }
}

TEST_CASE("a checkpoint is opened by its own name too, and what is short or missing in it is named") {
  const TemporaryFolder folder;
  check_ranks(2, [&](Communicator& c, Seen&) {
    CheckpointWriter writer(folder.path().string(), c);
    writer.save(10, state(10, c));
    writer.close();
  });
  const std::string copy = folder / "best";
  std::filesystem::copy(folder / "step-00000010", copy);
  CHECK(Checkpoint(copy).step() == 10);
  for (const char* name : {"rank-00001.safetensors", "rank-00000.json", "checkpoint.json"}) {
    const std::string path = copy + '/' + name, bytes = lockstep::test::read_bytes(path);
    write_bytes(path, bytes.substr(0, bytes.size() - 3));
    CHECK(missing(message_of<FormatError>([&] { const Checkpoint torn(copy); }), {name}) == "");
    std::filesystem::remove(path);
    CHECK(missing(message_of<FormatError>([&] { const Checkpoint torn(copy); }), {name}) == "");
    write_bytes(path, bytes);
  }
}

TEST_CASE("a file that has other tensors than its rank says beside it is an error that names both") {
  const TemporaryFolder folder;
  check_ranks(2, [&](Communicator& c, Seen&) {
    CheckpointWriter writer(folder.path().string(), c);
    const TensorShard shard{{4, 3}, 0, 2 * c.rank()};
    writer.save(10, {{"whole", ones({2, 3})}, {"part", ones({2, 3}), shard}});
    writer.close();
  });
  const std::string step = folder / "step-00000010";
  for (const char* rank : {"rank-00000", "rank-00001"}) {
    const std::string path = step + '/' + rank + ".safetensors", bytes = lockstep::test::read_bytes(path);
    for (const auto& [from, to] : {std::pair{"\"F32\"", "\"I32\""}, std::pair{"[2,3]", "[3,2]"}}) {
      std::string changed = bytes;  // as many bytes as before
      for (std::size_t at = 0; (at = changed.find(from, at)) != std::string::npos; ++at)
        changed.replace(at, std::string(from).size(), to);
      REQUIRE(changed != bytes);
      write_bytes(path, changed);
      const Checkpoint checkpoint(step);
      int refused = 0;
      for (const char* name : {"whole", "part"}) {
        const std::string message = message_of<FormatError>([&] { (void)checkpoint.load(name); });
        if (message == "no error") continue;
        ++refused;
        CHECK(missing(message, {rank, name, "f32[2, 3]", from[0] == '[' ? "f32[3, 2]" : "i32[2, 3]"}) == "");
      }
      CHECK(refused == (rank == std::string("rank-00000") ? 2 : 1));
    }
    write_bytes(path, bytes);
  }
}

TEST_CASE("a folder with the checkpoint of another step is passed over") {
  const TemporaryFolder folder;
  const std::string root = folder.path().string();
  const auto save = [&](std::int64_t step) {
    check_ranks(1, [&](Communicator& c, Seen&) {
      CheckpointWriter writer(root, c);
      writer.save(step, state(step, c));
      writer.close();
    });
  };
  save(10), save(20);
  const CapturedLog log;
  for (const char* other : {"step-00000030", "step-00000015"}) {  // what it says is less than its name, and more
    std::filesystem::rename(folder / "step-00000020", folder / other);
    const std::string file = folder / other + "/rank-00000.safetensors";
    std::string bytes = lockstep::test::read_bytes(file);
    for (const bool torn : {false, true}) {
      bytes.back() = static_cast<char>(bytes.back() ^ (torn ? 1 : 0));
      write_bytes(file, bytes);
      CHECK(newest_checkpoint(root)->step() == 10);
      check_ranks(2, [&](Communicator& c, Seen& seen) { SEE(newest_checkpoint(root, c)->step() == 10); });
    }
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_bytes(file, bytes);
    std::filesystem::rename(folder / other, folder / "step-00000020");
  }
  CHECK(newest_checkpoint(root)->step() == 20);
  CHECK(!log.messages.empty());
}
