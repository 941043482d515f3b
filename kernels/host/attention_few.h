// Attention of one query or a few, as decoding has them: the keys and values are read once.
#pragma once

#include "lockstep/kernels/host/attention_heads.h"

namespace lockstep::kernels::host {

// Up to so many queries for one head of keys and values, those of all its query heads together.
inline constexpr std::int64_t kFewQueries = 4;

template <class C>
void attend_few(const AttentionArgs& a, const AttentionProblem& p);

extern template void attend_few<float>(const AttentionArgs&, const AttentionProblem&);
extern template void attend_few<double>(const AttentionArgs&, const AttentionProblem&);

}  // namespace lockstep::kernels::host
