// Regular structures of machine files: a word makes the links and routes that it stands for.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/simulate/fields.h"
#include "lockstep/parallel/simulate/machine.h"

namespace lockstep::simulate {

// Builds the links and routes of a machine whose devices are known. The first structure that gives a pair of places its
// route wins; a route that is written out, which may name the links of structures, wins over all of them.
class Topology {
 public:
  explicit Topology(Machine& machine);

  void add_link(Fields& fields);       // an entry of "links"
  void add_route(Fields& fields);      // an entry of "routes"
  void add_structure(Fields& fields);  // an entry of "topology"; docs/machines/README.md has the kinds
  // Gives the machine its routes; throws Error that names a pair without one.
  void finish();

 private:
  void add_switch(Fields& fields);
  void add_mesh(Fields& fields);
  void add_pcie(Fields& fields);
  int link(const std::string& name, double bytes_per_second, double copy_engine, double kernel);
  int find_link(const std::string& name, const std::string& field) const;
  int place_of(const nlohmann::json& json, const std::string& field) const;
  std::optional<Route>& at(int source, int destination);
  void propose(int source, int destination, Route route);

  Machine& machine_;
  std::vector<std::optional<Route>> routes_;
  std::set<std::pair<int, int>> written_;  // pairs with a route written out
};

}  // namespace lockstep::simulate
