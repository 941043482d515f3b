// A stand-in for cuDNN's graph API, as far as convolutions go: it checks what it is told, and offers engines of every
// kind. The library finds it by name, so programs that link it export its functions.
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "lockstep/kernels/cuda/cudnn_abi.h"

namespace cudnn_stand_in {

using namespace lockstep::cudnn;

struct Engine {
  std::int64_t number;
  std::vector<Note> notes;
  std::int64_t workspace_bytes = 64;
  bool has_plan = true;
};

struct Array {
  const void* data;
  DataType type;
  std::array<std::int64_t, 4> dims;
  bool channels_last;
  std::int64_t alignment;

  std::int64_t at(std::int64_t n, std::int64_t c, std::int64_t row, std::int64_t column) const {
    return channels_last ? ((n * dims[2] + row) * dims[3] + column) * dims[1] + c
                         : ((n * dims[1] + c) * dims[2] + row) * dims[3] + column;
  }
};

// What a plan is executed for.
struct Convolution {
  DescriptorKind kind;
  Array x, w, y;
  std::array<std::int64_t, 2> padding, stride, dilation;
  float alpha, beta;
  std::int64_t engine;
  void* workspace;
  std::int64_t workspace_bytes;
  bool first;  // the first time of this plan
};

// What each program puts in its place. Empty ones succeed, and do nothing.
struct Hooks {
  std::function<Status(Handle*)> create;
  std::function<Status(Handle, NativeStream)> set_stream;
  std::function<Status(Handle, const Convolution&)> execute;
  std::function<void(const void*)> made, ended;  // descriptors
};
Hooks& hooks();  // made when it is first asked for, be it before main

// What the two heuristics answer, of any convolution.
extern std::vector<Engine> first_engines, fallback_engines;
std::vector<Engine> usual_engines();
extern int heuristics_asked;

// These instead, for as long as one lives. Plans that the library has made stay what they are.
struct Offering {
  Offering(std::vector<Engine> first, std::vector<Engine> fallback) {
    first_engines.swap(first), fallback_engines.swap(fallback);
  }
  Offering(const Offering&) = delete;
  Offering& operator=(const Offering&) = delete;
  ~Offering() {
    first_engines = usual_engines();
    fallback_engines = {{1, {}, 0}};
  }
};

// Writes the result as plain loops.
void compute(const Convolution& convolution);

}  // namespace cudnn_stand_in
