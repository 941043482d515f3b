#include "lockstep/parallel/build_info.h"

#include "lockstep/kernels/host/onednn_version.h"
#include "lockstep/parallel/comm/factory/backends.h"
#include "lockstep/runtime/cuda/cuda_versions.h"
#include "lockstep/runtime/strings.h"
#include "lockstep/version.h"

namespace lockstep {

const char* version() { return LOCKSTEP_VERSION_STRING; }

BuildInfo build_info() {
  BuildInfo info{.version = version(),
                 .commit = LOCKSTEP_BUILD_COMMIT,
                 .build_type = LOCKSTEP_BUILD_TYPE,
                 .compiler = LOCKSTEP_BUILD_COMPILER,
                 .instruction_set = LOCKSTEP_BUILD_MARCH,
                 .cuda_architectures = LOCKSTEP_BUILD_CUDA_ARCHITECTURES,
                 .sanitizer = LOCKSTEP_BUILD_SANITIZER,
                 .shared = LOCKSTEP_BUILD_SHARED != 0,
                 .parts = {}};
  const auto add = [&](const char* name, const detail::Version& version) {
    info.parts.push_back({name, version.built_with, version.found});
  };
  add("oneDNN", kernels::host::onednn_version());
  add("CUDA runtime", detail::cuda_runtime_version());
  add("CUDA driver", detail::cuda_driver_version());
  // Opened by name, with declarations of our own, or by a plug-in: no version of theirs is built in.
  for (const detail::CommunicatorBackend& backend : detail::communicator_backends())
    if (backend.library) add(backend.library, {"", backend.library_version()});
  return info;
}

std::string to_string(const BuildInfo& info) {
  std::string out = cat("Lockstep ", info.version);
  if (!info.commit.empty()) out += cat(" (", info.commit, ")");
  for (const std::string& each : {info.build_type, info.compiler, info.instruction_set})
    if (!each.empty()) out += cat(", ", each);
  if (!info.sanitizer.empty()) out += cat(", sanitizer ", info.sanitizer);
  out += info.shared ? ", shared" : ", static";
  if (!info.cuda_architectures.empty()) out += cat(", CUDA for ", info.cuda_architectures);
  const char* between = "; ";
  for (const BuildInfo::Part& part : info.parts) {
    if (part.built_with.empty() && part.found.empty()) continue;
    out += cat(between, part.name, " ", part.found.empty() ? part.built_with : part.found);
    if (part.found.empty()) {
      out += " (not found)";
    } else if (!part.built_with.empty() && part.built_with != part.found) {
      out += cat(" (built with ", part.built_with, ")");
    }
    between = ", ";
  }
  return out;
}

}  // namespace lockstep
