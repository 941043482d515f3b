// What is particular about a store in a folder.
#include "lockstep/parallel/comm/store/file_store.h"

#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/runtime/error.h"
#include "parallel/comm/store/stores.h"
#include "support/catch.h"
#include "support/messages.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::test::soon;
using lockstep::test::TemporaryFolder;
using support::message_of;

TEST_CASE("a store in a folder keeps runs apart, and can be removed") {
  const TemporaryFolder folder;
  const auto options = [&](const std::string& run) { return FileStoreOptions{folder.path().string(), run}; };
  const auto first = make_file_store(options("a")), other = make_file_store(options("b"));
  first->set("key", "of a");
  CHECK(make_file_store(options("a"))->get("key", soon()) == "of a");
  CHECK_FALSE(other->try_get("key").has_value());
  CHECK_FALSE(make_file_store(options("a.b"))->try_get("key").has_value());
  other->set("key", "of b");
  remove_file_store(options("a"));
  CHECK(other->get("key", soon()) == "of b");
  CHECK_FALSE(make_file_store(options("a"))->try_get("key").has_value());
  for (const auto& run : {"a", "b", "a.b"}) remove_file_store(options(run));
  CHECK(folder.count() == 0);
  for (const char* wrong : {"", "a/b", "..=", "a b"}) CHECK_THROWS_AS(make_file_store(options(wrong)), InvalidArgument);
}

TEST_CASE("a store in a folder wants one that others cannot write in") {
  const TemporaryFolder folder;
  const FileStoreOptions options{folder.path().string(), "run"};
  const auto with_mode = [&](mode_t mode) {
    ::chmod(folder.path().c_str(), mode);
    return message_of<InvalidArgument>([&] { make_file_store(options); });
  };
  CHECK(with_mode(0777).find("nobody else can write") != std::string::npos);
  CHECK(with_mode(0770).find("nobody else can write") != std::string::npos);
  CHECK(with_mode(01777) == "no error");
  CHECK(with_mode(0755) == "no error");
  CHECK_THROWS_AS(make_file_store({folder / "none", "run"}), InvalidArgument);
  REQUIRE(::symlink(folder.path().c_str(), (folder / "link").c_str()) == 0);
  CHECK_THROWS_AS(make_file_store({folder / "link", "run"}), InvalidArgument);
}

TEST_CASE("a store in a folder follows no links, and recovers from what a dead process left") {
  const TemporaryFolder folder;
  const FileStoreOptions options{folder.path().string(), "run"};
  const auto store = make_file_store(options);
  store->set("key", "value");
  const std::string secret = folder / "secret";
  test::write_bytes(secret, "secret");
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    const std::string name = entry.path().filename().string();
    if (name == "lockstep.run=lock" || name == "secret") continue;
    std::filesystem::remove(entry.path());
    std::filesystem::create_symlink(secret, entry.path());
  }
  CHECK_THROWS_AS(store->try_get("key"), CommError);
  store->set("key", "new");  // replaces the link, and not what it points to
  CHECK(store->get("key", soon()) == "new");
  CHECK(test::read_bytes(secret) == "secret");

  std::filesystem::create_symlink(secret, folder / "lockstep.run=part");
  store->set("key", "newer");
  CHECK(store->get("key", soon()) == "newer");
  CHECK(test::read_bytes(secret) == "secret");
  test::write_bytes(folder / "lockstep.run=part", "half a val");
  store->set("key", "newest");
  CHECK(store->get("key", soon()) == "newest");

  std::filesystem::create_symlink(secret, folder / "lockstep.other=lock");
  CHECK_THROWS_AS(make_file_store({folder.path().string(), "other"}), CommError);
}
