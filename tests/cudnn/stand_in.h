// A stand-in for cuDNN's graph API: of convolutions, with or without a bias, and of graphs of products, reductions and
// pointwise operations. It checks what it is told, and offers engines of every kind. The library finds it by name, so
// programs that link it export its functions.
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
  Status status_of_plan = kSuccess;
};

struct Array {
  const void* data;
  DataType type;
  std::array<std::int64_t, 4> dims;
  bool channels_last;
  std::int64_t alignment;

  std::int64_t count() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
  std::int64_t at(std::int64_t n, std::int64_t c, std::int64_t row, std::int64_t column) const {
    return channels_last ? ((n * dims[2] + row) * dims[3] + column) * dims[1] + c
                         : ((n * dims[1] + c) * dims[2] + row) * dims[3] + column;
  }
};

// What a plan is executed for.
struct Convolution {
  DescriptorKind kind;
  Array x, w, y, bias;  // a bias of no dimensions: there is none
  std::array<std::int64_t, 2> padding, stride, dilation;
  float alpha, beta;
  std::int64_t engine;
  void* workspace;
  std::int64_t workspace_bytes;
  bool first;  // the first time of this plan
};

// Of a graph. What is virtual lies between two operations, and in no memory.
struct Tensor {
  std::int64_t id;
  DataType type;
  std::array<std::int64_t, 4> dims, strides;
  std::int64_t alignment;
  bool is_virtual, by_value;
  const void* data;

  std::int64_t count() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
};

struct Operation {
  DescriptorKind kind;
  Tensor x, b, t, y;  // of a product a, b, -, c; of dimensions 0 where there is none
  PointwiseMode mode;
  ReductionOperator reduction;
  std::int64_t axis;
};

struct Graph {
  std::vector<Operation> operations;
  std::vector<Tensor> arrays;  // in memory, each once
  bool dynamic;
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
  std::function<Status(Handle, const Graph&)> execute_graph;
  std::function<void(const void*)> made, ended;  // descriptors
};
Hooks& hooks();  // made when it is first asked for, be it before main

// What the two heuristics answer of any convolution, and the first one of one with a bias.
extern std::vector<Engine> first_engines, fallback_engines, engines_with_bias;
std::vector<Engine> usual_engines(), usual_engines_with_bias();
std::vector<Engine>& graph_engines();  // of the first heuristic; the other one knows nothing of graphs
extern int heuristics_asked, kernel_caches_made;
extern std::size_t version;  // what it says it is

// These instead, for as long as one lives. Plans that the library has made stay what they are.
struct Offering {
  Offering(std::vector<Engine> first, std::vector<Engine> fallback, std::vector<Engine> with_bias = {}) {
    first_engines.swap(first), fallback_engines.swap(fallback), engines_with_bias.swap(with_bias);
  }
  Offering(const Offering&) = delete;
  Offering& operator=(const Offering&) = delete;
  ~Offering() {
    first_engines = usual_engines();
    fallback_engines = {{1, {}, 0}};
    engines_with_bias = usual_engines_with_bias();
  }
};

// Writes the results as plain loops.
void compute(const Convolution& convolution);
void compute(const Graph& graph);

}  // namespace cudnn_stand_in
