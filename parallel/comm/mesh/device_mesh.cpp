#include "lockstep/parallel/comm/mesh/device_mesh.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "lockstep/parallel/comm/agree.h"
#include "lockstep/runtime/strings.h"

namespace lockstep {
namespace {

std::string joined(const std::vector<std::string>& names, const char* between) {
  std::string text;
  for (const std::string& name : names) text += cat(text.empty() ? "" : between, name);
  return text;
}

// Quoted, so that no name looks like several.
std::string describe(const std::vector<int>& shape, const std::vector<std::string>& names) {
  std::string text = "(";
  for (std::size_t d = 0; d < shape.size(); ++d) text += cat(d ? ", " : "", shape[d]);
  text += "), names (";
  for (std::size_t d = 0; d < names.size(); ++d) text += cat(d ? ", '" : "'", names[d], '\'');
  return text + ")";
}

// "" or why these are no mesh of `ranks` ranks.
std::string why_no_mesh(const std::vector<int>& shape, const std::vector<std::string>& names, int ranks) {
  if (shape.empty()) return "expected at least one dimension, got none";
  if (names.size() != shape.size())
    return cat("expected a name for each of ", shape.size(), " dimensions, got ", names.size());
  const std::set<std::string> distinct(names.begin(), names.end());
  if (distinct.size() != names.size() || distinct.count(""))
    return cat("expected names that are distinct and not empty, got ", describe(shape, names));
  std::int64_t product = 1;
  for (const int extent : shape) {
    if (extent <= 0) return cat("expected positive extents, got ", describe(shape, names));
    product *= extent;
    if (product > ranks) break;
  }
  if (product != ranks) return cat("expected a shape of ", ranks, " ranks, got ", describe(shape, names));
  return "";
}

}  // namespace

struct DeviceMesh::Dimension {
  std::vector<std::size_t> of;  // dimensions of the grid; several: flattened
  int extent = 1, coordinate = 0;
  std::shared_ptr<Communicator> group = nullptr;
};

// The whole, which all parts share.
struct DeviceMesh::Grid {
  Communicator& communicator;
  std::vector<int> shape;
  std::vector<std::string> names;
  std::vector<int> coordinate = {};  // of this rank
  std::map<std::string, Dimension> dimensions = {};

  // Those of the grid: with `of` a part of them free, and the others as this rank has them.
  std::vector<int> ranks(const std::vector<std::size_t>& of) const {
    std::vector<int> result;
    const int size = std::accumulate(shape.begin(), shape.end(), 1, std::multiplies<>());
    for (int r = 0; r < size; ++r)
      if (color(coordinates(r), of) == color(coordinate, of)) result.push_back(r);
    return result;
  }
  std::vector<int> coordinates(int rank) const {
    std::vector<int> result(shape.size());
    for (std::size_t d = shape.size(); d-- > 0; rank /= shape[d]) result[d] = rank % shape[d];
    return result;
  }
  // Equal for ranks that differ in these dimensions alone.
  int color(const std::vector<int>& at, const std::vector<std::size_t>& of) const {
    int result = 0;
    for (std::size_t d = 0; d < shape.size(); ++d)
      if (std::find(of.begin(), of.end(), d) == of.end()) result = result * shape[d] + at[d];
    return result;
  }
  Dimension make(const std::vector<std::size_t>& of) {
    Dimension made{.of = of, .group = communicator.split(color(coordinate, of))};
    made.extent = made.group->size();
    made.coordinate = made.group->rank();
    return made;
  }
  const Dimension& dimension(const char* op, const std::string& name, const std::vector<std::string>& here) const {
    const auto found = dimensions.find(name);
    bool inside = found != dimensions.end();
    // A flattened one belongs to parts that have all of what it was made of.
    for (std::size_t i = 0; inside && i < found->second.of.size(); ++i)
      inside = name == here[0] || std::find(here.begin(), here.end(), names[found->second.of[i]]) != here.end();
    LOCKSTEP_CHECK(inside, "[", op, "] expected one of the dimensions ", joined(here, ", "), ", got '", name, "'");
    return found->second;
  }
};

DeviceMesh::DeviceMesh(Communicator& communicator, std::vector<int> shape, std::vector<std::string> names)
    : grid_(new Grid{.communicator = communicator, .shape = shape, .names = names}) {
  detail::agree(communicator, "DeviceMesh", describe(shape, names), why_no_mesh(shape, names, communicator.size()));
  grid_->coordinate = grid_->coordinates(communicator.rank());
  for (std::size_t d = 0; d < shape.size(); ++d) grid_->dimensions.emplace(names[d], grid_->make({d}));
  names_ = std::move(names);
  shape_ = std::move(shape);
  coordinate_ = grid_->coordinate;
}

DeviceMesh::DeviceMesh(std::shared_ptr<Grid> grid, std::vector<std::string> names)
    : grid_(std::move(grid)), names_(std::move(names)) {
  for (const std::string& name : names_) {
    const Dimension& dimension = grid_->dimensions.at(name);
    shape_.push_back(dimension.extent);
    coordinate_.push_back(dimension.coordinate);
  }
}

int DeviceMesh::size() const {
  int product = 1;
  for (const int extent : shape_) product *= extent;
  return product;
}

Communicator& DeviceMesh::group(const std::string& name) const {
  return *grid_->dimension("DeviceMesh::group", name, names_).group;
}

Communicator& DeviceMesh::group() const {
  LOCKSTEP_CHECK(names_.size() == 1,
                 "[DeviceMesh::group] expected a name, since there are several dimensions: ", joined(names_, ", "));
  return group(names_[0]);
}

std::vector<int> DeviceMesh::ranks() const {
  std::vector<std::size_t> of;
  for (const std::string& name : names_) {
    const Dimension& dimension = grid_->dimensions.at(name);
    of.insert(of.end(), dimension.of.begin(), dimension.of.end());
  }
  return grid_->ranks(of);
}

DeviceMesh DeviceMesh::slice(const std::vector<std::string>& names) const {
  constexpr const char* kOp = "DeviceMesh::slice";
  LOCKSTEP_CHECK(!names.empty(), "[", kOp, "] expected at least one of the dimensions ", joined(names_, ", "));
  for (const std::string& name : names) grid_->dimension(kOp, name, names_);
  if (names.size() > 1) {
    auto last = names_.begin();
    for (const std::string& name : names) {
      const auto at = std::find(last, names_.end(), name);
      LOCKSTEP_CHECK(at != names_.end(), "[", kOp, "] expected dimensions in the order of ", joined(names_, ", "),
                     ", got ", joined(names, ", "));
      last = at + 1;
    }
  }
  return {grid_, names};
}

DeviceMesh DeviceMesh::flatten(const std::string& given) const {
  constexpr const char* kOp = "DeviceMesh::flatten";
  const std::string name = given.empty() ? joined(names_, "_") : given;
  std::vector<std::size_t> of;
  for (const std::string& each : names_) {
    const Dimension& dimension = grid_->dimensions.at(each);
    of.insert(of.end(), dimension.of.begin(), dimension.of.end());
  }
  std::string why_not;
  const auto found = grid_->dimensions.find(name);
  const bool there = found != grid_->dimensions.end();
  if (there && found->second.of != of) {
    std::vector<std::string> others;
    for (const std::size_t d : found->second.of) others.push_back(grid_->names[d]);
    why_not = cat("expected a name that no other dimension has, got '", name, "' for ", joined(names_, ", "),
                  ", which is that of ", joined(others, ", "));
  }
  detail::agree(grid_->communicator, kOp, describe(shape_, names_) + " as '" + name + '\'', why_not);
  if (!there) grid_->dimensions.emplace(name, grid_->make(of));
  return {grid_, {name}};
}

}  // namespace lockstep
