// a backend has a kernel for these arguments, or lists them as absent
// a backend lists these arguments as absent, and has a kernel for them
#include "lockstep/kernels/table.h"

using namespace lockstep;

// The rest of the list is there.
template <class... Missing>
struct Some {
  using Absent = ArgsList<FillArgs>;
  template <class Args>
  requires(!ArgsList<Missing...>::template contains<Args>) static void enqueue(const Stream&, const Args&) {}
};

struct Misspelt : Some<FillArgs, CastArgs> {};  // no kernel for CastArgs
struct Both : Some<> {};                        // FillArgs is there and absent

constexpr KernelTable misspelt = table_of<Misspelt>();
constexpr KernelTable both = table_of<Both>();

int main() {}
