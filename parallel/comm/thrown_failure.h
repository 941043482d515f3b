// Which communicator's failure a thread has seen.
#pragma once

namespace lockstep {
class Communicator;
}

namespace lockstep::detail {

// The communicator whose failure a call has thrown last to the calling thread; null: none.
const Communicator*& last_thrown_failure();

}  // namespace lockstep::detail
