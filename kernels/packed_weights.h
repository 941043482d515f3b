// Weights in the forms that kernels compute in (blocks of channels, say), kept from call to call.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace lockstep {

// Belongs to weights that stay as they are: whoever changes them takes a new one. Kernels look here for what they made
// of the weights in an earlier call, and make it when it is not there. Safe for threads.
class PackedWeights {
 public:
  using Key = std::span<const std::int64_t>;  // the kernel, and whatever its form depends on

  // Null: not there.
  std::shared_ptr<const void> find(Key key) const {
    const std::lock_guard lock(mutex_);
    for (const Form& form : forms_)
      if (form.is(key)) return form.value;
    return nullptr;
  }
  // Of two threads that made the same, one keeps its own. The oldest goes when there are too many: a net that sees
  // images of all sizes does not pile up forms.
  void keep(Key key, std::shared_ptr<const void> value) {
    constexpr std::size_t kMost = 4;
    const std::lock_guard lock(mutex_);
    std::erase_if(forms_, [&](const Form& form) { return form.is(key); });
    if (forms_.size() == kMost) forms_.erase(forms_.begin());
    forms_.push_back({{key.begin(), key.end()}, std::move(value)});
  }
  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return forms_.size();
  }

 private:
  struct Form {
    std::vector<std::int64_t> key;
    std::shared_ptr<const void> value;
    bool is(Key other) const { return std::equal(key.begin(), key.end(), other.begin(), other.end()); }
  };
  mutable std::mutex mutex_;
  std::vector<Form> forms_;
};

}  // namespace lockstep
