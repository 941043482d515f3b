#include "lockstep/parallel/comm/store/file_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "lockstep/parallel/comm/sha256.h"
#include "lockstep/parallel/comm/store/socket.h"
#include "lockstep/parallel/comm/store/store_table.h"
#include "lockstep/runtime/error.h"

namespace lockstep {
namespace {

using detail::Fd;

constexpr Milliseconds kLongestPause{20};

CommError error(const std::string& what) { return CommError(-1, "store", cat(what, ": ", std::strerror(errno))); }

std::string prefix_of(const FileStoreOptions& options) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' ||
           c == '_';
  };
  LOCKSTEP_CHECK(!options.run_id.empty() && options.run_id.size() <= 64 &&
                     std::all_of(options.run_id.begin(), options.run_id.end(), fits),
                 "[FileStore] expected a run id of 1 to 64 letters, digits, '.', '-' or '_', got '", options.run_id,
                 "'");
  return cat("lockstep.", options.run_id, "=");
}

Fd open_folder(const std::string& path) {
  Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  LOCKSTEP_CHECK(folder && ::fstat(folder.get(), &status) == 0, "[FileStore] expected a folder, got '", path,
                 "': ", std::strerror(errno));
  LOCKSTEP_CHECK(status.st_uid == ::geteuid() || status.st_uid == 0, "[FileStore] expected a folder of this user's, '",
                 path, "' is another's");
  LOCKSTEP_CHECK((status.st_mode & 022) == 0 || (status.st_mode & S_ISVTX) != 0,
                 "[FileStore] expected a folder that nobody else can write in, or a sticky one, got '", path, "'");
  return folder;
}

class FileStore final : public Store {
 public:
  explicit FileStore(const FileStoreOptions& options)
      : options_(options),
        prefix_(prefix_of(options)),
        folder_(open_folder(options.folder)),
        lock_(::openat(folder_.get(), cat(prefix_, "lock").c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600)) {
    if (!lock_) throw error(cat("cannot use the lock in '", options.folder, "'"));
    check_owner(lock_, "lock");
  }

  void set(const std::string& key, const std::string& value) override {
    detail::check_key("Store.set", key);
    detail::check_value("Store.set", key, value);
    const Lock lock(*this);
    write(key, value);
  }
  std::string get(const std::string& key, Deadline deadline) override {
    for (auto pause = Milliseconds(1);; pause = std::min(pause * 2, kLongestPause)) {
      if (auto value = try_get(key)) return *value;
      if (deadline.passed()) throw TimeoutError(cat("[Store.get] nobody set '", key, "' before the deadline"));
      std::this_thread::sleep_until(std::min(deadline.time(), Clock::now() + pause));
    }
  }
  std::optional<std::string> try_get(const std::string& key) override {
    const Fd file(::openat(folder_.get(), name(key).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    if (!file && errno == ENOENT) return std::nullopt;
    if (!file) throw error(cat("cannot read '", key, "' in '", options_.folder, "'"));
    check_owner(file, key);
    std::string value(kMaxValueBytes + 1, '\0');
    std::size_t bytes = 0;
    while (bytes < value.size()) {
      const ssize_t got = ::read(file.get(), value.data() + bytes, value.size() - bytes);
      if (got < 0 && errno != EINTR) throw error(cat("cannot read '", key, "' in '", options_.folder, "'"));
      if (got == 0) break;
      if (got > 0) bytes += static_cast<std::size_t>(got);
    }
    value.resize(bytes);
    detail::check_value("Store.get", key, value);
    return value;
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    detail::check_key("Store.add", key);
    const Lock lock(*this);
    const std::int64_t sum = detail::add_to_text(key, try_get(key).value_or(""), amount);
    write(key, std::to_string(sum));
    return sum;
  }
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired) override {
    detail::check_key("Store.compare_set", key);
    detail::check_value("Store.compare_set", key, desired);
    const Lock lock(*this);
    std::string now = try_get(key).value_or("");
    if (now != expected) return now;
    write(key, desired);
    return desired;
  }
  bool erase(const std::string& key) override {
    const Lock lock(*this);
    return ::unlinkat(folder_.get(), name(key).c_str(), 0) == 0;
  }

 private:
  // Between the threads of this object, and between it and others.
  class Lock {
   public:
    explicit Lock(FileStore& store) : within_(store.mutex_), fd_(store.lock_.get()) {
      const Deadline deadline = Deadline::after(store.options_.timeout);
      while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) throw error("cannot lock the store");
        if (deadline.passed())
          throw CommError(-1, "store",
                          cat("the lock in '", store.options_.folder, "' is not free before the deadline"));
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    ~Lock() { ::flock(fd_, LOCK_UN); }

   private:
    std::lock_guard<std::mutex> within_;
    int fd_;
  };

  // Of fixed length, without the characters that a key may have and a name may not.
  std::string name(const std::string& key) const {
    return prefix_ + detail::to_hex(detail::Sha256().update(key).digest());
  }
  void check_owner(const Fd& file, const std::string& key) const {
    struct stat status {};
    if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != ::geteuid())
      throw CommError(-1, "store", cat("expected '", key, "' in '", options_.folder, "' to be this user's file"));
  }
  // Under the lock, so one name is enough for what is not there yet; what a dead process left under it is replaced.
  void write(const std::string& key, const std::string& value) {
    const std::string part = prefix_ + "part";
    ::unlinkat(folder_.get(), part.c_str(), 0);
    const Fd file(::openat(folder_.get(), part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    std::size_t done = 0;
    while (file && done < value.size()) {
      const ssize_t written = ::write(file.get(), value.data() + done, value.size() - done);
      if (written < 0 && errno != EINTR) break;
      if (written > 0) done += static_cast<std::size_t>(written);
    }
    if (!file || done < value.size() || ::renameat(folder_.get(), part.c_str(), folder_.get(), name(key).c_str()) != 0)
      throw error(cat("cannot write '", key, "' in '", options_.folder, "'"));
  }

  const FileStoreOptions options_;
  const std::string prefix_;
  const Fd folder_, lock_;
  std::mutex mutex_;
};

}  // namespace

std::shared_ptr<Store> make_file_store(const FileStoreOptions& options) { return std::make_shared<FileStore>(options); }

void remove_file_store(const FileStoreOptions& options) {
  const std::string prefix = prefix_of(options);
  Fd folder = open_folder(options.folder);
  const int fd = folder.get();
  DIR* const entries = ::fdopendir(folder.release());
  if (!entries) throw error(cat("cannot read '", options.folder, "'"));
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(entries))
    if (std::string_view(entry->d_name).starts_with(prefix)) names.emplace_back(entry->d_name);
  for (const std::string& name : names) ::unlinkat(fd, name.c_str(), 0);
  ::closedir(entries);
}

}  // namespace lockstep
