// Memory formats: in which order the elements of an image [N, C, H, W] lie in memory. The format is not kept anywhere:
// it is what the strides say.
#pragma once

#include "lockstep/kernels/layout.h"

namespace lockstep {

// contiguous: in the order of the shape (row-major). channels_last: of four dimensions [N, C, H, W], in the order N, H,
// W, C: the channels of a pixel lie side by side.
enum class MemoryFormat : std::uint8_t { contiguous, channels_last };

// The strides of a format, without gaps. channels_last: of a shape of rank 4.
LOCKSTEP_API Strides format_strides(const Shape& shape, MemoryFormat format);
// Whether elements with these strides lie in the order of the format, without gaps. The stride along a size of 1 does
// not matter: where C == 1 or H == W == 1 the order is that of both formats.
LOCKSTEP_API bool is_dense(const Shape& shape, const Strides& strides, MemoryFormat format);
// The format of strides, which may have gaps: channels_last where those of C, W, H and N grow in this order. Strides
// along sizes of 1 do count here, so that [N, C, 1, 1] has a format too. Where nothing tells them apart (of
// [N, 1, 1, 1], of an expanded or empty tensor) it is contiguous. PyTorch has the same rule.
LOCKSTEP_API MemoryFormat format_of(const Shape& shape, const Strides& strides);

}  // namespace lockstep
