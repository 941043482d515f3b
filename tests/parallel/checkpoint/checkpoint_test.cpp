// What is saved is loaded, by as many ranks as it may be.
#include "lockstep/parallel/checkpoint/checkpoint.h"

#include <limits>

#include "lockstep/parallel/checkpoint/checkpoint_writer.h"
#include "lockstep/parallel/checkpoint/crc32.h"
#include "lockstep/tensor/io/safetensors.h"
#include "parallel/checkpoint/seen.h"
#include "support/temporary_folder.h"

using namespace parallel_test;
using lockstep::test::TemporaryFolder;
using lockstep::test::write_bytes;

namespace {

// Rows of [10, 3] and columns of [2, 7] that a rank of `ranks` has; 10 rows over 8 ranks leave some without any.
CheckpointEntry rows(int rank, int ranks, Device device) {
  const std::int64_t each = (10 + ranks - 1) / ranks, first = std::min<std::int64_t>(10, rank * each);
  const std::int64_t count = std::min<std::int64_t>(10, first + each) - first;
  return {"rows", counting({10, 3}).narrow(0, first, count).to(device), TensorShard{{10, 3}, 0, first}};
}
CheckpointEntry columns(int rank, int ranks, Device device) {
  const std::int64_t first = 7 * rank / ranks, count = 7 * (rank + 1) / ranks - first;
  return {"columns", counting({2, 7}).narrow(1, first, count).to(device), TensorShard{{2, 7}, 1, first}};
}

void save(const std::string& folder, int ranks, std::int64_t step) {
  check_ranks(ranks, [&](Communicator& communicator, Seen& seen) {
    CheckpointWriter writer(folder, communicator);
    const int rank = communicator.rank();
    const Device device = communicator.device();
    writer.save(step,
                {{"model.w", counting({4, 2}, device)},
                 {"model.half", counting({3}, device).to(DType::f16)},
                 {"on.cpu", counting({2})},
                 {"scalar", full({}, 7, {.dtype = DType::i64, .device = device})},
                 rows(rank, ranks, device),
                 columns(rank, ranks, device)},
                {{"rng", std::to_string(100 + rank)}});
    writer.close();
    SEE(writer.saved_step() == step);
  });
}

}  // namespace

TEST_CASE("the checksum of a checkpoint is the one that zip has") {
  CHECK(detail::crc32("123456789", 9) == 0xcbf43926u);
  CHECK(detail::crc32("456789", 6, detail::crc32("123", 3)) == 0xcbf43926u);
}

TEST_CASE("a checkpoint has whole tensors once and shards from their owners, and loads on other numbers of ranks") {
  for (const int ranks : {1, 3, 8}) {
    const TemporaryFolder folder;
    save(folder.path().string(), ranks, 120);
    const std::optional<Checkpoint> found = newest_checkpoint(folder.path().string());
    REQUIRE(found);
    CHECK(found->step() == 120);
    CHECK(found->ranks() == ranks);
    CHECK(found->path() == folder / "step-00000120");
    for (int rank = 0; rank < ranks; ++rank) CHECK(found->values(rank).at("rng") == std::to_string(100 + rank));
    CHECK_THROWS_AS(found->values(ranks), InvalidArgument);
    CHECK(values(found->load("model.w")) == values(counting({4, 2})));
    CHECK(found->load("model.half").dtype() == DType::f16);
    CHECK(found->load("scalar").item<int>() == 7);
    CHECK(found->load("scalar").shape() == Shape{});
    CHECK(values(found->load("on.cpu")) == Doubles{1, 2});
    CHECK(values(found->load("rows")) == values(counting({10, 3})));
    CHECK(values(found->load("columns")) == values(counting({2, 7})));
    CHECK(found->load_all("model.").size() == 2);
    CHECK(found->names() == std::vector<std::string>{"columns", "model.half", "model.w", "on.cpu", "rows", "scalar"});
    for (const int others : {1, 2, 5})  // the parts of other ranks, and along the other dimension
      for (int rank = 0; rank < others; ++rank) {
        const CheckpointEntry mine = rows(rank, others, Device::cpu());
        const std::int64_t count = mine.tensor.shape()[0];
        CHECK(values(found->load("rows", 0, mine.shard->offset, count)) == values(mine.tensor));
        CHECK(values(found->load("columns", 0, rank % 2, 1)) == values(counting({2, 7}).narrow(0, rank % 2, 1)));
      }
    CHECK(values(found->load("model.w", 1, 1, 1)) == values(counting({4, 2}).narrow(1, 1, 1)));
    CHECK_THROWS_AS(found->load("rows", 0, 8, 3), InvalidArgument);
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    CHECK_THROWS_AS(found->load("rows", 0, kMost, 1), InvalidArgument);
    CHECK_THROWS_AS(found->load("rows", 0, 1, kMost), InvalidArgument);
    CHECK_THROWS_AS(found->load_elements("rows", kMost, 5), InvalidArgument);
    CHECK_THROWS_AS(found->load("other"), InvalidArgument);
    // Every file is one of the format; whole tensors are in that of rank 0.
    int with_w = 0;
    for (const auto& each : std::filesystem::directory_iterator(found->path()))
      if (each.path().extension() == ".safetensors")
        for (const NamedTensor& tensor : load_safetensors(each.path().string()).tensors)
          with_w += tensor.name == "model.w";
    CHECK(with_w == 1);
  }
}

TEST_CASE("a snapshot has the weights as they were when save was called") {
  const TemporaryFolder folder;
  check_ranks(2, [&](Communicator& communicator, Seen& seen) {
    CheckpointWriter writer(folder.path().string(), communicator, {.keep = 10});
    const Tensor weights = zeros({64, 64}, {.device = communicator.device()});
    for (std::int64_t step = 1; step <= 6; ++step) {
      for (int i = 0; i < 20; ++i) weights.detach().add_(1);  // still under way
      writer.save(step, {{"w", weights},
                         {"part", weights, TensorShard{{128, 64}, 0, 64 * communicator.rank()}},
                         {"turned", weights.t()}});
      weights.detach().add_(1);  // the optimizer
    }
    writer.close();
    for (std::int64_t step = 1; step <= 6; ++step) {
      char name[32];
      std::snprintf(name, sizeof name, "step-%08d", static_cast<int>(step));
      const Checkpoint found(folder / name);
      const double expected = static_cast<double>(21 * step - 1);
      for (const char* tensor : {"w", "part", "turned"}) {
        const Doubles got = values(found.load(tensor).to(DType::f64));
        SEE(std::count(got.begin(), got.end(), expected) == static_cast<std::ptrdiff_t>(got.size()));
      }
    }
  });
}

TEST_CASE("a checkpoint that is torn, short, changed or has no marker is passed over, and removed later") {
  const TemporaryFolder folder;
  const std::string root = folder.path().string();
  CHECK_FALSE(newest_checkpoint(folder / "none"));
  CHECK_FALSE(newest_checkpoint(root));
  save(root, 2, 10);
  save(root, 2, 20);
  const std::string newest = folder / "step-00000020";
  for (const std::string name : {"checkpoint.json", "rank-00000.json", "rank-00001.json", "rank-00000.safetensors"}) {
    const std::string path = newest + '/' + name, bytes = lockstep::test::read_bytes(path);
    const auto passed_over = [&](const std::string& changed, const char* how) {
      INFO(name << ' ' << how);
      write_bytes(path, changed);
      CHECK(newest_checkpoint(root)->step() == 10);
      check_ranks(
          2, [&](Communicator& communicator, Seen& seen) { SEE(newest_checkpoint(root, communicator)->step() == 10); });
    };
    passed_over("", "empty");
    passed_over(bytes.substr(0, bytes.size() / 2), "torn");
    if (name != "checkpoint.json") {  // whose bytes nobody vouches for but the format
      std::string changed = bytes;
      changed[changed.size() - 3] ^= 1;
      passed_over(changed, "changed");
      passed_over(bytes + ' ', "longer");
    }
    std::filesystem::remove(path);
    CHECK(newest_checkpoint(root)->step() == 10);
    write_bytes(path, bytes);
    CHECK(newest_checkpoint(root)->step() == 20);
  }
  // What is no checkpoint of ours stays.
  std::filesystem::remove(newest + "/checkpoint.json");
  for (const char* name : {"step-00000030.tmp-0a", "step-7", "step-00000040.old", "mine"})
    std::filesystem::create_directory(folder / name);
  write_bytes(folder / "step-00000030.tmp-0a/rank-00000.json", "{");
  CHECK(newest_checkpoint(root)->step() == 10);
  save(root, 2, 21);
  std::vector<std::string> left;
  for (const auto& each : std::filesystem::directory_iterator(root)) left.push_back(each.path().filename().string());
  std::sort(left.begin(), left.end());
  CHECK(left == std::vector<std::string>{"mine", "step-00000010", "step-00000021", "step-00000040.old", "step-7"});
}

TEST_CASE("a torn checkpoint of the same step is replaced") {
  const TemporaryFolder folder;
  save(folder.path().string(), 1, 10);
  std::filesystem::remove(folder / "step-00000010/checkpoint.json");
  save(folder.path().string(), 2, 10);
  CHECK(newest_checkpoint(folder.path().string())->ranks() == 2);
}

TEST_CASE("ranks that do not find the same newest checkpoint all hear who found which") {
  const TemporaryFolder folder;
  save(folder / "a", 1, 120);
  save(folder / "b", 1, 80);
  check_ranks(3, [&](Communicator& communicator, Seen& seen) {
    const char* const names[] = {"a", "b", "none"};
    const std::string error =
        message_of<Error>([&] { newest_checkpoint(folder / names[communicator.rank()], communicator); });
    seen.nothing(missing(error, {"step 120 on rank 0", "step 80 on rank 1", "none on rank 2"}));
    SEE(newest_checkpoint(folder / "a", communicator)->step() == 120);
  });
}
