"""Functions of the elements, arithmetic, comparisons, promotion. Run by scripts/make_golden."""
EVERY = ("f32", "f64", "f16", "bf16")
INTEGER = ("i32", "i64", "u8")

for name in ["neg", "abs", "exp", "square", "sin", "cos", "tanh", "sigmoid", "relu"]:
    function = getattr(torch, name)
    case(name, function, x(3, 5), dtypes=EVERY)
    case(name, function, x(4, 3, 2, layout="transposed"))
    case(name, function, x(3, 7, layout="offset"))
case("sign", torch.sign, x(3, 5), gradients=False, dtypes=EVERY)  # its gradient, 0, is left undefined
for name in ["log", "sqrt", "rsqrt", "reciprocal"]:
    function = getattr(torch, name)
    case(name, function, x(3, 5, low=0.1, high=4), dtypes=EVERY)
    case(name, function, x(5, 3, low=0.1, high=4, layout="transposed"))
    case(name, function, x(4, 3, low=0.1, high=4, layout="expanded"))
case("softplus", F.softplus, x(3, 5, low=-30, high=19), dtypes=EVERY)
case("silu", F.silu, x(3, 5, low=-8, high=8), dtypes=EVERY)
case("gelu_exact", F.gelu, x(17, low=-6, high=6), dtypes=EVERY)
case("gelu_tanh", lambda a: F.gelu(a, approximate="tanh"), x(17, low=-6, high=6), dtypes=EVERY, loose=2)
case("normal_cdf", torch.special.ndtr, x(17, low=-4, high=4))
case("clamp", lambda a, low, high: a.clamp(low, high), x(4, 5), dtypes=EVERY, low=-0.7, high=1.2)
for exponent in [2.0, 3.0, 0.5, -1.5]:
    case("pow_scalar", torch.pow, x(3, 5, low=0.1, high=3), exponent=exponent)
case("scalar_pow", lambda a, base: torch.pow(base, a), x(3, 5), base=2.5)
for name in ["neg", "abs", "square"]:
    case(name, getattr(torch, name), ints(3, 4, low=-9, high=9, dtype="i64"), dtypes=("i64",))
for name in ["exp", "sqrt", "sigmoid"]:  # integers become floating
    case(name, getattr(torch, name), ints(7, high=9), dtypes=("i64",))

BINARY = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum,
          "minimum": torch.minimum}
for name, function in BINARY.items():
    case(name, function, x(3, 5), x(3, 5), dtypes=EVERY)
    case(name, function, x(3, 1, 5), x(4, 1))
    case(name, function, x(3, 5, layout="transposed"), x(5))
    case(name, function, x(1), x(2, 3, layout="offset"))
    case(name, function, x(4, 3, layout="expanded"), x(4, 3))
    case(name, function, x(2, 0, 3), x(3))
case("pow", torch.pow, x(3, 5, low=0.2, high=3), x(5))
case("add", lambda a, b, alpha: torch.add(a, b, alpha=alpha), x(3, 5), x(3, 5), dtypes=EVERY, alpha=-2.5)
for name in ["add", "mul", "div", "rsub", "rdiv"]:
    function = {"add": lambda a, scalar: a + scalar, "mul": lambda a, scalar: a * scalar,
                "div": lambda a, scalar: a / scalar, "rsub": lambda a, scalar: scalar - a,
                "rdiv": lambda a, scalar: scalar / a}[name]
    case(name + "_scalar", function, x(3, 5, low=0.2, high=3), dtypes=EVERY, scalar=1.5)
    case(name + "_scalar", function, ints(5, low=1), dtypes=("i64",), scalar=1.5)

for name in ["eq", "ne", "lt", "le", "gt", "ge"]:
    case(name, getattr(torch, name), ints(4, 6, high=3, dtype="i32"), ints(6, high=3, dtype="i32"), dtypes=("i32",))
    case(name, getattr(torch, name), x(3, 5), x(3, 1), dtypes=EVERY)
for name in ["logical_and", "logical_or", "logical_xor"]:
    case(name, getattr(torch, name), bools(4, 5), bools(5), dtypes=("bool",))
case("logical_not", torch.logical_not, bools(4, 5), dtypes=("bool",))
case("where", torch.where, bools(3, 1), x(3, 5), x(5), dtypes=EVERY)
case("where", torch.where, bools(4, 3, layout="transposed"), x(4, 3), x(4, 3, layout="offset"))

# What two dtypes meet in.
KINDS = {"bool": bools(2, 3), "u8": ints(2, 3, dtype="u8"), "i32": ints(2, 3, dtype="i32"), "i64": ints(2, 3),
         "f16": x(2, 3, dtype="f16"), "bf16": x(2, 3, dtype="bf16"), "f32": x(2, 3, dtype="f32"),
         "f64": x(2, 3, dtype="f64")}
for a, first in KINDS.items():
    for b, second in KINDS.items():
        if a != b:
            case("mul", torch.mul, first, second, dtypes=("f32",), gradients=False)
for a in ["bool", "u8", "i32", "i64"]:
    case("add", torch.add, KINDS[a], KINDS["f32"], dtypes=("f32",))
for dtype in INTEGER:
    case("add", torch.add, ints(9, dtype=dtype), ints(9, dtype=dtype), dtypes=(dtype,))
    case("mul", torch.mul, ints(9, dtype=dtype), ints(9, dtype=dtype), dtypes=(dtype,))
    case("div", torch.div, ints(9, dtype=dtype), ints(9, low=1, dtype=dtype), dtypes=(dtype,))

for source in KINDS:
    for target in ["bool", "u8", "i32", "i64", "f16", "bf16", "f32", "f64"]:
        spec = KINDS[source] if KINDS[source].kind != "real" else x(2, 3, low=0.1, high=9, dtype=source)
        case("cast", lambda a, dtype: a.to({"bool": torch.bool, "u8": torch.uint8, "i32": torch.int32,
                                            "i64": torch.int64, "f16": torch.float16, "bf16": torch.bfloat16,
                                            "f32": torch.float32, "f64": torch.float64}[dtype]),
             spec, dtypes=("f32",), gradients=False, dtype=target)
case("cast", lambda a, dtype: a.double(), x(3, 4, layout="transposed"), dtypes=("f32",), dtype="f64")
for name in ["floor_divide", "remainder"]:
    function = getattr(torch, name)
    case(name, function, x(4, 5, low=-7, high=7), x(5, low=0.7, high=2), gradients=name == "remainder")
    case(name, function, ints(4, 5, low=-9), ints(5, low=1, high=5), dtypes=("i64",))
    case(name, function, ints(4, 5, low=-9, dtype="i32"), ints(5, low=-4, high=-1, dtype="i32"), dtypes=("i32",))

for name in ["log1p", "expm1", "erf"]:
    case(name, getattr(torch, name), x(3, 5, low=-0.9, high=3), dtypes=EVERY)
    case(name, getattr(torch, name), x(5, 3, low=-1e-3, high=1e-3, layout="transposed"), dtypes=("f64", "f32"))
for name in ["floor", "ceil", "round", "trunc"]:
    case(name, getattr(torch, name), x(17, low=-4, high=4), gradients=False, dtypes=EVERY)
    case(name, getattr(torch, name), values([-1.5, -0.5, 0.5, 1.5, 2.5, -0.0, 1e30]), gradients=False)
nan, inf = float("nan"), float("inf")
for name in ["isnan", "isinf", "isfinite"]:
    case(name, getattr(torch, name), values([1.0, nan, -inf, 0.0, inf]), gradients=False, dtypes=EVERY)
    case(name, getattr(torch, name), ints(5, dtype="i32"), dtypes=("i32",))
for name in ["relu", "abs", "gelu_exact", "gelu_tanh", "silu"]:
    function = {"relu": torch.relu, "abs": torch.abs, "gelu_exact": F.gelu, "silu": F.silu,
                "gelu_tanh": lambda a: F.gelu(a, approximate="tanh")}[name]
    case(name, function, values([-1000.0, -30.0, 30.0, 1000.0, 300.0]), dtypes=EVERY)  # squares are beyond f16
case("relu", torch.relu, values([nan, -1.0, 2.0, inf, 0.0]))
for name in ["maximum", "minimum"]:
    case(name, getattr(torch, name), values([nan, 1.0, -1.0, 0.0, inf, 3.0]), values([1.0, nan, -1.0, -0.0, 2.0, inf]))
case("floor_divide", torch.floor_divide, values([1.0, -1.0, 1.0, -1.0, 0.0, 7.0]), values([-inf, inf, inf, -inf, inf, -2.0]),
     gradients=False)
case("masked_fill", lambda a, mask, number: a.masked_fill(mask, number), x(3, 5), bools(5), dtypes=EVERY, number=-1.5)
case("masked_fill", lambda a, mask, number: a.masked_fill(mask, number), ints(3, 5), bools(3, 1), dtypes=("i64",), number=7)

# What a tensor of rank 0 meets others in.
for a, first in KINDS.items():
    for b, second in KINDS.items():
        if a != b:
            case("mul", torch.mul, first, dataclasses.replace(second, shape=()), dtypes=("f32",), gradients=False)
case("add", torch.add, x(dtype="f64"), x(3, 4, dtype="f16"), dtypes=("f64",))
case("lt", torch.lt, values([0.1, 0.7], dtype="f32"), values(0.1, dtype="f64"), dtypes=("f32",), gradients=False)
case("add", torch.add, ints(5, dtype="u8"), ints(5, dtype="u8"), dtypes=("u8",), alpha=-3)

# Beyond the kinks and at them.
case("hardswish", F.hardswish, x(3, 5, low=-5, high=5), dtypes=EVERY)
case("hardswish", F.hardswish, x(4, 3, 2, low=-5, high=5, layout="transposed"))
case("hardswish", F.hardswish, x(3, 7, low=-5, high=5, layout="offset"))
case("hardswish", F.hardswish, values([-1000.0, -3.0, -1.5, 0.0, 3.0, 1000.0, nan]), dtypes=EVERY)
