// Graphs of cuDNN's operations, in the parts that are used here. Private to the library. cuDNN's graph API:
// https://docs.nvidia.com/deeplearning/cudnn/backend/latest/api/cudnn-graph-library.html
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "lockstep/kernels/cuda/cudnn.h"
#include "lockstep/kernels/dtype.h"

namespace lockstep::cudnn {

using Dims = std::array<std::int64_t, 4>;
Dims row_major(const Dims& dims);
DataType type_of(DType dtype);  // of f32, f16 and bf16

// Makes descriptors, all of which `kept` destroys.
class Maker {
 public:
  Maker(const Library& library, Device device, const char* op, std::vector<Descriptor>& kept)
      : library_(library), device_(device), op_(op), kept_(kept) {}

  Descriptor create(DescriptorKind kind);
  void set(Descriptor to, Attribute attribute, AttributeType type, std::int64_t count, const void* values) {
    check(library_.set(to, attribute, type, count, values), "cudnnBackendSetAttribute");
  }
  template <class T>
  void set(Descriptor to, Attribute attribute, AttributeType type, const T& value) {
    set(to, attribute, type, 1, &value);
  }
  void finish(Descriptor made) { check(library_.finalize(made), "cudnnBackendFinalize"); }
  void check(Status status, const char* call) const { cudnn::check(library_, status, device_, op_, call); }

 private:
  const Library& library_;
  Device device_;
  const char* op_;
  std::vector<Descriptor>& kept_;
};

// An array of a call; the call says with its identifier where it is.
struct Array {
  std::int64_t id;
  DataType type;
  Dims dims, strides;
  int alignment;  // in bytes
};

// Describes a graph from its arrays on. What lies between its operations is in no memory: f32, unless said otherwise.
class GraphMaker {
 public:
  explicit GraphMaker(Maker& maker) : maker_(maker) {}

  Descriptor array(const Array& array);
  Descriptor scalar(std::int64_t id, DataType type = kFloat);  // a number of the call, in host memory
  Descriptor between(const Dims& dims, DataType type = kFloat) { return between(dims, row_major(dims), type); }
  Descriptor between(const Dims& dims, const Dims& strides, DataType type);

  // y = mode(x, b). The operands' sizes are y's, or 1. `computes`: the type that it is computed in.
  void pointwise(PointwiseMode mode, Descriptor x, Descriptor b, Descriptor y, DataType computes = kFloat);
  void index(int axis, Descriptor like, Descriptor y);  // of each element along an axis
  void select(Descriptor condition, Descriptor if_true, Descriptor if_false, Descriptor y);
  // c = a @ b, of the last two dimensions. A dimension in front of them that is smaller in b is of groups: the first
  // ones of a's go with the first of b's.
  void matmul(Descriptor a, Descriptor b, Descriptor c);
  void reduce(ReductionOperator op, Descriptor x, Descriptor y);  // over the dimensions that are smaller in y
  void reshape(Descriptor x, Descriptor y);                       // the same elements, with other sizes and strides

  const std::vector<Descriptor>& operations() const { return operations_; }

 private:
  using Part = std::pair<Attribute, Descriptor>;
  Descriptor tensor(const Array& array);  // to be finished
  Descriptor mode(PointwiseMode mode, DataType computes, int axis = -1);
  void add(DescriptorKind kind, std::initializer_list<Part> parts);  // null: not there

  Maker& maker_;
  std::vector<Descriptor> operations_;
  std::int64_t next_id_ = 1000;  // of what is between, behind those of arrays and scalars
};

}  // namespace lockstep::cudnn
