// Threads that help with a kernel on a host device. Private to the library; set_threads() and HostOptions are the
// program's side.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

#include "lockstep/runtime/api.h"

namespace lockstep::detail {

inline constexpr int kMostThreads = 1024;

// Calls piece(context, i) once for each i from 0 to `count`, in the calling thread and in those that are free to help,
// and returns when all calls have. Which thread has which piece is chance: results must not depend on it. Where a piece
// throws, those behind it may be left out, and the exception of the first that threw is thrown. Pieces of pieces run in
// the thread that asks. Helpers have the caller's floating-point environment.
LOCKSTEP_API void run_pieces(std::int64_t count, void (*piece)(void* context, std::int64_t i), void* context);

template <class F>
void run_pieces(std::int64_t count, F&& piece) {
  using Piece = std::remove_reference_t<F>;
  run_pieces(
      count, [](void* context, std::int64_t i) { (*static_cast<Piece*>(context))(i); },
      const_cast<void*>(static_cast<const void*>(std::addressof(piece))));
}

// Whether pieces would all run in the calling thread: where the division makes no difference to the results, it is
// better left out then.
LOCKSTEP_API bool computes_alone();

// While it lives, kernels of the calling thread run in it alone: it is one of several that share the cores already.
class LOCKSTEP_API ComputeAlone {
 public:
  ComputeAlone() noexcept;
  ComputeAlone(const ComputeAlone&) = delete;
  ComputeAlone& operator=(const ComputeAlone&) = delete;
  ~ComputeAlone();
};

// How many helpers there are; those with nothing to do end after a while.
LOCKSTEP_API int compute_threads();
// How many calls of run_pieces have offered pieces to helpers.
LOCKSTEP_API std::uint32_t divided_calls();

// Throws InvalidArgument when LOCKSTEP_HOST_THREADS is not a number of threads.
void check_compute_threads();

}  // namespace lockstep::detail
