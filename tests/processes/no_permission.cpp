// Ranks that may not write where they are to save: all of them hear why, nothing is half done, and they train on. Root,
// whom no permission stops, becomes another user first.
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lockstep/parallel/checkpoint/checkpoint_writer.h"
#include "lockstep/parallel/comm/shm/shared_memory_communicator.h"
#include "lockstep/tensor/io/safetensors.h"
#include "parallel/sharding/support.h"
#include "processes/forked.h"
#include "support/temporary_folder.h"

using namespace parallel_test;
using lockstep::test::TemporaryFolder;

namespace {

constexpr int kRanks = 2;
constexpr mode_t kOpen = 0777, kLocked = 0555;

void set_mode(const std::string& folder, mode_t mode) {
  if (::chmod(folder.c_str(), mode) != 0) throw Error(cat("cannot chmod '", folder, "': ", std::strerror(errno)));
}

void become_nobody() {
  constexpr id_t kNobody = 65534;
  if (::geteuid() == 0 && (::setresgid(kNobody, kNobody, kNobody) != 0 || ::setresuid(kNobody, kNobody, kNobody) != 0))
    throw Error(cat("root cannot become another user: ", std::strerror(errno)));
}

// Names and bytes of all that is in a folder.
std::string content(const std::string& folder) {
  std::vector<std::string> lines;
  for (const auto& each : std::filesystem::recursive_directory_iterator(folder))
    lines.push_back(each.path().string() +
                    (each.is_directory() ? "/" : lockstep::test::read_bytes(each.path().string())));
  std::sort(lines.begin(), lines.end());
  std::string all;
  for (const std::string& line : lines) all += line + '\n';
  return all;
}

using Net = FullyShardedDataParallel<Marked>;
struct Training {
  Communicator& c;
  Net net{Marked(), c, {.wrap = wrap_modules<Block>()}};
  Adam optimizer{net.parameters(), {.lr = 0.01}};
  int steps = 0;
  void step() {
    optimizer.zero_grad();
    loss_of(net(rows_of(c, steps++))).backward();
    optimizer.step();
  }
};

std::string outcome(int rank, const std::shared_ptr<Store>& store, const TemporaryFolder& folder) {
  become_nobody();
  const std::unique_ptr<Communicator> c =
      make_process_communicator(store, rank, kRanks, support::first_devices(kRanks)[static_cast<std::size_t>(rank)],
                                {.timeout = conformance::kPatience});
  Training undisturbed{*c}, training{*c};
  for (int i = 0; i < 4; ++i) undisturbed.step();
  std::string wrong;
  const auto expect = [&](const std::string& said, std::initializer_list<std::string> parts) {
    wrong += missing(said, parts);
    wrong += missing(said, {"Permission denied"});
  };
  const std::string locked = folder / "locked", with_set = folder / "with_set", own = folder / "open/own";

  // ---- sets and whole files
  training.step();
  expect(message_of<Error>([&] { training.net.save_sharded(locked, training.optimizer); }),
         {"[save_sharded] ", locked, "model-0000"});
  expect(message_of<Error>([&] { training.net.save_sharded(with_set); }),
         {"[save_sharded] ", "cannot remove '" + with_set + "/model.safetensors.index.json'"});
  training.step();
  const std::vector<NamedTensor> whole = training.net.whole_state_dict();
  expect(message_of<Error>([&] { save_safetensors(cat(locked, "/whole-", rank), whole); }),
         {cat(locked, "/whole-", rank)});

  // ---- checkpoints: from the beginning, and from one moment to the next
  expect(message_of<Error>([&] { CheckpointWriter(locked, *c); }),
         {"[CheckpointWriter] rank 0: cannot write to the folder '" + locked + "'"});
  expect(message_of<Error>([&] { CheckpointWriter(locked + "/runs", *c); }),
         {"[CheckpointWriter] rank 0: cannot make the folder '" + locked + "/runs'"});
  CheckpointWriter writer(own, *c);
  const auto lock_own = [&](mode_t mode) {
    c->barrier();
    if (rank == 0) set_mode(own, mode);
    c->barrier();
  };
  writer.save(2, training.net.checkpoint_entries());
  writer.wait();
  lock_own(kLocked);
  const std::string before = content(own);
  training.step();
  writer.save(3, training.net.checkpoint_entries());
  expect(message_of<Error>([&] { writer.wait(); }),
         {"[CheckpointWriter] step 3: rank 0: cannot make the folder '" + own + "/step-00000003.tmp-"});
  if (content(own) != before) wrong += "the locked folder has changed ";
  lock_own(kOpen);

  // ---- and all goes on
  training.step();
  writer.save(4, training.net.checkpoint_entries());
  writer.close();
  if (newest_checkpoint(own, *c)->step() != 4) wrong += "no checkpoint of step 4 ";
  training.net.save_sharded(folder / "open");
  const Doubles end = values_of(training.net.whole_state_dict());
  if (end != values_of(undisturbed.net.whole_state_dict())) wrong += "other parameters than without errors ";
  const std::optional<Checkpoint> found = newest_checkpoint(own, *c);
  training.net.load_checkpoint(*found);
  if (values_of(training.net.whole_state_dict()) != end) wrong += "other parameters in the checkpoint ";
  return wrong;
}

}  // namespace

TEST_CASE("processes: ranks that may not write into a folder all hear why, and train on") {
  const TemporaryFolder folder;
  set_mode(folder.path().string(), 0755);
  for (const char* name : {"open", "locked", "with_set"}) std::filesystem::create_directory(folder / name);
  lockstep::test::write_bytes(folder / "with_set/model.safetensors.index.json", "an older set");
  lockstep::test::write_bytes(folder / "with_set/model-00001-of-00002.safetensors", "its first file");
  lockstep::test::write_bytes(folder / "locked/other", "a file");
  set_mode(folder / "open", kOpen);
  for (const char* name : {"locked", "with_set"}) set_mode(folder / name, kLocked);
  const std::string before = content(folder / "locked") + content(folder / "with_set");

  const std::shared_ptr<Store> store = processes::make_mapped_store();
  const std::vector<std::string> wrong =
      processes::fork_ranks(kRanks, [&](int rank) { return outcome(rank, store, folder); });
  CHECK(wrong == std::vector<std::string>(kRanks));
  CHECK(content(folder / "locked") + content(folder / "with_set") == before);
  CHECK(std::filesystem::exists(folder / "open/model.safetensors.index.json"));
  for (const char* name : {"locked", "with_set"}) set_mode(folder / name, kOpen);  // to be removed
}
