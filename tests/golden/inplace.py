"""Operations in place, in a graph and on views. Run by scripts/make_golden.

Each begins with a copy of its first operand, which is then written."""
TWO = {"add_": lambda a, b, alpha=1: a.clone().add_(b, alpha=alpha), "sub_": lambda a, b, alpha=1: a.clone().sub_(b, alpha=alpha),
       "mul_": lambda a, b: a.clone().mul_(b), "div_": lambda a, b: a.clone().div_(b), "copy_": lambda a, b: a.clone().copy_(b)}
for name, function in TWO.items():
    low = {"low": 0.3, "high": 3} if name == "div_" else {}
    kept = {"grad": name != "copy_"}  # what is overwritten gets no gradient, where PyTorch fills in zeros
    case(name, function, x(3, 5, **kept), x(3, 5, **low), dtypes=FLOATING)
    case(name, function, x(3, 5, layout="transposed", **kept), x(5, **low))
    case(name, function, x(4, 3, layout="expanded", **kept), x(4, 1, layout="offset", **low))
    case(name, function, x(2, 3, **kept), x(**low))
    case(name, function, x(2, 3, **kept), x(2, 3, dtype="f32", **low), dtypes=("f64",))
    case(name, function, x(2, 3, dtype="bf16", **kept), x(3, dtype="f32", **low), dtypes=("f32",), gradients=False)
for name in ["add_", "sub_"]:
    case(name, TWO[name], x(3, 5), x(3, 1), dtypes=FLOATING, alpha=-2.5)
for name in ["add_", "mul_"]:
    for dtype in ["u8", "i32", "i64"]:
        case(name, TWO[name], ints(3, 4, dtype=dtype), ints(4, dtype="i64"), dtypes=(dtype,))
    case(name, TWO[name], bools(4, 5), bools(5), dtypes=("bool",))
case("sub_", TWO["sub_"], ints(7, dtype="u8"), ints(7, dtype="u8"), dtypes=("u8",))
case("copy_", TWO["copy_"], ints(2, 3), x(3), dtypes=("f32",), gradients=False)

NUMBER = {"add_number_": lambda a, number: a.clone().add_(number), "sub_number_": lambda a, number: a.clone().sub_(number),
          "mul_number_": lambda a, number: a.clone().mul_(number), "div_number_": lambda a, number: a.clone().div_(number)}
for name, function in NUMBER.items():
    case(name, function, x(3, 5), dtypes=FLOATING, number=1.7)
    case(name, function, x(4, 3, layout="transposed"), number=-0.3)
    if name != "div_number_":
        case(name, function, ints(5, dtype="u8"), dtypes=("u8",), number=-3)
case("fill_", lambda a, number: a.clone().fill_(number), ints(3, 2), dtypes=("i64",), number=4)

# Into a view; the whole is the result.
WRITE = {"add_": lambda view, b: view.add_(b), "mul_": lambda view, b: view.mul_(b), "copy_": lambda view, b: view.copy_(b)}


def into_view(a, b, how):
    whole = a.clone()
    WRITE[how](whole.narrow(0, 1, 2).transpose(0, 1).select(0, 2), b)
    WRITE[how](whole.reshape(2, -1).narrow(1, 3, 4), b.sum())
    return whole


for how in WRITE:
    case("into_view", into_view, x(4, 5, grad=False), x(2, grad=False), dtypes=FLOATING, how=how)


def chain(a, b, c):
    """Several writes into one tensor, whose views are read afterwards."""
    y = a * 2
    y.mul_(b)
    y.add_(c, alpha=3).div_(b.abs() + 1)
    y.sub_(a)
    y = y * y  # in place PyTorch refuses it
    return y.narrow(0, 1, 2).transpose(0, 1), (y.reshape(-1).narrow(0, 2, 7) * c.sum()).exp()


case("chain", chain, x(3, 4, low=-1, high=1), x(4), x(3, 1, layout="offset"), dtypes=("f64", "f32"), loose=3)


def filled(a, b):
    """Into a tensor that was no part of a graph, and out of it again."""
    y = torch.zeros(3, 4, dtype=a.dtype)
    y.copy_(a).mul_(b).add_(1)
    z = y * a
    y = y.detach().clone().fill_(0.5).add_(b)
    return z, y


case("filled", filled, x(4), x(3, 4), dtypes=("f64", "f32"))
