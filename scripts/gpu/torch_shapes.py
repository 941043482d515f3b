"""The shapes of `lockstep-bench kernels` in PyTorch, and what the GPU gives at most: one line of JSON. Run by an
interpreter that has PyTorch; --small: sizes that say nothing about speed."""
import json
import statistics
import sys

import torch

SMALL = "--small" in sys.argv[1:]
ELEMENTS, SIDE, RUNS = (65536, 64, 1) if SMALL else (1 << 26, 4096, 9)
COPY_BYTES, PRODUCT_SIDE = (1 << 20, 128) if SMALL else (2 << 30, 8192)


def seconds_of(body):
    """By the GPU's events: the median of several runs after two that warm up."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for turn in range(-2, RUNS):
        begin.record()
        body()
        end.record()
        end.synchronize()
        if turn >= 0:
            times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    rows, ceilings = [], {}

    def row(name, work, body):
        rows.append({"name": name, "work": work, "microseconds": seconds_of(body) * 1e6})

    def product(dtype, side):
        a, b = (torch.rand(side, side, device="cuda").to(dtype) for _ in range(2))
        return seconds_of(lambda: torch.matmul(a, b)), 2.0 * side ** 3

    with torch.no_grad():
        source = torch.rand(COPY_BYTES // 4, device="cuda")
        target = torch.empty_like(source)
        ceilings["copy"] = 2 * COPY_BYTES / seconds_of(lambda: target.copy_(source))
        del source, target
        for name, dtype in [("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16)]:
            seconds, work = product(dtype, PRODUCT_SIDE)
            ceilings[f"matmul {name}"] = work / seconds

        a, b = torch.rand(ELEMENTS, device="cuda"), torch.rand(ELEMENTS, device="cuda")
        lines, out = a.reshape(ELEMENTS // 1024, 1024), torch.empty_like(a)
        row("copy", 8 * ELEMENTS, lambda: out.copy_(a))
        row("add", 12 * ELEMENTS, lambda: torch.add(a, b))
        row("relu", 8 * ELEMENTS, lambda: torch.relu(a))
        row("gelu", 8 * ELEMENTS, lambda: torch.nn.functional.gelu(a))
        row("sum", 4 * ELEMENTS, lambda: torch.sum(a))
        row("sum of rows", 4 * ELEMENTS, lambda: torch.sum(lines, 1))
        row("sum of columns", 4 * ELEMENTS, lambda: torch.sum(lines, 0))
        row("softmax", 8 * ELEMENTS, lambda: torch.softmax(lines, 1))
        for name, dtype in [("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16)]:
            seconds, work = product(dtype, SIDE)
            rows.append({"name": f"matmul {name}", "work": work, "microseconds": seconds * 1e6})
        for name, dtype in [("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16)]:
            x, w = torch.rand(8, SIDE, device="cuda").to(dtype), torch.rand(SIDE, SIDE, device="cuda").to(dtype)
            # Eight rows: reading the weight is what takes the time.
            row(f"linear {name}, 8 rows", SIDE * SIDE * (4 if name == "f32" else 2), lambda: torch.matmul(x, w.t()))
        batch, channels, side = 16, 64, 56
        x = torch.rand(batch, channels, side, side, device="cuda")
        w = torch.rand(channels, channels, 3, 3, device="cuda")
        row("conv2d 3x3", 2.0 * batch * channels * channels * side * side * 9,
            lambda: torch.nn.functional.conv2d(x, w, padding=1))
    print(json.dumps({"torch": str(torch.__version__), "ceilings": ceilings, "rows": rows}))


if __name__ == "__main__":
    main()
