"""The single operations of works.py in PyTorch: OPERATIONS[op](x, **args) returns a function without arguments."""
import torch
import torch.nn.functional as F


def chain(x, length):
    def run():
        y, b = x[0], x[1]
        for _ in range(length):
            y = y + b
        return y
    return run


def matmul(x, transpose_a=False, transpose_b=False):
    a, b = x[0], x[1]
    return lambda: torch.matmul(a.mT if transpose_a else a, b.mT if transpose_b else b)


def narrow(x, dim, start, length):
    return lambda: x[0].narrow(dim, start, length).contiguous()


def slice_by(x, dim, step):
    at = (slice(None),) * dim + (slice(None, None, step),)
    return lambda: x[0][at].contiguous()


def batch_norm(x, training=False):
    if training:
        return lambda: F.batch_norm(x[0], None, None, x[1], x[2], training=True)
    return lambda: F.batch_norm(x[0], x[3], x[4], x[1], x[2])


def step(x, optimizer, count):
    parameters = [torch.nn.Parameter(x[0].clone()) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = x[1].clone()
    kinds = {"sgd": (torch.optim.SGD, {}), "sgd_momentum": (torch.optim.SGD, {"momentum": 0.9}),
             "adam": (torch.optim.Adam, {}), "adamw": (torch.optim.AdamW, {})}
    kind, more = kinds[optimizer]
    stepper = kind(parameters, lr=1e-3, fused=True, **more)

    def run():
        stepper.step()
        return parameters[0].detach()
    return run


def of_dtype(name):
    return {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16,
            "i64": torch.int64}[name]


def attention(x, causal=False):
    return lambda: F.scaled_dot_product_attention(x[0], x[1], x[2], is_causal=causal)


def unary(function):
    return lambda x: lambda: function(x[0])


def binary(function):
    return lambda x: lambda: function(x[0], x[1])


def over_dims(function):
    return lambda x, dims: lambda: function(x[0], dims)


def over_dim(function):
    return lambda x, dim: lambda: function(x[0], dim)


OPERATIONS = {
    "empty": unary(torch.empty_like), "zeros": unary(torch.zeros_like), "clone": unary(torch.clone),
    "rand": unary(torch.rand_like), "randn": unary(torch.randn_like),
    "randperm": lambda x, count: lambda: torch.randperm(count),
    "dropout": unary(lambda x: F.dropout(x, 0.1)),
    "add": binary(torch.add), "mul": binary(torch.mul), "div": binary(torch.div), "maximum": binary(torch.maximum),
    "lt": binary(torch.lt), "mul_scalar": unary(lambda x: x * 1.5), "pow2.5": unary(lambda x: x ** 2.5),
    "clamp": unary(lambda x: x.clamp(-0.5, 0.5)), "gelu": unary(F.gelu), "relu": unary(torch.relu),
    "exp": unary(torch.exp), "log": unary(torch.log), "tanh": unary(torch.tanh), "sigmoid": unary(torch.sigmoid),
    "silu": unary(F.silu), "sin": unary(torch.sin), "erf": unary(torch.erf), "sqrt": unary(torch.sqrt),
    "where": lambda x: lambda: torch.where(x[0], x[1], x[2]),
    "masked_fill": lambda x: lambda: x[0].masked_fill(x[1], -1),
    "to": lambda x, dtype: lambda: x[0].to(of_dtype(dtype)),
    "chain": chain, "matmul": matmul, "linear": lambda x: lambda: F.linear(x[0], x[1], x[2]),
    "sum_item": lambda x: lambda: torch.full((1,), x[0].sum().item()),
    "cat": lambda x, dim: lambda: torch.cat((x[0], x[1]), dim),
    "stack": lambda x, dim: lambda: torch.stack((x[0], x[1]), dim),
    "narrow": narrow, "slice": slice_by, "permute": lambda x, dims: lambda: x[0].permute(dims).contiguous(),
    "add_transposed": lambda x: lambda: x[0] + x[1].t(), "flip": over_dims(torch.flip),
    "roll": lambda x, dim: lambda: torch.roll(x[0], 7, dim), "pad": over_dims(F.pad),
    "repeat": lambda x, times: lambda: x[0].repeat(times), "triu": unary(torch.triu),
    "index_select": lambda x, dim: lambda: torch.index_select(x[0], dim, x[1]),
    "gather": lambda x, dim: lambda: torch.gather(x[0], dim, x[1]),
    "scatter_add": lambda x, dim: lambda: torch.scatter_add(x[0], dim, x[1], x[2]),
    "index_add": lambda x, dim: lambda: torch.index_add(x[0], dim, x[1], x[2]),
    "one_hot": lambda x, classes: lambda: F.one_hot(x[0], classes),
    "sum": over_dims(torch.sum), "sum_transposed": over_dims(lambda x, dims: x.t().sum(dims)),
    "mean": over_dims(torch.mean), "var": over_dims(torch.var), "norm": over_dims(lambda x, dims: x.norm(dim=dims)),
    "logsumexp": over_dims(torch.logsumexp), "amax": over_dims(torch.amax), "any": over_dims(torch.any),
    "sum_all": unary(torch.sum), "mean_all": unary(torch.mean), "norm_all": unary(torch.norm),
    "max_all": unary(torch.max), "max": over_dim(torch.max), "argmax": over_dim(torch.argmax),
    "prod": over_dim(torch.prod), "cumsum": over_dim(torch.cumsum), "sort": over_dim(torch.sort),
    "topk": lambda x, dim: lambda: torch.topk(x[0], 10, dim),
    "softmax": over_dim(torch.softmax), "log_softmax": over_dim(torch.log_softmax),
    "conv2d": lambda x, **how: lambda: F.conv2d(x[0], x[1], None, **how),
    "conv_transpose2d": lambda x, **how: lambda: F.conv_transpose2d(x[0], x[1], None, **how),
    "max_pool2d": lambda x, kernel, stride, padding: lambda: F.max_pool2d(x[0], kernel, stride, padding),
    "avg_pool2d": lambda x, kernel, stride, padding: lambda: F.avg_pool2d(x[0], kernel, stride, padding),
    "adaptive_avg_pool2d": lambda x: lambda: F.adaptive_avg_pool2d(x[0], 1),
    "interpolate": lambda x, mode="nearest": lambda: F.interpolate(x[0], scale_factor=2, mode=mode),
    "layer_norm": lambda x: lambda: F.layer_norm(x[0], x[0].shape[-1:], x[1], x[2]), "batch_norm": batch_norm,
    "group_norm": lambda x: lambda: F.group_norm(x[0], 8, x[1], x[2]),
    "cross_entropy": lambda x: lambda: F.cross_entropy(x[0], x[1]), "attention": attention,
    "embedding": lambda x: lambda: F.embedding(x[1], x[0]), "step": step,
}


def add_(x):
    total = x[0].clone()
    return lambda: total.add_(x[1], alpha=1e-3)


OPERATIONS["add_"] = add_
