"""Reductions. Run by scripts/make_golden."""
for name in ["sum", "mean"]:
    function = {"sum": lambda a, dims=None, keep=False: a.sum(dims, keep) if dims is not None else a.sum(),
                "mean": lambda a, dims=None, keep=False: a.mean(dims, keep) if dims is not None else a.mean()}[name]
    case(name, function, x(3, 5, 7), dtypes=FLOATING)
    case(name, function, x(3, 5, 7), dtypes=FLOATING, dims=[1])
    case(name, function, x(3, 5, 7), dims=[0, 2], keep=True)
    case(name, function, x(3, 5, 7, layout="transposed"), dims=[-1])
    case(name, function, x(4, 5, 3, layout="offset"), dims=[0, 1])
    case(name, function, x(4, 5, layout="expanded"), dims=[0])
case("sum", lambda a, dims, keep: a.sum(dims, keep), x(3, 0, 2), dims=[1], keep=False)
case("sum", lambda a: a.sum(), ints(3, 4), dtypes=("i64",))
case("sum", lambda a: a.sum(), bools(13), dtypes=("bool",))
case("sum", lambda a: a.sum(), ints(3, 4, dtype="i32"), dtypes=("i32",))


def variance(a, dims=None, correction=1, keep=False):
    return a.var(dim=dims, correction=correction, keepdim=keep)


case("var", variance, x(3, 5), dims=[0, 1])
case("var", variance, x(3, 5, 7), dtypes=FLOATING, dims=[1])
case("var", variance, x(3, 5, 7, layout="transposed"), dims=[0, 2], correction=0, keep=True)
case("norm", lambda a: a.norm(), x(4, 5))
case("norm", lambda a, dims, keep=False: torch.linalg.vector_norm(a, dim=dims, keepdim=keep), x(3, 5, 7), dims=[1])
case("norm", lambda a, dims, keep=False: torch.linalg.vector_norm(a, dim=dims, keepdim=keep),
     x(3, 5, 7, layout="offset"), dims=[0, 2], keep=True)
case("prod", lambda a: a.prod(), x(7))
case("prod_dim", lambda a, dim, keep=False: a.prod(dim, keep), x(3, 5), dim=1)
case("prod_dim", lambda a, dim, keep=False: a.prod(dim, keep), x(3, 5, layout="transposed"), dim=0, keep=True)

for name in ["max", "min"]:
    function = getattr(torch, name)
    case(name, lambda a, function=function: function(a), distinct(4, 5), dtypes=FLOATING)
    case(name + "_dim", lambda a, dim, keep=False, function=function: tuple(function(a, dim, keepdim=keep)),
         distinct(3, 5, 2), dtypes=FLOATING, dim=1)
    case(name + "_dim", lambda a, dim, keep=False, function=function: tuple(function(a, dim, keepdim=keep)),
         distinct(3, 5, layout="transposed"), dim=-1, keep=True)
    case(name, lambda a, function=function: function(a), ints(3, 4, low=-9), dtypes=("i64",))
    arg = getattr(torch, "arg" + name)
    case("arg" + name, lambda a, arg=arg: arg(a), distinct(4, 5), dtypes=FLOATING)
    case("arg" + name + "_dim", lambda a, dim, keep=False, arg=arg: arg(a, dim, keepdim=keep),
         distinct(4, 5, 3, layout="offset"), dim=1)
for name in ["any", "all"]:
    function = getattr(torch, name)
    case(name, lambda a, function=function: function(a), bools(3, 4), dtypes=("bool",))
    case(name + "_dims", lambda a, dims, function=function: function(a, dim=dims[0]), bools(6, 2), dtypes=("bool",), dims=[1])
for p in [0.0, 1.0, 3.0, float("inf"), -float("inf")]:
    case("vector_norm", lambda a, p, dims, keep: torch.linalg.vector_norm(a, float(p), dim=dims, keepdim=keep),
         distinct(3, 5, 2), gradients=p != 0, p=str(p), dims=[1], keep=False)


def deviation(a, dims=None, correction=1, keep=False):
    return a.std(dim=dims, correction=correction, keepdim=keep)


case("stddev", deviation, x(4, 5), dims=[0, 1])
case("stddev", deviation, x(3, 5, 4), dtypes=FLOATING, dims=[1])
case("stddev", deviation, x(3, 5, layout="transposed"), dims=[0], correction=0, keep=True)
case("stddev", deviation, values([[1.0, 1.0, 1.0], [1.0, 2.0, 4.0]]), dims=[1])  # the slope of the first is none
for layout in ["contiguous", "offset"]:
    case("logsumexp", lambda a, dims, keep: torch.logsumexp(a, dims, keep), x(3, 5, 2, layout=layout, high=90),
         dtypes=FLOATING, dims=[0, 2], keep=layout == "offset")
for name in ["amax", "amin"]:
    function = getattr(torch, name)
    case(name, lambda a, dims, keep, function=function: function(a, dims, keep), distinct(3, 5, 2), dtypes=FLOATING,
         dims=[0, 2], keep=False)
    case(name, lambda a, dims, keep, function=function: function(a, dims, keep),
         values([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]), dims=[1], keep=True)
    case(name, lambda a, dims, keep, function=function: function(a, dims, keep), ints(3, 4, low=-9, dtype="i32"),
         dtypes=("i32",), dims=[-1], keep=False)
case("prod_dim", lambda a, dim, keep=False: a.prod(dim, keep),
     values([[1.0, 0.0, 3.0], [0.0, 2.0, 0.0], [2.0, -1.0, 0.5]]), dim=1)
for p in [0.5, -1.0]:
    case("vector_norm", lambda a, p, dims, keep: torch.linalg.vector_norm(a, float(p), dim=dims, keepdim=keep),
         values([[1.0, 0.0, 3.0], [0.5, 2.0, -1.5]]), p=str(p), dims=[1], keep=False, gradients=p > 0)
case("vector_norm", lambda a, p, dims, keep: torch.linalg.vector_norm(a, float(p), dim=dims, keepdim=keep),
     x(3, 5, low=100, high=300), p="3", dims=[1], keep=False, dtypes=FLOATING)
case("var", variance, x(3, 5, low=200, high=260), dims=[0, 1], dtypes=FLOATING)
case("var", variance, x(3, 1), dims=[1])
# Of a single element, along its only dimension.
for name, function in {"sum": torch.sum, "mean": torch.mean}.items():
    case(name, lambda a, dims, keep, function=function: function(a, dims, keepdim=keep), x(), dims=[-1], keep=True)
case("prod_dim", lambda a, dim, keep=False: a.prod(dim, keep), x(), dim=0)
case("max_dim", lambda a, dim, keep=False: tuple(torch.max(a, dim, keepdim=keep)), x(), dim=-1)
case("argmax_dim", lambda a, dim, keep=False: torch.argmax(a, dim, keepdim=keep), x(), dim=0, keep=True)
