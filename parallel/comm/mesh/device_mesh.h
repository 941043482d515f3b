// Ranks as a grid with named dimensions: data parallel over one, pipelines or shards over another.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"

namespace lockstep {

// The ranks of a communicator, row by row: rank = ((c0 * shape[1]) + c1) * shape[2] + …, so the last dimension is
// contiguous and belongs inside a machine. Along each dimension a rank has a group: the ranks that differ from it in
// that coordinate alone, in its order.
//
// A mesh is a handle to be copied, and what slices and flattens it shares its groups. All of it works on the
// communicator that it was made of, which must outlive it, for `flatten` alone; the groups are independent of it. There
// may be several meshes, of other shapes, of one communicator. Belongs to the thread of its rank.
class LOCKSTEP_API DeviceMesh {
 public:
  // Every rank calls it, with the same shape and names. Blocks until all have. Throws InvalidArgument, on every rank,
  // and has made nothing then: for a shape that is not that of communicator.size() ranks, for names that are empty or
  // not distinct, and for a description that is not that of every rank, which names two ranks and both descriptions.
  // CommError for ranks that do not come.
  DeviceMesh(Communicator& communicator, std::vector<int> shape, std::vector<std::string> names);

  int size() const;  // ranks, of the whole (sliced) mesh
  const std::vector<int>& shape() const { return shape_; }
  const std::vector<std::string>& names() const { return names_; }
  // Of this rank, by dimension.
  const std::vector<int>& coordinate() const { return coordinate_; }
  // Along the dimension `name`: one of names(), or one that flatten has made of some of them. Its size is the
  // dimension's, its rank this one's coordinate. InvalidArgument, with the names there are, for others.
  Communicator& group(const std::string& name) const;
  // Without a name: of a mesh of one dimension.
  Communicator& group() const;
  // The ranks of the communicator that the mesh was made of which differ from this one in these dimensions alone, row
  // by row.
  std::vector<int> ranks() const;

  // The part of the mesh with these dimensions that this rank is in. The names ascend, in the order of names(); one may
  // be alone, and then be one of flatten's. Makes no groups, so ranks need not call it together. InvalidArgument for
  // names that are not here or not in this order.
  DeviceMesh slice(const std::vector<std::string>& names) const;
  DeviceMesh operator[](const std::string& name) const { return slice({name}); }

  // A mesh of one dimension of all dimensions of this one, named `name` (default: the names, joined by "_"), and its
  // group. Every rank of the communicator calls it, on the part that it is in. Blocks. The same dimensions with the
  // same name are the same group again; a mesh of one dimension by its own name is itself. Throws InvalidArgument on
  // every rank: for a name that another dimension has, or that was given to other dimensions, and for calls that
  // differ.
  DeviceMesh flatten(const std::string& name = "") const;

 private:
  struct Grid;
  struct Dimension;
  DeviceMesh(std::shared_ptr<Grid> grid, std::vector<std::string> names);

  std::shared_ptr<Grid> grid_;
  std::vector<std::string> names_;
  std::vector<int> shape_, coordinate_;
};

}  // namespace lockstep
