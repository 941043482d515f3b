// Whose lines come to the terminal: chosen by rank, and by stream.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

namespace lockstep::launch {

class Shown {
 public:
  // `tee` is "1" for all ranks or "0:1,12:3" for some, where the others show nothing: 0 none, 1 standard output, 2
  // standard error, 3 both. `ranks` is "0,4-7": no other rank shows anything. Empty: nothing is said. Where nothing is
  // said of streams, `otherwise` is what the ranks show. Throws InvalidArgument, which names the option, for other
  // text, for ranks beyond `world_size`, and for a rank that is named twice.
  Shown(const std::string& tee, const std::string& ranks, int otherwise, int world_size);

  bool shows(int rank, int target) const { return (mode(rank) & target) != 0; }  // target: 1 or 2
  bool everything() const { return modes_.empty() && !ranks_ && others_ == 3; }

 private:
  int mode(int rank) const;

  std::map<int, int> modes_;
  std::optional<std::set<int>> ranks_;
  int others_;
};

}  // namespace lockstep::launch
