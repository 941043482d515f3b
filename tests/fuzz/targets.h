// What is done with the bytes of a file that may be anything.
#pragma once

#include <span>

namespace fuzz {

enum class Outcome { loaded, not_supported, malformed };

// Loads the bytes as a file of the format, reads every element of what comes out and compares ways to load it. Lets any
// exception through that a loader must not throw, and throws std::logic_error when something does not agree.
Outcome load_safetensors(std::span<const unsigned char> bytes);
Outcome load_npy(std::span<const unsigned char> bytes);
Outcome load_tokenizer(std::span<const unsigned char> bytes);

}  // namespace fuzz
