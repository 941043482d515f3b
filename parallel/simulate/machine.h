// A machine that need not be there: what the simulator replays recordings on. A machine is one host with its devices,
// or several hosts that are alike and a network between them. All times are in seconds, all rates in bytes or floating
// point operations per second; "rate" without more is what the hardware states, and an efficiency is the share of it
// that is reached.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::simulate {

// What a matrix product reaches of the peak: efficiency * K / (K + half_k), after whole tiles and whole waves of tiles.
struct GemmModel {
  double efficiency = 0.8;  // the best shape's
  int tile_m = 128, tile_n = 256;
  double half_k = 256;       // inner extent at which half of the efficiency is reached
  double convolution = 0.5;  // share of a product's speed that a convolution reaches
};

struct GpuType {
  std::string name;
  int multiprocessors = 0;
  double memory_bytes_per_second = 0, memory_efficiency = 0.88;
  std::map<std::string, double> flops;  // peak by dtype: f64 f32 tf32 f16 bf16 f8
  bool tf32 = false;                    // products of f32 run in tf32
  GemmModel gemm;
  double kernel_floor = 0;                                 // the shortest kernel
  double kernel_gap = 0;                                   // between two dependent kernels of one stream
  int h2d_engines = 1, d2h_engines = 1, peer_engines = 1;  // each carries one copy at a time
};

struct MachineDevice {
  int type = 0;      // place in gpu_types
  int numa = 0;      // memory node of the host
  double speed = 1;  // of its kernels, beside its type's
};

// Something that copies share max-min fair. A link that carries less both ways together than twice one way has a third
// link beside the two directions, which the paths of both directions name.
struct Link {
  std::string name;
  double bytes_per_second = 0;
  double copy_engine_efficiency = 1, kernel_efficiency = 1;  // copies by an engine, or by kernels
};

enum class RouteKind { p2p, h2d, d2h, staged, local };

// How copies go from one place to another. A link that stands twice in the path is passed twice, and gives a copy half
// its rate (memory of the host, which staged copies write and read).
struct Route {
  RouteKind kind = RouteKind::p2p;
  std::vector<int> path;  // places in links
  double start = 0;       // from the free engine to the first byte
  double chunk = 0;       // staged: bytes of a piece; the last piece's second way comes on top. 0: none
};

// What calls cost the thread that makes them.
struct HostCosts {
  double kernel = 0, copy = 0, fill = 0, record = 0, wait = 0, collective = 0, task = 0;
  double synchronize = 0;               // to wake up, after what a host_wait waits for
  double item = 0;                      // beside its host_wait
  std::map<std::string, double> calls;  // by the name of the call: set_device, allocate, free, ...
  double other_call = 0;                // a call that `calls` lacks
  double factor = 1;                    // all of these
  // For models written for a framework of another language: more per kernel, and once per step.
  double framework_kernel = 0, framework_step = 0;
};

// From the moment when something is done to the moment when what waited for it can start.
struct EdgeLatencies {
  double start = 0;  // from an enqueueing call to the start on an idle stream
  double same_device = 0, cross_device = 0, host = 0;
};

enum class CollectiveModel {
  nccl,      // NCCL's own tuning model
  textbook,  // rings of latency and rate alone
};

// Measured time by size, for one operation among so many ranks, which fill one host after the other.
struct CollectiveTable {
  std::string op;
  int ranks = 0;
  std::vector<std::pair<double, double>> points;  // bytes (nccl-tests' convention), seconds; bytes ascend
};

enum class Generation { pascal, volta, ampere, hopper, blackwell };

struct Collectives {
  CollectiveModel model = CollectiveModel::nccl;
  Generation generation = Generation::hopper;
  bool nvlink = true;                   // else PCIe between the devices of a host
  double ring_bytes_per_second = 0;     // bus rate of a ring within a host, all channels together, Simple protocol
  std::map<int, double> ring_by_ranks;  // ... where fewer ranks than all have another one
  // Bus rate of in-switch reduction by ranks of a host, where measured; else the model's.
  std::map<int, double> nvls_by_ranks;
  int nvls_from = 0;           // ranks of a host from which in-switch reduction is used; 0: never
  int channels = 16;           // rings side by side
  double latency = 0;          // textbook: of a step within a host
  double host_latency = 0;     // added to each: what the measured latency has over the model's
  int ctas = 0;                // multiprocessors that one takes from kernels beside it
  double kernel_slowdown = 0;  // how much longer kernels beside it take: 0.1 is a tenth
  std::vector<CollectiveTable> tables;
};

struct Network {
  int hosts = 1;
  int nics = 0;                 // of each host
  double bytes_per_second = 0;  // a NIC's line rate, each way
  double efficiency = 1;        // share of it that large messages reach
  double latency = 0;           // of a message, beside the model's own
  double oversubscription = 1;  // 2: the spine carries half of what all hosts send
};

struct Machine {
  std::string name;
  std::vector<GpuType> gpu_types;
  std::vector<MachineDevice> devices;  // of one host
  std::vector<Link> links;             // of one host
  HostCosts host;
  EdgeLatencies edges;
  Collectives collectives;
  Network network;
  std::map<std::string, std::string> sources;  // of its figures, by the name of the field

  const GpuType& type_of(int device) const {
    return gpu_types[static_cast<std::size_t>(devices[static_cast<std::size_t>(device)].type)];
  }
  int device_count() const { return static_cast<int>(devices.size()); }  // of one host
  int rank_count() const { return device_count() * network.hosts; }

  // From device to device of a host; kHost is its memory. There is one for each pair of different places.
  static constexpr int kHost = -1;
  const Route& route(int source, int destination) const {
    return routes[place(source) * (devices.size() + 1) + place(destination)];
  }

  std::size_t place(int device) const { return static_cast<std::size_t>(device) + 1; }
  std::vector<Route> routes;  // see route
};

// Throws Error that names the field and both sides for what is missing, unknown, negative or contradictory:
// "[machine] devices[3].type: expected one of h200, got h201". docs/machines/README.md says what a file holds.
Machine parse_machine(std::string_view json);
// As parse_machine; its errors name the file too.
Machine load_machine(const std::string& path);

}  // namespace lockstep::simulate
