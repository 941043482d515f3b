"""Order along a dimension. Run by scripts/make_golden."""
case("cumsum", torch.cumsum, x(3, 5, 4), dtypes=FLOATING, dim=1)
case("cumsum", torch.cumsum, x(5, 4, layout="transposed"), dim=-1)
case("cumsum", torch.cumsum, x(5, 4, layout="offset"), dim=0)
case("cumsum", torch.cumsum, ints(3, 4, low=-9, dtype="i32"), dtypes=("i32",), dim=1)
for descending in [False, True]:
    case("sort", lambda a, dim, descending: tuple(torch.sort(a, dim=dim, descending=descending, stable=True)),
         distinct(3, 7), dtypes=FLOATING, dim=-1, descending=descending)
    case("sort", lambda a, dim, descending: tuple(torch.sort(a, dim=dim, descending=descending, stable=True)),
         distinct(6, 3, 2, layout="transposed"), dim=0, descending=descending)
    case("sort", lambda a, dim, descending: tuple(torch.sort(a, dim=dim, descending=descending, stable=True)),
         ints(4, 9, high=4), dtypes=("i64",), dim=1, descending=descending)
    case("argsort", lambda a, dim, descending: torch.argsort(a, dim=dim, descending=descending, stable=True),
         ints(4, 9, high=4), dtypes=("i64",), dim=0, descending=descending)
    case("topk", lambda a, k, dim, largest: tuple(torch.topk(a, k, dim, largest)), distinct(4, 9), dtypes=FLOATING, k=3,
         dim=1, largest=descending)
    case("topk", lambda a, k, dim, largest: tuple(torch.topk(a, k, dim, largest)),
         distinct(5, 4, layout="offset"), k=5, dim=0, largest=descending)
nan, inf = float("nan"), float("inf")
case("sort", lambda a, dim, descending: tuple(torch.sort(a, dim=dim, descending=descending, stable=True)),
     values([1.0, nan, -inf, 3.0, inf, nan, -1.0], grad=False), dim=0, descending=False)
case("cumprod", torch.cumprod, x(3, 5, 4), dtypes=FLOATING, dim=1)
case("cumprod", torch.cumprod, x(5, 4, layout="transposed"), dim=-1)
case("cumprod", torch.cumprod, values([2.0, 0.0, 3.0, 0.0, 5.0]), dim=0)
case("cumprod", torch.cumprod, ints(3, 4, low=-9, dtype="i32"), dtypes=("i32",), dim=1)
