#include "lockstep/parallel/ddp/hooks/basic_hooks.h"

#include "lockstep/parallel/ddp/gathered_rows.h"

namespace lockstep {

void detail::average(GradBucket& bucket) {
  if (bucket.sparse()) {
    const Parameter& parameter = bucket.parameters()[0].parameter;
    const GatheredRows rows(bucket.communicator(), bucket.rows(), parameter.shape(), parameter.dtype(),
                            bucket.divisor(), true);
    rows.gather(bucket.communicator());
    bucket.set_rows(rows.join());
  } else {
    bucket.divide();
    bucket.communicator().all_reduce(bucket.buffer());
  }
}

namespace {

CommHook compress_wrapper(DType dtype, CommHook inner) {
  LOCKSTEP_CHECK(inner.call, "[", dtype,
                 "_compress_wrapper] expected a hook that can be called, got an empty function");
  std::string name = cat(dtype, "_compress(", inner.name, ')');
  return {std::move(name), [dtype, inner = std::move(inner)](GradBucket& bucket) {
            if (bucket.sparse() || bucket.buffer().dtype() == dtype) return inner.call(bucket);
            GradBucket compressed = bucket.with_buffer(bucket.buffer().to(dtype));
            return inner.call(compressed).then([bucket, compressed] { bucket.buffer().copy_(compressed.buffer()); });
          }};
}

CommHook compress_hook(DType dtype) {
  return {cat(dtype, "_compress"), [dtype](GradBucket& bucket) {
            if (bucket.sparse() || bucket.buffer().dtype() == dtype) {
              detail::average(bucket);
              return Work();
            }
            bucket.divide();
            const Tensor compressed = bucket.buffer().to(dtype);
            bucket.communicator().all_reduce(compressed);
            bucket.buffer().copy_(compressed);
            return Work();
          }};
}

}  // namespace

CommHook all_reduce_hook() {
  return {"all_reduce", [](GradBucket& bucket) {
            detail::average(bucket);
            return Work();
          }};
}

CommHook no_op_hook() {
  return {"no_op", [](GradBucket&) { return Work(); }};
}

CommHook f16_compress_hook() { return compress_hook(DType::f16); }
CommHook bf16_compress_hook() { return compress_hook(DType::bf16); }
CommHook f16_compress_wrapper(CommHook inner) { return compress_wrapper(DType::f16, std::move(inner)); }
CommHook bf16_compress_wrapper(CommHook inner) { return compress_wrapper(DType::bf16, std::move(inner)); }

}  // namespace lockstep
