#include "lockstep/parallel/comm/collective.h"

#include "lockstep/runtime/strings.h"

namespace lockstep {

const char* to_string(RedOp reduction) {
  switch (reduction) {
    case RedOp::sum:
      return "sum";
    case RedOp::avg:
      return "avg";
    case RedOp::max:
      return "max";
    case RedOp::min:
      return "min";
    case RedOp::product:
      return "product";
  }
  return "unknown";
}

const char* to_string(Collective::Kind kind) {
  using Kind = Collective::Kind;
  switch (kind) {
    case Kind::all_reduce:
      return "all_reduce";
    case Kind::broadcast:
      return "broadcast";
    case Kind::reduce:
      return "reduce";
    case Kind::all_gather:
      return "all_gather";
    case Kind::gather:
      return "gather";
    case Kind::scatter:
      return "scatter";
    case Kind::reduce_scatter:
      return "reduce_scatter";
    case Kind::all_to_all:
      return "all_to_all";
    case Kind::send:
      return "send";
    case Kind::recv:
      return "recv";
    case Kind::exchange:
      return "exchange";
  }
  return "unknown";
}

thread_local std::int32_t detail::CollectivesOfUnit::current_ = -1;

Fingerprint fingerprint(const Collective& c) {
  Fingerprint result{
      .sequence = c.sequence, .count = c.count, .kind = c.kind, .dtype = c.dtype, .item = c.item, .items = c.items};
  result.unit = c.unit;
  if (c.reduces()) result.reduction = c.reduction;
  if (c.has_root()) result.root = c.peer;
  return result;
}

bool same_call(Fingerprint a, Fingerprint b) {
  for (Fingerprint* print : {&a, &b})
    if (print->kind == Collective::Kind::recv) print->kind = Collective::Kind::send;
  return a == b;
}

std::string to_string(const Fingerprint& f) {
  const Collective as{.kind = f.kind};
  std::string text = cat(to_string(f.kind), '(');
  if (as.reduces()) text += cat(to_string(f.reduction), ", ");
  if (f.kind != Collective::Kind::exchange)
    text += cat(f.dtype, ", ", f.count, f.count == 1 ? " element" : " elements");
  if (as.has_root()) text += cat(", root ", f.root);
  text += cat("), number ", f.sequence);
  if (f.items != 1) text += cat(", tensor ", f.item, " of ", f.items);
  if (f.unit >= 0) text += cat(", for unit ", f.unit);
  return text;
}

}  // namespace lockstep
