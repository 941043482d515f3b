// LOCKSTEP_FAKE_CUDA.
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <numeric>
#include <random>
#include <stdexcept>

#include "fake_cuda/state.h"
#include "lockstep/runtime/strings.h"

namespace fake_cuda {
namespace {

[[noreturn]] void refuse(std::string_view text) {
  throw std::invalid_argument(
      lockstep::cat("[LOCKSTEP_FAKE_CUDA] expected name=value with commas, got \"", text, "\""));
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::uint64_t number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (error != std::errc()) refuse(text);
  if (unit.empty()) return value;
  if (unit == "K") return value << 10;
  if (unit == "M") return value << 20;
  if (unit == "G") return value << 30;
  refuse(text);
}

int small(std::string_view text) {
  const std::uint64_t value = number(text);
  if (value > 1u << 30) refuse(text);
  return static_cast<int>(value);
}

template <class T>
std::vector<T> numbers(std::string_view text) {
  std::vector<T> list;
  for (const std::string_view each : split(text, '/')) list.push_back(static_cast<T>(number(each)));
  return list;
}

std::pair<int, int> device_pair(std::string_view text) {
  const auto parts = split(text, '-');
  if (parts.size() != 2) refuse(text);
  return {small(parts[0]), small(parts[1])};
}

NvLink nvlink(std::string_view text) {  // device-device-rank
  const auto parts = split(text, '-');
  if (parts.size() != 3) refuse(text);
  return {small(parts[0]), small(parts[1]), small(parts[2])};
}

Injection injection(std::string_view text) {  // call:nth[:error[:times]]
  const auto parts = split(text, ':');
  if (parts.size() < 2 || parts.size() > 4) refuse(text);
  Injection wanted{.call = std::string(parts[0]), .nth = small(parts[1])};
  if (parts.size() > 2) wanted.error = small(parts[2]);
  if (parts.size() > 3) wanted.times = small(parts[3]);
  return wanted;
}

// One of the calls whose failure a program must survive.
Injection drawn(std::uint64_t seed) {
  constexpr const char* kCalls[] = {"cudaMalloc",      "cudaHostAlloc",      "cudaStreamCreateWithFlags",
                                    "cudaMemcpyAsync", "cudaLaunchHostFunc", "cudaEventCreateWithFlags",
                                    "cudaEventRecord", "cudaLaunchKernel"};
  std::mt19937_64 random(seed);
  Injection injection{.call = kCalls[random() % std::size(kCalls)]};
  injection.nth = static_cast<int>(1 + random() % 40);
  injection.error = injection.call == "cudaMalloc" ? cudaErrorMemoryAllocation : cudaErrorInvalidValue;
  return injection;
}

}  // namespace

void reset_from_environment(Options options) {
  std::vector<Injection> injections;
  const char* environment = std::getenv("LOCKSTEP_FAKE_CUDA");
  const std::string_view text = environment ? environment : "";
  bool permuted = false;
  for (const std::string_view part : text.empty() ? std::vector<std::string_view>{} : split(text, ',')) {
    const auto equals = part.find('=');
    if (equals == part.npos) refuse(part);
    const std::string_view name = part.substr(0, equals), value = part.substr(equals + 1);
    if (name == "devices")
      options.devices = small(value);
    else if (name == "driver")
      options.driver = small(value);
    else if (name == "shared")
      options.shared_bytes = small(value);
    else if (name == "seed")
      options.seed = number(value);
    else if (name == "memory")
      options.memory_bytes = numbers<std::size_t>(value);
    else if (name == "multiprocessors")
      options.multiprocessors = numbers<int>(value);
    else if (name == "order" && value == "permuted")
      permuted = true;
    else if (name == "order")
      options.order = numbers<int>(value);
    else if (name == "deny")
      options.no_peer.push_back(device_pair(value));
    else if (name == "lose")
      options.lossy_peer.push_back(device_pair(value));
    else if (name == "nvlink")
      options.nvlinks.push_back(nvlink(value));
    else if (name == "only")
      options.only = numbers<int>(value);
    else if (name == "check_order")
      options.check_order = small(value) != 0;
    else if (name == "nccl")
      options.nccl = small(value);
    else if (name == "pools")
      options.pools = small(value) != 0;
    else if (name == "pageable")
      options.allow_pageable = small(value) != 0;
    else if (name == "fail")
      injections.push_back(injection(value));
    else if (name == "fault_seed")
      injections.push_back(drawn(number(value)));
    else
      refuse(part);
  }
  if (options.devices < 0 || options.devices > kMostDevices) refuse(text);
  if (permuted) {
    options.order.resize(static_cast<std::size_t>(options.devices));
    std::iota(options.order.begin(), options.order.end(), 0);
    std::shuffle(options.order.begin(), options.order.end(), std::mt19937_64(options.seed));
  }
  reset(options);
  for (const Injection& each : injections) inject(each);
}

}  // namespace fake_cuda
