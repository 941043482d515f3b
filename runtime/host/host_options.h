// How the virtual host devices are laid out and when their work runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/device.h"

namespace lockstep {

// When work on the virtual host devices runs.
enum class HostMode : std::uint8_t {
  automatic,  // what LOCKSTEP_HOST_MODE says (inline, async, strict, record), else inline
  inlined,    // at once, in the thread that enqueues it: the fast way
  async,      // in a thread per stream, as on a device that works on its own
  strict,     // as async, in an order that varies with the seed, and watched: see runtime/order/order.h
  record,     // never: it is written down, see runtime/record/record.h
};

// The instructions of kernels on host devices and the cpu device, where the library was compiled for several. The
// choice makes no difference to the bits of results, but for those that oneDNN computes (products and convolutions),
// which follows its own: ONEDNN_MAX_CPU_ISA.
enum class InstructionSet : std::uint8_t {
  automatic,  // what LOCKSTEP_CPU_ISA says (avx2, avx512), else the widest that library and processor have
  avx2,       // x86-64-v3
  avx512,     // x86-64-v4
};

// How long copies over one link take, in modes async and strict.
struct HostLink {
  Device source, destination;                  // host devices, or cpu
  std::size_t bandwidth_bytes_per_second = 0;  // 0: what the machine gives
  int latency_microseconds = 0;
};

// What several links pass, a device's port for example, in modes async and strict: all copies over them at one time
// share it evenly, in pieces of a few milliseconds. A link that stands there twice passes it twice.
struct HostShared {
  std::size_t bandwidth_bytes_per_second = 0;    // above 0
  std::vector<std::pair<Device, Device>> links;  // source and destination: host devices, or cpu
};

// Calls piece(i) once for each i from 0 to `count`, from any threads, and returns when all calls have returned. The
// calls do not throw, and do not wait for each other.
using ParallelFor = std::function<void(std::int64_t count, const std::function<void(std::int64_t i)>& piece)>;

// How the virtual host devices are laid out. Zero or empty fields take the value of the environment variable, then the
// default.
struct HostOptions {
  int devices = 0;                             // LOCKSTEP_HOST_DEVICES; default: cores, at most 8
  std::vector<std::size_t> memory_bytes = {};  // LOCKSTEP_HOST_MEMORY ("8G", "2G,1G"); per device (the last one
                                               // repeats); default: an equal share of the machine; 1T in
                                               // mode record
  std::vector<int> multiprocessors = {};       // per device (the last one repeats); default 1
  HostMode mode = HostMode::automatic;         // LOCKSTEP_HOST_MODE
  // Which order independent streams run in: LOCKSTEP_HOST_SEED; default 1 in mode strict, 0 (whatever the machine
  // makes of it) in mode async.
  std::uint64_t seed = 0;
  std::size_t bandwidth_bytes_per_second = 0;  // of every link: LOCKSTEP_HOST_BANDWIDTH ("10G"); default: the machine's
  int latency_microseconds = 0;                // of every copy between devices: LOCKSTEP_HOST_LATENCY; default 0
  std::vector<HostLink> links = {};            // those that differ
  std::vector<HostShared> shared = {};         // what they share: ports, for example; default none
  InstructionSet instruction_set = InstructionSet::automatic;  // LOCKSTEP_CPU_ISA
  // How many threads one kernel uses: LOCKSTEP_HOST_THREADS, at most 1024; see set_threads().
  int threads = 0;
  // The program's own threads, in place of the library's. Called by whatever thread runs a kernel, several at once.
  ParallelFor parallel_for = {};
  std::string faults = {};  // LOCKSTEP_HOST_FAULTS ("allocation=3,deny=0-1", "seed=7"); default none
};
// Must be called before anything uses a device; throws Error when it is too late.
LOCKSTEP_API void configure_host(const HostOptions& options);

// How many threads a large kernel of a host device or the cpu device is divided among from now on. 0, the default: the
// cores that the process may use (its affinity, OMP_NUM_THREADS), divided among the threads that compute at the time,
// such as those of several devices. Results do not depend on it. The threads begin when a kernel first needs them, and
// end when none has for two seconds. The workers of a DataLoader compute alone. May be called at any time, from any
// thread.
LOCKSTEP_API void set_threads(int threads);
// The most that one kernel uses. Throws InvalidArgument when LOCKSTEP_HOST_THREADS is no such number, as the first use
// of a device does.
LOCKSTEP_API int get_threads();

// The instructions that kernels use; `automatic` where the library was compiled for a processor without a name here.
// Throws InvalidArgument when those that were asked for are not in the library or the processor, as the first use of a
// device does. Makes the devices: call configure_host() before.
LOCKSTEP_API InstructionSet host_instruction_set();

}  // namespace lockstep
