// Backwards whose gradients stay on the rank.
#pragma once

#include <memory>
#include <utility>

namespace lockstep {

// Forwards in its life leave the gradients of their backwards on this rank, whenever these come; there they add up. The
// next backward through a forward outside reduces the sum. Scopes nest, in any order of their ends, and may outlive the
// wrapper; an empty one does nothing:
//
//   NoSync scope;
//   if (accumulates) scope = net.no_sync();
class NoSync {
 public:
  NoSync() = default;
  // Counts the scopes of a wrapper. For the library's own wrappers.
  explicit NoSync(std::shared_ptr<int> depth) : depth_(std::move(depth)) { ++*depth_; }
  NoSync(NoSync&& other) noexcept = default;
  NoSync& operator=(NoSync&& other) noexcept {
    NoSync(std::move(other)).depth_.swap(depth_);
    return *this;
  }
  ~NoSync() {
    if (depth_) --*depth_;
  }

 private:
  std::shared_ptr<int> depth_;
};

}  // namespace lockstep
