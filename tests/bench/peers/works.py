"""What compare_peers measures: single operations, their gradients, networks, and shapes drawn by seed.

A work is a dictionary that every program reads: its name, its kind (call, grad: with the backward; train, infer), the
operation or network, its inputs (shape, dtype, fill) and arguments. `group` says which peers do it.
"""
import random
import zlib

ROWS, ROW = 16384, 1024  # 64 MB of f32
TOLERANCES = {"f32": 1e-4, "f64": 1e-9, "f16": 5e-3, "bf16": 4e-2}


def tensor(*shape, fill="normal", dtype="f32", low=0, high=1):
    return {"shape": list(shape), "fill": fill, "dtype": dtype, "low": low, "high": high}


def index(*shape, below):
    return tensor(*shape, fill="index", dtype="i64", high=below)


def work(name, op, inputs, group, kind="call", tolerance=None, **args):
    more = {key: args.pop(key) for key in ("random", "stateful", "devices") if key in args}
    dtype = next((one["dtype"] for one in inputs if one["dtype"] in TOLERANCES), "f32")
    return {"name": name, "op": op, "kind": kind, "group": group, "inputs": inputs, "args": args,
            "tolerance": tolerance or TOLERANCES[dtype], "seed": zlib.crc32(name.encode()), **more}


def both(name, op, inputs, group, **args):
    """An operation, and with its backward."""
    return [work(name, op, inputs, group, **args), work(f"grad {name}", op, inputs, group, kind="grad", **args)]


def tiny():
    pair = [tensor(16), tensor(16)]
    linear = [tensor(1, 16), tensor(16, 16), tensor(16)]
    return [work("tiny add", "add", pair, "tiny"), work("tiny allocate", "empty", pair, "tiny", random=True),
            work("tiny linear", "linear", linear, "tiny"), work("tiny softmax", "softmax", [tensor(4, 16)], "tiny", dim=1),
            work("tiny cat", "cat", pair, "tiny", dim=0), work("tiny sum item", "sum_item", [tensor(16)], "tiny"),
            work("tiny chain of 20", "chain", pair, "tiny", length=20),
            work("tiny chain of 20, backward", "chain", pair, "tiny", kind="grad", length=20),
            work("tiny chain of 1,000, backward", "chain", pair, "tiny", kind="grad", length=1000)]


def elements():
    """Elementwise operations and moves of 64 MB."""
    one, two = [tensor(ROWS, ROW)], [tensor(ROWS, ROW), tensor(ROWS, ROW)]
    positive, cube = [tensor(ROWS, ROW, fill="uniform", low=0.1, high=4)], [tensor(256, 64, 1024)]
    make = lambda name, inputs=one, op=None, **args: work(f"big {name}", op or name, inputs, "big", **args)
    rows = [make("clone"), make("zeros", random=True), make("add", two), make("add_", two, stateful=True),
            make("add row", [tensor(ROWS, ROW), tensor(ROW)], "add"),
            make("add column", [tensor(ROWS, ROW), tensor(ROWS, 1)], "add"), make("mul_scalar"), make("maximum", two),
            make("div", [tensor(ROWS, ROW), positive[0]]), make("lt", two), make("clamp"),
            make("where", [tensor(ROWS, ROW, fill="mask", dtype="bool"), *two]),
            make("masked_fill", [tensor(ROWS, ROW), tensor(ROWS, ROW, fill="mask", dtype="bool")]),
            make("add bf16", [tensor(ROWS, ROW, dtype="bf16")] * 2, "add")]
    rows += [make(op) for op in ("relu", "exp", "tanh", "sigmoid", "gelu", "silu", "sin", "erf")]
    rows += [make(op, positive) for op in ("log", "sqrt", "pow2.5")]
    rows += [make(f"to {dtype}", op="to", dtype=dtype, tolerance=TOLERANCES.get(dtype, 1e-4))
             for dtype in ("f64", "f16", "bf16")]
    rows += [make("to i64", [tensor(ROWS, ROW, fill="uniform", low=-99, high=99)], "to", dtype="i64")]
    rows += [make(op, random=True) for op in ("rand", "randn", "dropout")]
    rows += [make("randperm of 1M", op="randperm", inputs=[tensor(1)], random=True, count=1 << 20),
             make("cat 0", [tensor(8192, 1024)] * 2, "cat", dim=0), make("cat 1", [tensor(ROWS, 512)] * 2, "cat", dim=1),
             make("cat 2 of 3", [tensor(2048, 256, 16)] * 2, "cat", dim=2),
             make("stack last", [tensor(8192, 1024)] * 2, "stack", dim=-1),
             make("slice rows by 2", op="slice", dim=0, step=2), make("slice columns by 2", op="slice", dim=1, step=2),
             make("narrow columns", op="narrow", dim=1, start=7, length=256),
             make("permute 10", op="permute", dims=[1, 0])]
    rows += [make(f"permute {''.join(map(str, dims))}", cube, "permute", dims=list(dims))
             for dims in ((2, 0, 1), (0, 2, 1), (1, 0, 2))]
    rows += [make("nchw to nhwc", [tensor(64, 64, 64, 64)], "permute", dims=[0, 2, 3, 1]),
             make("add transposed", [tensor(4096, 4096)] * 2, "add_transposed"),
             make("flip", dims=[1]), make("roll", dim=1), make("pad", [tensor(64, 64, 62, 62)], dims=[1, 1, 1, 1]),
             make("repeat", [tensor(4096, 1024)], times=[4, 1]), make("triu", [tensor(16, 1024, 1024)]),
             make("index_select 0", [tensor(ROWS, ROW), index(ROWS, below=ROWS)], "index_select", dim=0),
             make("index_select 1", [tensor(ROWS, ROW), index(ROW, below=ROW)], "index_select", dim=1),
             make("gather", [tensor(ROWS, ROW), index(ROWS, ROW, below=ROW)], dim=1),
             make("scatter_add", [tensor(ROWS, ROW), index(ROWS, ROW, below=ROW), tensor(ROWS, ROW)], dim=1),
             make("index_add", [tensor(ROWS, ROW), index(ROWS, below=ROWS), tensor(ROWS, ROW)], dim=0),
             make("one_hot", [index(ROWS * 8, below=64)], classes=64)]
    return rows


def reductions():
    one, cube, small = [tensor(ROWS, ROW)], [tensor(256, 64, 1024)], [tensor(ROWS * 256, 4)]
    make = lambda name, op, inputs=one, **args: work(f"big {name}", op, inputs, "big", **args)
    # Sums in f32 of so many elements err.
    rows = [make(f"{op} all", f"{op}_all", tolerance=2e-3) for op in ("sum", "mean", "norm", "max")]
    rows += [make(f"{op} {dim}", op, dims=[dim]) for op in ("sum", "amax", "var") for dim in (0, 1)]
    rows += [make("sum middle", "sum", cube, dims=[1]), make("sum 02", "sum", cube, dims=[0, 2]),
             make("sum small last", "sum", small, dims=[1]), make("sum transposed", "sum_transposed", dims=[0]),
             make("norm 1", "norm", dims=[1]), make("logsumexp 1", "logsumexp", dims=[1]),
             make("any 1", "any", [tensor(ROWS, ROW, fill="mask", dtype="bool")], dims=[1]),
             make("max 0", "max", dim=0), make("max 1", "max", dim=1), make("max middle", "max", cube, dim=1),
             make("argmax 1", "argmax", dim=1), make("cumsum 0", "cumsum", dim=0), make("cumsum 1", "cumsum", dim=1),
             make("prod 1", "prod", [tensor(ROWS, ROW, fill="uniform", low=0.99, high=1.01)], dim=1),
             make("sort 1", "sort", [tensor(1024, 1024)], dim=1), make("sort 1M", "sort", [tensor(1 << 20)], dim=0),
             make("topk 10", "topk", [tensor(1024, 1024)], dim=1)]
    for op in ("softmax", "log_softmax"):
        rows += [make(f"{op} 0", op, dim=0), *both(f"big {op} 1", op, one, "big", dim=1, tolerance=1e-3)]
    return rows + [make("softmax middle", "softmax", cube, dim=1),
                   make("softmax of 16", "softmax", [tensor(ROWS * 64, 16)], dim=1)]


def layers():
    """Norms, pooling, losses, embeddings and optimizers."""
    images, channels = tensor(64, 64, 64, 64), [tensor(64), tensor(64)]
    statistics = [tensor(64), tensor(64, fill="uniform", low=0.5, high=2)]
    rows = both("layer_norm 1024", "layer_norm", [tensor(ROWS, ROW), tensor(ROW), tensor(ROW)], "big", tolerance=1e-3)
    rows += both("layer_norm 128", "layer_norm", [tensor(ROWS * 8, 128), tensor(128), tensor(128)], "big",
                 tolerance=1e-3)
    rows += both("batch_norm", "batch_norm", [images, *channels], "big", training=True, tolerance=1e-3)
    rows += [work("batch_norm, evaluation", "batch_norm", [images, *channels, *statistics], "big", tolerance=1e-3)]
    rows += both("group_norm", "group_norm", [images, *channels], "big", tolerance=1e-3)
    for op, kernel, stride, padding in (("max_pool2d", 2, 2, 0), ("max_pool2d", 3, 2, 1), ("avg_pool2d", 2, 2, 0)):
        rows += both(f"{op} {kernel}", op, [images], "conv", kernel=kernel, stride=stride, padding=padding)
    rows += [work("adaptive_avg_pool2d", "adaptive_avg_pool2d", [images], "conv"),
             work("upsample nearest", "interpolate", [tensor(32, 32, 64, 64)], "conv"),
             work("upsample bilinear", "interpolate", [tensor(32, 32, 64, 64)], "conv", mode="bilinear")]
    rows += both("cross_entropy", "cross_entropy", [tensor(ROWS, ROW), index(ROWS, below=ROW)], "big")
    rows += [*both("grad gelu"[5:], "gelu", [tensor(ROWS, ROW)], "big")[1:],
             *both("tanh", "tanh", [tensor(ROWS, ROW)], "big")[1:],
             *both("mul row", "mul", [tensor(ROWS, ROW), tensor(ROW)], "big")[1:],
             work("embedding 4096 of 100k", "embedding", [tensor(100_000, 64), index(4096, below=100_000)], "op")]
    for optimizer in ("sgd", "sgd_momentum", "adam", "adamw"):
        for count in (16, 1000):
            size = 10_000_000 // count
            rows.append(work(f"step {optimizer}, 10M in {count}", "step", [tensor(size), tensor(size)], "op",
                             stateful=True, optimizer=optimizer, count=count))
    return rows


def products():
    make = lambda name, *inputs, **args: work(name, "matmul", list(inputs), "product", **args)
    rows = [make(f"mm {n}", tensor(n, n), tensor(n, n)) for n in (16, 64, 256, 1024)]
    rows += [make("mm 1024, b^T", tensor(1024, 1024), tensor(1024, 1024), transpose_b=True),
             make("mm 1024, a^T", tensor(1024, 1024), tensor(1024, 1024), transpose_a=True),
             make("mv 4096", tensor(4096, 4096), tensor(4096, 1)), make("vm 4096", tensor(1, 4096), tensor(4096, 4096)),
             make("mm tall", tensor(16384, 64), tensor(64, 64)), make("mm thin k", tensor(1024, 8), tensor(8, 1024)),
             make("mm long k", tensor(64, 16384), tensor(16384, 64)),
             make("bmm 64x128x32x128", tensor(64, 128, 32), tensor(64, 32, 128)),
             make("bmm 4096x8x8x8", tensor(4096, 8, 8), tensor(4096, 8, 8))]
    rows += [make(f"mm {dtype} 512", tensor(512, 512, dtype=dtype), tensor(512, 512, dtype=dtype))
             for dtype in ("f64", "bf16", "f16")]
    for n, k, m in ((256, 784, 1024), (1, 1024, 1024), (2048, 128, 512)):
        rows.append(work(f"linear {n}x{k}x{m}", "linear", [tensor(n, k), tensor(m, k), tensor(m)], "product"))
    return rows + both("linear 256x1024x1024", "linear", [tensor(256, 1024), tensor(1024, 1024), tensor(1024)],
                       "product")[1:]


def attention():
    rows = []
    for length, batch, heads, size in ((128, 16, 4, 32), (1024, 1, 4, 32), (512, 2, 2, 64)):
        qkv = [tensor(batch, heads, length, size)] * 3
        for causal in (False, True):
            rows += both(f"attention T {length}, head {size}{', causal' * causal}", "attention", qkv, "op", causal=causal)
    query, cache = tensor(1, 8, 1, 64), tensor(1, 8, 1024, 64)
    return rows + [work("attention, one query of 1024", "attention", [query, cache, cache], "op")]


CONVOLUTIONS = {  # batch, inputs, side, outputs, kernel, and how
    "3x3": (16, 64, 32, 64, 3, {"padding": 1}), "3x3 stride 2": (16, 64, 64, 128, 3, {"padding": 1, "stride": 2}),
    "1x1": (16, 128, 32, 128, 1, {}), "1x1 stride 2": (16, 128, 32, 256, 1, {"stride": 2}),
    "7x7 stride 2 rgb": (8, 3, 112, 64, 7, {"padding": 3, "stride": 2}), "3x3 rgb": (16, 3, 32, 64, 3, {"padding": 1}),
    "3x3 dilated": (16, 64, 32, 64, 3, {"padding": 2, "dilation": 2}), "3x3 batch 1": (1, 64, 32, 64, 3, {"padding": 1}),
    "depthwise 3x3": (16, 128, 32, 128, 3, {"padding": 1, "groups": 128}),
    "depthwise 3x3 stride 2": (16, 128, 64, 128, 3, {"padding": 1, "stride": 2, "groups": 128}),
    "depthwise 5x5": (16, 128, 28, 128, 5, {"padding": 2, "groups": 128}),
    "grouped 3x3 of 4": (16, 128, 32, 128, 3, {"padding": 1, "groups": 4}),
    "grouped 3x3 of 32": (16, 128, 32, 128, 3, {"padding": 1, "groups": 32})}
TRANSPOSED = {
    "4x4 stride 2": (8, 64, 32, 32, 4, {"padding": 1, "stride": 2}), "2x2 stride 2": (8, 64, 32, 32, 2, {"stride": 2}),
    "3x3": (8, 64, 32, 64, 3, {"padding": 1}),
    "4x4 stride 2 depthwise": (8, 32, 32, 32, 4, {"padding": 1, "stride": 2, "groups": 32})}


def convolution(name, shape, transposed=False):
    batch, inputs, side, outputs, kernel, how = shape
    groups = how.get("groups", 1)
    weight = (inputs, outputs // groups) if transposed else (outputs, inputs // groups)
    op = "conv_transpose2d" if transposed else "conv2d"
    return both(f"{op} {name}", op, [tensor(batch, inputs, side, side), tensor(*weight, kernel, kernel)], "conv", **how)


def convolutions():
    rows = [row for name, shape in CONVOLUTIONS.items() for row in convolution(name, shape)]
    return rows + [row for name, shape in TRANSPOSED.items() for row in convolution(name, shape, transposed=True)]


def network(name, batch, kind, **more):
    image = {"mlp": (784,), "cnn": (3, 32, 32), "resnet": (3, 64, 64), "mobile": (3, 64, 64), "lstm": (64, 128)}
    text = name == "gpt"
    x = index(batch, 128, below=256) if text else tensor(batch, *image[name])
    targets = index(batch, 128, below=256) if text else index(batch, below=10)
    devices = more.get("devices", 1)
    title = f"{kind} {name}, batch {batch}" + (f", {devices} devices" if devices > 1 else "")
    # Norms in training see the batch of their device alone: the losses are near each other, not the same.
    apart = kind == "train" and devices > 1 and name in ("cnn", "resnet", "mobile")
    tolerance = 3e-2 if apart else 2e-3 if kind == "train" else 1e-3
    return work(title, name, [x, targets], "network", kind=kind, tolerance=tolerance, **more)


BATCHES = {"mlp": 256, "cnn": 64, "resnet": 32, "mobile": 32, "gpt": 16, "lstm": 32}


def networks(threads):
    rows = [network(name, batch, kind) for kind in ("train", "infer") for name, batch in BATCHES.items()]
    rows += [network(name, 1, "infer") for name in BATCHES]
    if threads > 1:
        rows += [network(name, batch, kind, devices=threads) for kind in ("train", "infer")
                 for name, batch in BATCHES.items()]
    return rows


def drawn(seed, count=20):
    """Further shapes, among them odd ones: each names itself, so a figure can be had again."""
    draw, rows = random.Random(seed), []
    size = lambda low, high: round(low * (high / low) ** draw.random())
    while len(rows) < count:
        kind = draw.choice(("product", "linear", "conv", "attention", "elements", "softmax", "norm", "sum", "permute"))
        if kind == "product":
            n, k, m = size(8, 1500), size(8, 1500), size(8, 1500)
            row = work(f"drawn mm {n}x{k}x{m}", "matmul", [tensor(n, k), tensor(k, m)], "product")
        elif kind == "linear":
            n, k, m = size(1, 2048), size(16, 1500), size(16, 1500)
            row = both(f"drawn linear {n}x{k}x{m}", "linear", [tensor(n, k), tensor(m, k), tensor(m)], "product")[1]
        elif kind == "conv":
            batch, inputs, side, outputs = size(1, 16), size(3, 160), size(7, 64), size(8, 160)
            kernel, stride = draw.choice((1, 3, 5)), draw.choice((1, 2))
            name = f"drawn {batch}x{inputs}x{side}x{side} to {outputs}, {kernel}x{kernel} stride {stride}"
            row = convolution(name, (batch, inputs, side, outputs, kernel,
                                     {"padding": kernel // 2, "stride": stride}))[draw.randrange(2)]
        elif kind == "attention":
            batch, heads, length, width = size(1, 8), size(1, 12), size(16, 700), draw.choice((32, 48, 64, 80))
            causal = draw.random() < 0.5
            row = both(f"drawn attention {batch}x{heads}x{length}x{width}{', causal' * causal}", "attention",
                       [tensor(batch, heads, length, width)] * 3, "op", causal=causal)[draw.randrange(2)]
        else:
            rows_, columns = size(64, 20_000), size(3, 3000)
            x, name = tensor(rows_, columns), f"drawn {{}} {rows_}x{columns}"
            if kind == "elements":
                op = draw.choice(("add", "gelu", "exp", "tanh", "sigmoid"))
                row = work(name.format(op), op, [x, x], "op")
            elif kind == "norm":
                row = both(name.format("layer_norm"), "layer_norm", [x, tensor(columns), tensor(columns)], "op",
                           tolerance=1e-3)[draw.randrange(2)]
            elif kind == "permute":
                row = work(name.format("transpose"), "permute", [x], "op", dims=[1, 0])
            else:
                dim = draw.randrange(2)
                more = {"dims": [dim]} if kind == "sum" else {"dim": dim}
                row = work(name.format(kind) + f" over {dim}", kind, [x], "op", **more)
        rows.append(row)
    return rows


def listed(threads):
    return [*networks(threads), *tiny(), *products(), *attention(), *convolutions(), *layers(), *reductions(), *elements()]


def quick():
    """A few small works of every kind, for a test."""
    return [work("tiny add", "add", [tensor(16), tensor(16)], "tiny"),
            work("mm 16", "matmul", [tensor(16, 16), tensor(16, 16)], "product"),
            *both("softmax 33x7", "softmax", [tensor(33, 7)], "op", dim=1),
            *convolution("small", (2, 3, 9, 4, 3, {"padding": 1})), network("mlp", 4, "train"), network("gpt", 1, "infer")]
