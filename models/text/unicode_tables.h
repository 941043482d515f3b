// The tables that scripts/make_unicode makes; unicode.h is how they are asked.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::text {

extern const std::uint8_t kAsciiClasses[];  // of the codes below 128
extern const std::uint32_t kClassRanges[];  // first code << 5 | classes
extern const std::size_t kClassRangesCount;
extern const std::uint32_t kCombiningRanges[];  // first code << 8 | canonical combining class
extern const std::size_t kCombiningRangesCount;
extern const std::uint32_t kDecompositions[];  // code, first, second (0: none); by code
extern const std::size_t kDecompositionsCount;
extern const std::uint16_t kCompositions[];  // of the decompositions, those that compose; by first and second
extern const std::size_t kCompositionsCount;

}  // namespace lockstep::text
