// What nodes say of themselves before a job, whether they fit it and each other, and that as a table and as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/parallel/launch/options.h"

namespace lockstep::launch {

struct NodeHealth {
  struct Space {
    std::string path;  // empty: nobody asked for it
    std::uint64_t free_bytes = 0;
    std::string error;  // why nothing can be written there
  };
  int node = 0, ranks = 0;
  std::string host = "?", build;     // as to_string(build_info()) says it
  std::string device_type, devices;  // "cuda", "4 x NVIDIA H200 (139 GiB)"
  int device_count = 0;
  std::string device_error;  // why there are none
  std::uint64_t memory_bytes = 0, memory_free_bytes = 0;
  Space logs, shared;                       // the folder of --log-dir, or where it would be made; /dev/shm
  double clock_ms = 0, clock_error_ms = 0;  // ahead of node 0's, give or take
  double latency_us = 0;                    // of a request to the store, there and back
  double megabytes_per_second = 0;          // to the store and from it
  std::string silent;                       // it says nothing of the above, because
};

std::string to_text(const NodeHealth& node);                 // for the store
NodeHealth parse_health(const std::string& text, int node);  // of what is not understood: silent

struct Health {
  std::vector<NodeHealth> nodes;
  std::vector<std::string> unfit;  // what keeps them from a job, each named with its node; empty: they are fit
};

// `nodes` are all, in order. They are compared with node 0.
Health judge(const Options& options, std::vector<NodeHealth> nodes);

std::string table(const Health& health);
std::string json(const Health& health);

}  // namespace lockstep::launch
