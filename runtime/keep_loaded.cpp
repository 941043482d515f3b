#include "lockstep/runtime/keep_loaded.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>

namespace lockstep::detail {

void keep_loaded() noexcept {
  // Nobody waits here: whoever runs inside of dlopen holds the loader's lock, which the call below takes.
  static std::atomic<bool> asked{false};
  if (asked.exchange(true, std::memory_order_relaxed)) return;
  Dl_info info;
  link_map* map = nullptr;
  const void* here = reinterpret_cast<const void*>(&keep_loaded);
  if (dladdr1(here, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0) return;
  if (!map || !map->l_name || *map->l_name == 0) return;  // the program itself
  dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

}  // namespace lockstep::detail
