// What a program enqueued while the runtime recorded it (docs/simulate.md): streams, and for each host thread its calls
// in order. No times: those are the machine's, which a simulation brings.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::simulate {

// A device by its number; plain host memory has none of its own. Virtual host devices and GPUs are numbered alike.
constexpr int kHostMemory = -1;

struct Kernel {
  std::string name, dtype;  // dtype: f32, bf16, ...
  std::int64_t bytes_read = 0, bytes_written = 0, flops = 0;
  std::vector<std::vector<std::int64_t>> shapes;  // of the operands, the results last; empty where unknown
};

struct Copy {
  int source = kHostMemory, destination = kHostMemory;
  std::int64_t bytes = 0;
};

struct Collective {
  std::string op, dtype, group;
  std::int64_t bytes = 0;             // as nccl-tests counts: of all_gather, reduce_scatter and all_to_all the total
  int rank = 0, size = 1, root = -1;  // root: of send and recv the peer; -1: none
};

enum class Kind : std::uint8_t {
  kernel,      // on the stream's device
  copy,        // in the stream's order
  fill,        // of the stream's device's memory
  record,      // an event marks what the stream has so far
  wait,        // later work of the stream runs after what `other` marked
  host_wait,   // the thread goes on when what `other` marked is done
  after,       // the thread goes on when `other` has been issued
  point,       // a place for `after`
  collective,  // in the stream's order, with the other ranks
  task,        // a host function in the stream's order
  call,        // a call with a cost and without work
  item,        // the host has read a value
  mark,        // a boundary
};

struct EntryRef {
  int thread = -1, entry = -1;
};

struct Entry {
  Kind kind = Kind::point;
  int stream = -1;         // the number of its stream; -1: none
  int detail = -1;         // in the recording's kernels, copies or collectives
  std::int64_t bytes = 0;  // of fill and item
  std::string name;        // of task, call and mark
  EntryRef other;          // of wait, host_wait and after
  int line = 0;            // in the file; 0: made by a program
};

struct RecordedStream {
  int device = 0;
  std::string label;
};

struct RecordedThread {
  std::string name;
  std::vector<Entry> entries;
  // Of models of other frameworks: calls of all such threads run one at a time, as under an interpreter's lock.
  bool one_call_at_a_time = false;
};

struct Recording {
  std::string file;  // for messages
  std::vector<RecordedStream> streams;
  std::vector<RecordedThread> threads;
  std::vector<Kernel> kernels;
  std::vector<Copy> copies;
  std::vector<Collective> collectives;

  int device_count() const;  // one more than the largest number of a device that is used
  const Entry& at(EntryRef ref) const;
  // Programs that make recordings; each returns where the entry stands.
  EntryRef add(int thread, Entry entry);
  EntryRef add_kernel(int thread, int stream, Kernel kernel);
  EntryRef add_copy(int thread, int stream, Copy copy);
  EntryRef add_collective(int thread, int stream, Collective collective);
};

// Throws InvalidArgument that names the file, the line and the word. `file` is for messages.
Recording parse_recording(std::string_view text, const std::string& file);
// Throws Error for a file that cannot be read.
Recording read_recording(const std::string& path);

const char* name_of(Kind kind);

}  // namespace lockstep::simulate
