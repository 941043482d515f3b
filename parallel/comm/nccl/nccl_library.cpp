#include "lockstep/parallel/comm/nccl/nccl_library.h"

#include <dlfcn.h>

#include <vector>

#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/error.h"

namespace lockstep::nccl {
namespace {

constexpr int kOldest = 21400;  // communicators that do not block

struct Loaded {
  Library table{};
  int version = 0;
  std::string error;  // empty: there is a library
};

// Empty, or why the library is of no use.
std::string fill_table(void* library, Loaded& loaded) {
  Library& t = loaded.table;
  std::string missing;
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (!function && missing.empty()) missing = cat("no ", name);
  };
  find("ncclGetVersion", t.get_version);
  find("ncclGetUniqueId", t.get_unique_id);
  find("ncclCommInitRankConfig", t.comm_init_rank_config);
  find("ncclCommFinalize", t.comm_finalize);
  find("ncclCommDestroy", t.comm_destroy);
  find("ncclCommAbort", t.comm_abort);
  find("ncclCommGetAsyncError", t.comm_get_async_error);
  find("ncclGetErrorString", t.get_error_string);
  find("ncclGetLastError", t.get_last_error);
  find("ncclAllReduce", t.all_reduce);
  find("ncclBroadcast", t.broadcast);
  find("ncclReduce", t.reduce);
  find("ncclAllGather", t.all_gather);
  find("ncclReduceScatter", t.reduce_scatter);
  find("ncclSend", t.send);
  find("ncclRecv", t.recv);
  find("ncclGroupStart", t.group_start);
  find("ncclGroupEnd", t.group_end);
  if (!missing.empty()) return missing;
  if (t.get_version(&loaded.version) != kSuccess) return "ncclGetVersion failed";
  if (loaded.version < kOldest) return cat("version ", loaded.version, ", expected ", kOldest, " or later");
  return "";
}

Loaded load() {
  Loaded loaded;
  const std::string chosen(detail::environment("LOCKSTEP_NCCL_LIBRARY"));
  const bool linked = chosen.empty() && dlsym(RTLD_DEFAULT, "ncclGetVersion") != nullptr;
  if (linked && fill_table(RTLD_DEFAULT, loaded).empty()) return loaded;
  const std::vector<std::string> names =
      chosen.empty() ? std::vector<std::string>{"libnccl.so.2", "libnccl.so"} : std::vector<std::string>{chosen};
  loaded.error = "[nccl] expected NCCL (LOCKSTEP_NCCL_LIBRARY names it), got";
  for (const std::string& name : names) {
    void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* why = dlerror();
      loaded.error += cat(" ", name, ": ", why ? why : "not found", ";");
      continue;
    }
    const std::string why = fill_table(library, loaded);
    if (why.empty()) {
      loaded.error.clear();
      break;
    }
    loaded.error += cat(" ", name, ": ", why, ";");
    dlclose(library);
  }
  if (loaded.error.ends_with(';')) loaded.error.pop_back();
  return loaded;
}

const Loaded& loaded() {
  // Never destroyed: a communicator may be broken off while the process ends.
  static const Loaded& loaded = *new Loaded(load());
  return loaded;
}

}  // namespace

const Library& library() {
  if (!loaded().error.empty()) throw NotSupported(loaded().error);
  return loaded().table;
}

const std::string& library_error() { return loaded().error; }
int library_version() { return loaded().version; }

}  // namespace lockstep::nccl
