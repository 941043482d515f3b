"""The shapes of `lockstep-bench kernels` in PyTorch, and what the GPU gives at most: one line of JSON. Run by an
interpreter that has PyTorch; --small: sizes that say nothing about speed."""
import contextlib
import json
import statistics
import sys
import time

import torch

functional = torch.nn.functional
SMALL = "--small" in sys.argv[1:]
ELEMENTS, SIDE, RUNS = (65536, 64, 1) if SMALL else (1 << 26, 4096, 9)
COPY_BYTES, PRODUCT_SIDE = (1 << 20, 128) if SMALL else (2 << 30, 8192)
LINE, CALLS = 1024, 50
VOCABULARY = ELEMENTS // LINE // 2
TYPES = [("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16)]


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


def seconds_alone(body):
    """The same of a CUDA graph of ten calls: what the libraries' kernels take, without PyTorch around them."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            body()
    return seconds_of(graph.replay) / 10


class Rows:
    def __init__(self):
        self.rows = []

    def add(self, name, work, body):
        self.rows.append({"name": name, "work": work, "microseconds": seconds_of(body) * 1e6})

    def add_library(self, name, work, body, library=contextlib.nullcontext):
        """A row whose work is a library's, which is measured alone as well where it can be captured."""
        self.add(name, work, body)
        try:
            with library():
                self.rows[-1]["library_microseconds"] = seconds_alone(body) * 1e6
        except RuntimeError as error:
            print(f"{name}: not captured: {error}", file=sys.stderr)

    def add_gradient(self, name, work, output, inputs, gradient):
        self.add(name, work, lambda: torch.autograd.grad(output, inputs, gradient, retain_graph=True))

    def add_call(self, name, body):
        times = []
        for turn in range(-2, RUNS):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(CALLS):
                body()
            if turn >= 0:
                times.append((time.perf_counter() - begin) / CALLS)
        torch.cuda.synchronize()
        self.rows.append({"name": name, "work": None, "microseconds": statistics.median(times) * 1e6})


def random(*shape, dtype=torch.float32):
    return torch.rand(*shape, device="cuda").to(dtype)


def product_seconds(dtype, side):
    a, b = random(side, side, dtype=dtype), random(side, side, dtype=dtype)
    return seconds_of(lambda: torch.matmul(a, b))


def measure_ceilings():
    source = random(COPY_BYTES // 4)
    target = torch.empty_like(source)
    found = {"copy": 2 * COPY_BYTES / seconds_of(lambda: target.copy_(source))}
    for name, dtype in TYPES:
        found[f"matmul {name}"] = 2.0 * PRODUCT_SIDE ** 3 / product_seconds(dtype, PRODUCT_SIDE)
    return found


def measure_elements(rows, dtype):
    suffix = "" if dtype == torch.float32 else " bf16"
    size = ELEMENTS * (4 if dtype == torch.float32 else 2)
    a, b = random(ELEMENTS, dtype=dtype), random(ELEMENTS, dtype=dtype)
    lines = a.reshape(ELEMENTS // LINE, LINE)
    indices = torch.randint(0, VOCABULARY, (ELEMENTS // LINE,), device="cuda")
    classes = torch.randint(0, LINE, (ELEMENTS // LINE,), device="cuda")
    vocabulary = random(VOCABULARY, LINE, dtype=dtype)
    gain, bias = (random(LINE, dtype=dtype).requires_grad_() for _ in range(2))
    x = lines.clone().requires_grad_()
    with torch.no_grad():
        rows.add("add" + suffix, 3 * size, lambda: torch.add(a, b))
        rows.add("relu" + suffix, 2 * size, lambda: torch.relu(a))
        rows.add("gelu" + suffix, 2 * size, lambda: functional.gelu(a))
        rows.add("dropout" + suffix, 2 * size, lambda: functional.dropout(a, 0.1))
        rows.add("sum" + suffix, size, lambda: torch.sum(a))
        rows.add("sum of rows" + suffix, size, lambda: torch.sum(lines, 1))
        rows.add("sum of columns" + suffix, size, lambda: torch.sum(lines, 0))
        rows.add("softmax" + suffix, 2 * size, lambda: torch.softmax(lines, 1))
        rows.add("layer norm" + suffix, 2 * size, lambda: functional.layer_norm(lines, (LINE,), gain, bias))
        rows.add("cross entropy" + suffix, size, lambda: functional.cross_entropy(lines, classes))
        rows.add("transpose" + suffix, 2 * size, lambda: lines.t().contiguous())
        rows.add("embedding" + suffix, 2 * size, lambda: functional.embedding(indices, vocabulary))
        rows.add("embedding gradient" + suffix, 2 * size,
                 lambda: torch.ops.aten.embedding_dense_backward(lines, indices, VOCABULARY, -1, False))
    rows.add_gradient("softmax gradient" + suffix, 3 * size, torch.softmax(x, 1), [x], lines)
    rows.add_gradient("layer norm gradient" + suffix, 3 * size, functional.layer_norm(x, (LINE,), gain, bias),
                      [x, gain, bias], lines)


def measure_memory(rows):
    a = random(ELEMENTS)
    out, on_host = torch.empty_like(a), a.cpu()
    rows.add("copy", 8 * ELEMENTS, lambda: out.copy_(a))
    measure_elements(rows, torch.float32)
    measure_elements(rows, torch.bfloat16)
    few = a[:max(ELEMENTS // 8, 1024)]
    lines = few.reshape(-1, 1024)
    work = 12 * max(ELEMENTS // 8, 1024)
    rows.add("argsort of lines", work, lambda: torch.argsort(lines, dim=1, stable=True))
    rows.add("argsort", work, lambda: torch.argsort(few, dim=0, stable=True))
    rows.add("from the host", None, lambda: on_host.cuda())
    rows.add("to the host", None, lambda: a.cpu())
    weight = torch.nn.Parameter(a.clone())
    weight.grad = a.clone()
    adam = torch.optim.Adam([weight], lr=1e-6, fused=True)
    rows.add("Adam", 28 * ELEMENTS, adam.step)


def measure_convolutions(rows, dtype, memory_format, suffix):
    batch, channels, side = 16, 64, 56
    work = 2.0 * batch * channels * channels * side * side * 9
    x = random(batch, channels, side, side, dtype=dtype).to(memory_format=memory_format).requires_grad_()
    w = random(channels, channels, 3, 3, dtype=dtype).to(memory_format=memory_format).requires_grad_()
    with torch.no_grad():
        rows.add_library("conv2d 3x3" + suffix, work, lambda: functional.conv2d(x, w, padding=1))
    y = functional.conv2d(x, w, padding=1)
    rows.add_gradient("conv2d 3x3 gradient" + suffix, 2 * work, y, [x, w], y.detach())


def cudnn_attention():
    return torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION)


def measure_attention(rows):
    tokens = max(SIDE // 2, 32)
    work = 4.0 * 4 * 16 * 64 * tokens * tokens
    q, k, v = (random(4, 16, tokens, 64, dtype=torch.bfloat16).requires_grad_() for _ in range(3))
    one = random(4, 16, 1, 64, dtype=torch.bfloat16)
    for causal in (False, True):
        name, part = ("causal attention", 0.5) if causal else ("attention", 1)
        attend = lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=causal)  # noqa: E731
        with torch.no_grad():
            rows.add_library(f"{name} bf16", part * work, attend, cudnn_attention)
        y = attend()
        rows.add_gradient(f"{name} gradient bf16", 2.5 * part * work, y, [q, k, v], y.detach())
    with torch.no_grad():
        rows.add_library("attention of one query bf16", work / tokens,
                         lambda: functional.scaled_dot_product_attention(one, k, v), cudnn_attention)


def measure_arithmetic(rows):
    with torch.no_grad():
        for name, dtype in TYPES:
            a, b = random(SIDE, SIDE, dtype=dtype), random(SIDE, SIDE, dtype=dtype)
            rows.add_library(f"matmul {name}", 2.0 * SIDE ** 3, lambda: torch.matmul(a, b))
        for name, dtype in TYPES:
            x, w = random(8, SIDE, dtype=dtype), random(SIDE, SIDE, dtype=dtype)
            # Eight rows: reading the weight is what takes the time.
            rows.add_library(f"linear {name}, 8 rows", SIDE * SIDE * (4 if name == "f32" else 2),
                             lambda: torch.matmul(x, w.t()))
    measure_convolutions(rows, torch.float32, torch.contiguous_format, "")
    measure_convolutions(rows, torch.bfloat16, torch.contiguous_format, " bf16")
    measure_convolutions(rows, torch.bfloat16, torch.channels_last, " bf16, channels last")
    measure_attention(rows)


def measure_calls(rows):
    x, image, window = random(8, 8), random(1, 4, 8, 8), random(4, 4, 3, 3)
    with torch.no_grad():
        rows.add_call("call of add", lambda: torch.add(x, x))
        rows.add_call("call of matmul", lambda: torch.matmul(x, x))
        rows.add_call("call of softmax", lambda: torch.softmax(x, 1))
        rows.add_call("call of conv2d", lambda: functional.conv2d(image, window))
    leaf = x.clone().requires_grad_()
    rows.add_call("call of add, recorded", lambda: torch.add(leaf, x))


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True  # the fastest of cuDNN's engines
    rows = Rows()
    with torch.no_grad():
        ceilings = measure_ceilings()
    measure_memory(rows)
    measure_arithmetic(rows)
    measure_calls(rows)
    print(json.dumps({"torch": str(torch.__version__), "ceilings": ceilings, "rows": rows.rows}))


if __name__ == "__main__":
    main()
