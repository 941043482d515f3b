#include "lockstep/kernels/cuda/cudnn.h"

#include <dlfcn.h>

#include <string>
#include <type_traits>

#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/error.h"

namespace lockstep::cudnn {
namespace {

constexpr std::size_t kOldest = 90000;

// Empty, or why the library is of no use.
std::string fill_functions(void* library, Library& t) {
  std::string missing;
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (!function && missing.empty()) missing = cat("no ", name);
  };
  find("cudnnGetVersion", t.version);
  find("cudnnGetErrorString", t.error_string);
  find("cudnnCreate", t.create);
  find("cudnnSetStream", t.set_stream);
  find("cudnnBackendCreateDescriptor", t.descriptor_create);
  find("cudnnBackendDestroyDescriptor", t.descriptor_destroy);
  find("cudnnBackendSetAttribute", t.set);
  find("cudnnBackendFinalize", t.finalize);
  find("cudnnBackendGetAttribute", t.get);
  find("cudnnBackendExecute", t.execute);
  if (!missing.empty()) return missing;
  const std::size_t version = t.version();
  return version < kOldest ? cat("version ", version, ", expected ", kOldest, " or later") : "";
}

// Empty, or why not.
std::string open_into(const char* name, Library& table) {
  void* found = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!found) {
    const char* why = dlerror();
    return why ? why : "not found";
  }
  std::string why = fill_functions(found, table);
  if (!why.empty()) dlclose(found);
  return why;
}

struct Loaded {
  Library table{};
  bool present = false;
  std::string error;  // of the library that was named
};

Loaded load() {
  Loaded loaded;
  const std::string chosen(lockstep::detail::environment("LOCKSTEP_CUDNN_LIBRARY"));
  if (chosen == "none") return loaded;
  const bool linked = dlsym(RTLD_DEFAULT, "cudnnBackendExecute") != nullptr;
  loaded.present = linked && fill_functions(RTLD_DEFAULT, loaded.table).empty();
  if (loaded.present) return loaded;
  if (chosen.empty()) {
    loaded.present = open_into("libcudnn.so.9", loaded.table).empty();
    return loaded;
  }
  loaded.error = open_into(chosen.c_str(), loaded.table);
  loaded.present = loaded.error.empty();
  if (!loaded.present)
    loaded.error =
        cat("[conv2d] expected cuDNN 9, which LOCKSTEP_CUDNN_LIBRARY names, got ", chosen, ": ", loaded.error);
  return loaded;
}

}  // namespace

const Library* library() {
  // Never destroyed: kernels may be enqueued while the process ends.
  static const Loaded& loaded = *new Loaded(load());
  if (!loaded.error.empty()) lockstep::detail::fail<NotSupported>(loaded.error);
  return loaded.present ? &loaded.table : nullptr;
}

void check(const Library& table, Status status, Device device, const char* op, const char* call) {
  if (status == kSuccess) [[likely]]
    return;
  throw DeviceError(device, static_cast<int>(status),
                    cat("[", op, "] expected success of ", call, ", got ", table.error_string(status), " on ", device));
}

}  // namespace lockstep::cudnn
