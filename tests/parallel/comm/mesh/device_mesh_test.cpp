// Ranks as a grid with names.
#include "lockstep/parallel/comm/mesh/device_mesh.h"

#include "lockstep/parallel/comm/factory/run_ranks.h"
#include "lockstep/runtime/strings.h"
#include "parallel/comm/conformance.h"
#include "support/catch.h"

using namespace lockstep;
using conformance::refused;
using Names = std::vector<std::string>;
using Ranks = std::vector<int>;

namespace {

// What each of `ranks` ranks found wrong, joined; "" for nothing.
std::string on_ranks(int ranks, const std::function<std::string(Communicator&)>& body) {
  std::string all;
  for (const std::string& said : run_ranks(ranks, body, {.timeout = conformance::kPatience})) all += said;
  return all;
}

// The ranks of `world` that are in `group`, in the group's order.
Ranks members(Communicator& group, int own) {
  Ranks result;
  for (const std::string& each : group.all_gather_bytes(std::to_string(own))) result.push_back(std::stoi(each));
  return result;
}

std::string expect(bool holds, const std::string& what) { return holds ? "" : what + "; "; }

}  // namespace

TEST_CASE("device mesh: rows by rows, with a group along each dimension") {
  CHECK(on_ranks(8, [](Communicator& world) {
          const DeviceMesh mesh(world, {2, 4}, {"data", "tensor"});
          const int rank = world.rank(), row = rank / 4, column = rank % 4;
          std::string wrong = expect(mesh.coordinate() == Ranks{row, column}, "coordinate");
          wrong += expect(mesh.size() == 8 && mesh.shape() == Ranks{2, 4}, "shape");
          wrong += expect(mesh.names() == Names{"data", "tensor"}, "names");
          wrong += expect(members(mesh.group("data"), rank) == Ranks{column, column + 4}, "group data");
          wrong += expect(members(mesh.group("tensor"), rank) == Ranks{4 * row, 4 * row + 1, 4 * row + 2, 4 * row + 3},
                          "group tensor");
          wrong += expect(mesh.group("data").rank() == row && mesh.group("tensor").rank() == column, "ranks");
          wrong += expect(mesh["data"].ranks() == Ranks{column, column + 4}, "ranks along data");
          // Every group reduces for itself.
          const Tensor x = conformance::tensor_of({rank + 0.0}, DType::f64, world.device());
          mesh.group("tensor").all_reduce(x);
          wrong += conformance::differs(x, {16.0 * row + 6});
          mesh.group("data").all_reduce(x);
          return wrong + conformance::differs(x, {28});
        }) == "");
}

TEST_CASE("device mesh: three dimensions, slices and flattened dimensions") {
  CHECK(on_ranks(8, [](Communicator& world) {
          const DeviceMesh mesh(world, {2, 2, 2}, {"pp", "dp", "tp"});
          const int rank = world.rank(), p = rank / 4, d = rank / 2 % 2, t = rank % 2;
          std::string wrong = expect(mesh.coordinate() == Ranks{p, d, t}, "coordinate");
          wrong += expect(members(mesh.group("dp"), rank) == Ranks{4 * p + t, 4 * p + 2 + t}, "group dp");
          const DeviceMesh part = mesh.slice({"dp", "tp"});
          wrong += expect(part.shape() == Ranks{2, 2} && part.coordinate() == Ranks{d, t}, "slice");
          wrong += expect(part.ranks() == Ranks{4 * p, 4 * p + 1, 4 * p + 2, 4 * p + 3}, "ranks of the slice");
          wrong += expect(&part.group("dp") == &mesh.group("dp"), "a slice made a group");
          wrong += expect(&mesh["tp"].group() == &mesh.group("tp"), "the group of one dimension");
          wrong += expect(mesh.slice({"pp", "tp"}).ranks() == Ranks{2 * d, 2 * d + 1, 2 * d + 4, 2 * d + 5}, "pp, tp");

          const DeviceMesh flat = part.flatten();
          wrong += expect(flat.names() == Names{"dp_tp"} && flat.shape() == Ranks{4}, "flattened");
          wrong += expect(flat.coordinate() == Ranks{2 * d + t}, "coordinate in it");
          wrong += expect(members(flat.group(), rank) == Ranks{4 * p, 4 * p + 1, 4 * p + 2, 4 * p + 3}, "its group");
          wrong += expect(&mesh.group("dp_tp") == &flat.group() && &mesh["dp_tp"].group() == &flat.group(), "by name");
          wrong += expect(&mesh.slice({"dp", "tp"}).flatten().group() == &flat.group(), "flattened again");
          wrong += expect(&mesh["dp"].flatten().group() == &mesh.group("dp"), "one dimension by its own name");
          const DeviceMesh all = mesh.flatten("world");
          wrong += expect(members(all.group(), rank) == Ranks{0, 1, 2, 3, 4, 5, 6, 7}, "all of it");

          for (const std::string& each : {
                   refused({"[DeviceMesh::group]", "pp, dp, tp", "'ep'"}, [&] { mesh.group("ep"); }),
                   refused({"[DeviceMesh::group]", "expected a name"}, [&] { mesh.group(); }),
                   refused({"[DeviceMesh::group]", "dp, tp", "'pp'"}, [&] { part.group("pp"); }),
                   refused({"[DeviceMesh::group]", "'world'"}, [&] { part.group("world"); }),
                   refused({"[DeviceMesh::slice]", "in the order of pp, dp, tp", "tp, dp"},
                           [&] {
                             mesh.slice({"tp", "dp"});
                           }),
                   refused({"[DeviceMesh::slice]", "in the order"},
                           [&] {
                             mesh.slice({"dp", "dp"});
                           }),
                   refused({"[DeviceMesh::slice]", "'ep'"}, [&] { mesh["ep"]; }),
                   refused({"[DeviceMesh::slice]", "at least one"}, [&] { mesh.slice({}); }),
                   refused({"[DeviceMesh::flatten]", "'pp'", "dp, tp"}, [&] { part.flatten("pp"); }),
                   refused({"[DeviceMesh::flatten]", "'dp_tp'", "that of dp, tp"},
                           [&] {
                             mesh.slice({"pp", "tp"}).flatten("dp_tp");
                           }),
               })
            wrong += each;
          // Ranks that flatten differently: nobody is left waiting, and nothing is made.
          const std::vector<std::string> pair = rank == 3 ? Names{"pp", "tp"} : Names{"pp", "dp"};
          wrong += refused({"[DeviceMesh::flatten]", "the same on every rank", "rank 3", "'pp', 'dp'", "'pp', 'tp'"},
                           [&] { mesh.slice(pair).flatten("x"); });
          wrong += refused({"'x'"}, [&] { mesh.group("x"); });
          world.barrier();
          return wrong;
        }) == "");
}

TEST_CASE("device mesh: a mesh can be assigned, and outlives its communicator but for flatten") {
  CHECK(on_ranks(4, [](Communicator& world) {
          std::unique_ptr<Communicator> own = world.split(0);
          DeviceMesh mesh(*own, {2, 2}, {"pp", "dp"});
          own.reset();
          const int rank = world.rank(), row = rank / 2 * 2;
          std::string wrong = expect(mesh.ranks() == Ranks{0, 1, 2, 3}, "ranks");
          mesh = mesh["dp"];
          wrong += expect(mesh.names() == Names{"dp"} && mesh.ranks() == Ranks{row, row + 1}, "what was assigned");
          return wrong + expect(members(mesh.group(), rank) == Ranks{row, row + 1}, "its group");
        }) == "");
}

TEST_CASE("device mesh: several views of one communicator") {
  CHECK(on_ranks(4, [](Communicator& world) {
          const DeviceMesh dense(world, {4}, {"data"}), experts(world, {2, 2}, {"data", "expert"});
          const int rank = world.rank();
          std::string wrong = expect(members(dense.group(), rank) == Ranks{0, 1, 2, 3}, "dense");
          wrong += expect(members(experts.group("data"), rank) == Ranks{rank % 2, rank % 2 + 2}, "experts, data");
          return wrong +
                 expect(members(experts.group("expert"), rank) == Ranks{rank / 2 * 2, rank / 2 * 2 + 1}, "experts");
        }) == "");
}

TEST_CASE("device mesh: descriptions that are wrong or differ are an error on every rank") {
  struct Case {
    const char* what;
    std::vector<int> usual, odd;
    Names usual_names, odd_names;
    std::vector<std::string> parts;
  };
  for (const Case& c : std::vector<Case>{
           {"shape", {2, 2}, {4, 1}, {"a", "b"}, {"a", "b"}, {"(2, 2)", "rank 0", "(4, 1)", "rank 2"}},
           {"names", {2, 2}, {2, 2}, {"a", "b"}, {"b", "a"}, {"'a', 'b'", "rank 0", "'b', 'a'", "rank 2"}},
           {"count on one rank", {2, 2}, {2, 3}, {"a", "b"}, {"a", "b"}, {"4 ranks", "(2, 3)"}},
           {"names on one rank", {2, 2}, {2, 2}, {"a", "b"}, {"a", "a"}, {"distinct", "'a', 'a'"}},
           {"too few names", {4}, {4}, {}, {}, {"a name for each of 1"}},
           {"nothing", {}, {}, {}, {}, {"at least one dimension"}},
           {"an empty name", {4}, {4}, {""}, {""}, {"not empty"}},
           {"an extent of 0", {4, 0}, {4, 0}, {"a", "b"}, {"a", "b"}, {"positive"}},
           {"an overflow",
            {1 << 30, 1 << 30, 16},
            {1 << 30, 1 << 30, 16},
            {"a", "b", "c"},
            {"a", "b", "c"},
            {"4 ranks"}},
       }) {
    INFO(c.what);
    CHECK(on_ranks(4, [&](Communicator& world) {
            const bool odd = world.rank() == 2;
            std::string wrong = refused(
                {"[DeviceMesh]"}, [&] { DeviceMesh(world, odd ? c.odd : c.usual, odd ? c.odd_names : c.usual_names); });
            try {
              DeviceMesh(world, odd ? c.odd : c.usual, odd ? c.odd_names : c.usual_names);
            } catch (const InvalidArgument& error) {
              for (const std::string& part : c.parts) wrong += support::missing(error.what(), {part});
            }
            // The communicator works as before.
            const DeviceMesh mesh(world, {2, 2}, {"a", "b"});
            mesh.group("a").barrier();
            return wrong;
          }) == "");
  }
}

TEST_CASE("device mesh: dimensions of one rank, and an odd number of ranks") {
  for (const Ranks& shape : {Ranks{1, 5}, Ranks{5, 1}, Ranks{1, 1, 3}, Ranks{3, 1, 1}, Ranks{1}}) {
    int size = 1;
    for (const int extent : shape) size *= extent;
    INFO(size << " ranks, the first of " << shape.size() << " dimensions of " << shape[0]);
    CHECK(on_ranks(size, [&](Communicator& world) {
            const Names all{"a", "b", "c"};
            const Names names(all.begin(), all.begin() + std::ssize(shape));
            const DeviceMesh mesh(world, shape, names);
            std::string wrong = expect(mesh.size() == size && mesh.shape() == shape, "shape");
            for (std::size_t d = 0; d < shape.size(); ++d) {
              Ranks along{world.rank()};  // alone, but in the dimension of all ranks
              if (shape[d] > 1) along.clear();
              for (int r = 0; shape[d] > 1 && r < size; ++r) along.push_back(r);
              wrong += expect(members(mesh.group(names[d]), world.rank()) == along, "group " + names[d]);
              wrong += expect(mesh.coordinate()[d] == (shape[d] > 1 ? world.rank() : 0), "coordinate");
              const Tensor x = conformance::tensor_of({world.rank() + 1.0}, DType::f64, world.device());
              mesh.group(names[d]).all_reduce(x);
              wrong += conformance::differs(x, {shape[d] > 1 ? size * (size + 1) / 2.0 : world.rank() + 1.0});
            }
            const DeviceMesh flat = mesh.flatten("all");
            return wrong + expect(flat.shape() == Ranks{size} && flat.group("all").size() == size, "flat");
          }) == "");
  }
}
