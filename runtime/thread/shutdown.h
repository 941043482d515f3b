// The end of a process, or of its use of the library.
#pragma once

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/deadline.h"

namespace lockstep {

// Lets the work in flight run to its end and ends the library's threads, for hosts that want to say when; calling it
// again does nothing. Afterwards what needs such a thread throws Error: parallel calls on several devices, backwards
// across devices, work on streams in the host modes `async` and `strict`. What computes in the calling thread goes on
// working, and tensors and modules may be destroyed at any time.
// For a moment when no other thread uses the library. Throws TimeoutError, naming it, when something is still running
// after `timeout`: what has not begun by then never does. Error inside a replica.
//
// A program need not call it: at exit (a return from main, std::exit from any thread) calls of oneDNN in progress are
// waited for, for some seconds at most, and what is enqueued and has not begun is dropped. The library's threads rest
// after what they are at; any other thread but the exiting one, once it calls what needs them: to join such a thread in
// the destructor of a static is to wait for ever. A thread that computes in itself goes on. quick_exit and _exit end
// all of them where they are.
LOCKSTEP_API void shutdown(Milliseconds timeout = Milliseconds(10'000));

}  // namespace lockstep
