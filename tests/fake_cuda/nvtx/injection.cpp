// A profiler, as NVTX loads one (NVTX_INJECTION64_PATH): writes down the ranges that are pushed and popped.
#include <nvtx3/nvToolsExt.h>

#include <mutex>
#include <string>

namespace {

std::mutex mutex;
std::string domains, ranges;

nvtxDomainHandle_t create_domain(const char* name) {
  const std::lock_guard lock(mutex);
  domains += std::string(name) + ' ';
  return reinterpret_cast<nvtxDomainHandle_t>(&domains);
}

int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* range) {
  const std::lock_guard lock(mutex);
  const bool sound = domain == reinterpret_cast<nvtxDomainHandle_t>(&domains) && range->version == NVTX_VERSION &&
                     range->size == sizeof *range && range->messageType == NVTX_MESSAGE_TYPE_ASCII;
  ranges += sound ? std::string("+") + range->message.ascii + ' ' : "+bad ";
  return 0;
}

int pop(nvtxDomainHandle_t) {
  const std::lock_guard lock(mutex);
  ranges += "- ";
  return 0;
}

template <class Function>
void put(NvtxFunctionTable table, int id, Function function) {
  *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t tables) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(tables(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
  put(table, NVTX_CBID_CORE2_DomainCreateA, create_domain);
  put(table, NVTX_CBID_CORE2_DomainRangePushEx, push);
  put(table, NVTX_CBID_CORE2_DomainRangePop, pop);
  return 1;
}

// What was seen so far: "+name " and "- ", and the domains before them. For the test, which is the only thread then.
__attribute__((visibility("default"))) const char* fake_nvtx_ranges() { return ranges.c_str(); }
__attribute__((visibility("default"))) const char* fake_nvtx_domains() { return domains.c_str(); }

}  // extern "C"
