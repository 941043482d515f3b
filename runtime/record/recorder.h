// What host mode record writes down (runtime/record/record.h). Private to the library.
//
// Each host thread has a log of its own. An event, and what threads hand over, is named by thread and entry: no address
// and no time gets into the text.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/record/turns.h"

namespace lockstep::detail {

// An entry of a thread's log; of an epoch that is over (Recorder::restart): none.
struct Mark {
  std::uint32_t thread = 0, entry = 0, epoch = 0;
};

struct KernelRecord {
  const char* name;
  std::string dtype;
  std::uint64_t bytes_read = 0, bytes_written = 0, flops = 0;
  std::string shapes = {};
};
struct CollectiveRecord {
  const char* name;
  std::string dtype;
  std::uint64_t bytes = 0;  // by the convention of nccl-tests
  std::string_view group;
  int rank = 0, size = 1, root = -1;
};

class Recorder {
 public:
  // Null unless the host devices are in mode record.
  static Recorder* active() { return active_.load(std::memory_order_acquire); }
  // Makes it, once.
  static Recorder& start();

  // ---- streams: numbered in the order in which they are made
  int add_stream(Device device);
  void name_stream(StreamHandle handle, const char* label);

  // ---- entries of the calling thread
  void kernel(int stream, const KernelRecord& kernel);
  void copy(int stream, Device source, Device destination, std::size_t bytes);
  void fill(int stream, std::size_t bytes);
  Mark record(int stream);
  void wait(int stream, const Mark& event);
  void host_wait(const Mark& event);
  void collective(int stream, const CollectiveRecord& collective);
  void task(int stream);
  void call(const char* name);
  void item(std::size_t bytes);
  void mark(std::string_view name);

  // ---- between host threads
  Mark here();                   // the calling thread's last entry
  void after(const Mark& mark);  // the calling thread goes on after it
  void hand_over(const void* address);
  void take_over(const void* address);
  void forget_hand_overs(const void* address);

  // ---- threads
  // Of a thread that is about to start; on the thread itself come and go. One that was not announced comes by itself
  // with its first entry.
  std::uint32_t announce(std::string name);
  void come(std::uint32_t number);
  void go(std::uint32_t number) noexcept;
  // Turns::yield_until for the calling thread.
  bool wait_until(const std::function<bool()>& ready, Deadline deadline);

  // ---- how the devices are linked: all alike until it is set, for so many devices
  void set_links(std::vector<DeviceLink> links, int devices);
  DeviceLink link(int from, int to);

  // ---- the text
  std::string text();
  void restart();  // forgets all entries

 private:
  struct Log {
    Log(std::string its_name, Turns::Thread& its_turn) : name(std::move(its_name)), turn(its_turn) {}
    const std::string name;
    Turns::Thread& turn;
    std::mutex mutex;
    std::string text;
    std::uint32_t entries = 0;
    std::vector<std::uint32_t> known;  // by thread: how many of its entries this one comes after
  };
  struct Leave;  // at the end of a thread that was not announced

  Log& this_thread();
  Log& log_of(std::uint32_t number);
  template <class... Parts>
  Mark add(const Parts&... parts);

  static std::atomic<Recorder*> active_;

  Turns turns_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Log>> logs_;  // by thread
  struct StreamName {
    Device device;
    std::string label;
  };
  std::vector<StreamName> streams_;
  std::unordered_map<const void*, std::vector<Mark>> handed_over_;
  std::vector<DeviceLink> links_;  // a row for each of linked_ devices
  std::size_t linked_ = 0;
  std::atomic<std::uint32_t> epoch_{0};
  int unannounced_ = 0;
};

// What an entry's stream is to the backend that records.
struct RecordStream {
  int index;   // of its device
  int number;  // in the recording
};
inline int number_of(StreamHandle handle) { return reinterpret_cast<const RecordStream*>(handle)->number; }

}  // namespace lockstep::detail
