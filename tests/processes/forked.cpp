#include "processes/forked.h"

#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <thread>

#include "lockstep/runtime/error.h"

namespace processes {
namespace {

struct Table {
  static constexpr int kEntries = 64;
  struct Entry {
    bool used;
    char key[256], value[512];
  };
  pthread_mutex_t mutex;
  Entry entries[kEntries];
};

class MappedStore final : public Store {
 public:
  MappedStore() {
    void* memory = mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    table_ = static_cast<Table*>(memory);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&table_->mutex, &attributes);
  }
  ~MappedStore() override { munmap(table_, sizeof(Table)); }

  void set(const std::string& key, const std::string& value) override {
    const Lock lock(table_->mutex);
    put(key, value);
  }
  std::string get(const std::string& key, Deadline deadline) override {
    for (;;) {
      if (const auto value = try_get(key)) return *value;
      if (deadline.passed()) throw TimeoutError(cat("nobody set '", key, "'"));
      std::this_thread::sleep_for(Milliseconds(1));
    }
  }
  std::optional<std::string> try_get(const std::string& key) override {
    const Lock lock(table_->mutex);
    const Table::Entry* entry = find(key);
    return entry ? std::optional<std::string>(entry->value) : std::nullopt;
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    const Lock lock(table_->mutex);
    const Table::Entry* entry = find(key);
    const std::int64_t sum = (entry ? std::atoll(entry->value) : 0) + amount;
    put(key, std::to_string(sum));
    return sum;
  }
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired) override {
    const Lock lock(table_->mutex);
    const Table::Entry* entry = find(key);
    const std::string now = entry ? entry->value : "";
    if (now != expected) return now;
    put(key, desired);
    return desired;
  }
  bool erase(const std::string& key) override {
    const Lock lock(table_->mutex);
    Table::Entry* entry = find(key);
    if (entry) entry->used = false;
    return entry != nullptr;
  }

 private:
  struct Lock {
    explicit Lock(pthread_mutex_t& m) : mutex(m) {
      if (pthread_mutex_lock(&mutex) == EOWNERDEAD) pthread_mutex_consistent(&mutex);
    }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    ~Lock() { pthread_mutex_unlock(&mutex); }
    pthread_mutex_t& mutex;
  };
  Table::Entry* find(const std::string& key) {
    for (Table::Entry& entry : table_->entries)
      if (entry.used && key == entry.key) return &entry;
    return nullptr;
  }
  void put(const std::string& key, const std::string& value) {
    Table::Entry* entry = find(key);
    for (Table::Entry& candidate : table_->entries)
      if (!entry && !candidate.used) entry = &candidate;
    if (!entry || key.size() >= sizeof entry->key || value.size() >= sizeof entry->value)
      throw std::length_error("the store is too small");
    std::memcpy(entry->key, key.c_str(), key.size() + 1);
    std::memcpy(entry->value, value.c_str(), value.size() + 1);
    entry->used = true;
  }
  Table* table_;
};

[[noreturn]] void be_a_rank(int rank, int output, const std::function<std::string(int)>& body) {
  std::string said;
  try {
    said = body(rank);
  } catch (...) {
    said = "threw: " + detail::describe(std::current_exception());
  }
  said += '\0';  // it has come to its end
  for (std::size_t done = 0; done < said.size();) {
    const ssize_t written = write(output, said.data() + done, said.size() - done);
    if (written < 0 && errno != EINTR) break;
    if (written > 0) done += static_cast<std::size_t>(written);
  }
  _exit(0);
}

struct Child {
  pid_t process = -1;
  int output = -1;
  bool ended = false;
  std::string said;
};

// Reads what there is; the end of the output is the end of the child.
void read_some(Child& child) {
  char buffer[4096];
  const ssize_t length = read(child.output, buffer, sizeof buffer);
  if (length < 0 && errno == EINTR) return;
  if (length > 0) {
    child.said.append(buffer, static_cast<std::size_t>(length));
    return;
  }
  close(child.output);
  child.ended = true;
  int status = 0;
  while (waitpid(child.process, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status))
    child.said = "signal " + std::to_string(WTERMSIG(status));
  else if (!child.said.empty() && child.said.back() == '\0')
    child.said.pop_back();
  else
    child.said = "ended early: " + child.said;
}

}  // namespace

std::shared_ptr<Store> make_mapped_store() { return std::make_shared<MappedStore>(); }

std::vector<std::string> fork_ranks(int count, const std::function<std::string(int)>& body) {
  std::vector<Child> children(static_cast<std::size_t>(count));
  for (int rank = 0; rank < count; ++rank) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("no pipe");
    const pid_t process = fork();
    if (process < 0) throw std::runtime_error("no process");
    if (process == 0) {
      close(ends[0]);
      for (const Child& other : children)
        if (other.output >= 0) close(other.output);
      be_a_rank(rank, ends[1], body);
    }
    close(ends[1]);
    children[static_cast<std::size_t>(rank)] = {.process = process, .output = ends[0]};
  }
  const Deadline limit = Deadline::after(2 * conformance::kPatience);
  for (bool more = true; more;) {
    more = false;
    bool all_stopped = true;
    std::vector<pollfd> polled;
    for (const Child& child : children) {
      polled.push_back({.fd = child.ended ? -1 : child.output, .events = POLLIN, .revents = 0});
      if (child.ended) continue;
      more = true;
      siginfo_t state{};
      waitid(P_PID, static_cast<id_t>(child.process), &state, WSTOPPED | WNOHANG | WNOWAIT);
      all_stopped = all_stopped && state.si_pid == child.process;
    }
    if (!more) break;
    for (const Child& child : children)
      if (!child.ended && (all_stopped || limit.passed())) kill(child.process, limit.passed() ? SIGKILL : SIGCONT);
    poll(polled.data(), polled.size(), 20);
    for (std::size_t i = 0; i < children.size(); ++i)
      if (polled[i].revents) read_some(children[i]);
  }
  std::vector<std::string> said;
  for (Child& child : children) said.push_back(std::move(child.said));
  return said;
}

namespace {

std::size_t entries_of(const char* folder) {
  std::size_t count = 0;
  DIR* directory = opendir(folder);
  while (readdir(directory)) ++count;
  closedir(directory);
  return count - 2;
}

}  // namespace

std::size_t open_files() { return entries_of("/proc/self/fd"); }
std::size_t threads() { return entries_of("/proc/self/task"); }

}  // namespace processes
