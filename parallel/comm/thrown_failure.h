// Whether a thread knows that a communicator is broken.
#pragma once

namespace lockstep {
class Communicator;
}

namespace lockstep::detail {

// The communicator whose failure the calling thread was told last, by a call that threw it; null: none.
const Communicator*& told();

}  // namespace lockstep::detail
