"""Views, joining, indexing. Run by scripts/make_golden."""
for layout in ["contiguous", "transposed", "offset"]:
    case("reshape", lambda a, shape: a.reshape(shape), x(4, 6, layout=layout), shape=[3, -1, 2])
    case("flatten", lambda a, start, end: a.flatten(start, end), x(2, 3, 4, layout=layout), start=1, end=-1)
    case("transpose", lambda a, dim0, dim1: a.transpose(dim0, dim1), x(2, 3, 4, layout=layout), dim0=0, dim1=-1)
    case("permute", lambda a, dims: a.permute(dims), x(2, 3, 4, layout=layout), dims=[2, 0, 1])
    case("narrow", lambda a, dim, start, length: a.narrow(dim, start, length), x(5, 4, layout=layout), dim=0, start=1,
         length=3)
    case("select", lambda a, dim, index: a.select(dim, index), x(5, 4, layout=layout), dim=1, index=-1)
    case("flip", lambda a, dims: a.flip(dims), x(3, 4, 2, layout=layout), dims=[0, 2])
    case("contiguous", lambda a: a.contiguous(), x(3, 4, layout=layout), dtypes=FLOATING)
    case("unsqueeze", lambda a, dim: a.unsqueeze(dim), x(3, 4, layout=layout), dim=1)
case("squeeze", lambda a, dim: a.squeeze(dim), x(3, 1, 4), dim=1)
case("expand", lambda a, shape: a.expand(shape), x(3, 1), shape=[2, 3, 5])
case("pad", lambda a, dim, before, after: F.pad(a, (before, after)), x(3, 4), dim=1, before=2, after=1)

case("cat", lambda *tensors, dim: torch.cat(tensors, dim), x(2, 3), x(4, 3), x(1, 3), dtypes=FLOATING, dim=0)
case("cat", lambda *tensors, dim: torch.cat(tensors, dim), x(2, 3, layout="transposed"), x(2, 1), dim=-1)
case("cat", lambda *tensors, dim: torch.cat(tensors, dim), x(2, 3), x(2, 0), dim=1)
case("stack", lambda *tensors, dim: torch.stack(tensors, dim), x(2, 3), x(2, 3, layout="offset"), dim=1)
case("split", lambda a, length, dim: torch.split(a, length, dim), x(7, 2), length=3, dim=0)
case("chunk", lambda a, chunks, dim: torch.chunk(a, chunks, dim), x(2, 7, layout="transposed"), chunks=3, dim=1)

case("index_select", lambda a, index, dim: a.index_select(dim, index), x(5, 4), ints(7, high=5), dtypes=FLOATING, dim=0)
case("index_select", lambda a, index, dim: a.index_select(dim, index), x(5, 4, layout="transposed"), ints(3, high=4),
     dim=1)
case("index_add", lambda a, index, source, dim: a.index_add(dim, index, source), x(5, 4), ints(7, high=5), x(7, 4),
     dim=0)
case("gather", lambda a, index, dim: a.gather(dim, index), x(5, 4), ints(3, 4, high=5), dim=0)
case("gather", lambda a, index, dim: a.gather(dim, index), x(5, 4, layout="offset"), ints(5, 6, high=4), dim=1)
case("scatter_add", lambda a, index, source, dim: a.scatter_add(dim, index, source), x(5, 4), ints(7, 4, high=5),
     x(7, 4), dim=0)
case("one_hot", lambda index, classes: F.one_hot(index, classes), ints(3, 4, high=5), dtypes=("i64",), classes=5)

for layout in ["contiguous", "transposed", "offset"]:
    case("unbind", lambda a, dim: torch.unbind(a, dim), x(3, 4, layout=layout), dim=1)
    case("repeat", lambda a, times: a.repeat(times), x(2, 3, layout=layout), times=[2, 1, 3])
    case("repeat_interleave", lambda a, times, dim: a.repeat_interleave(times, dim), x(2, 3, layout=layout), times=3, dim=1)
    case("roll", lambda a, shift, dim: torch.roll(a, shift, dim), x(5, 3, layout=layout), shift=-2, dim=0)
    case("tril", lambda a, diagonal: torch.tril(a, diagonal), x(4, 5, layout=layout), diagonal=-1)
    case("triu", lambda a, diagonal: torch.triu(a, diagonal), x(2, 4, 3), diagonal=1)
    case("pad_all", lambda a, counts, number: F.pad(a, counts, value=number), x(2, 3, 4, layout=layout),
         counts=[1, 2, 0, 1], number=-0.5)
case("pad_all", lambda a, counts, number: F.pad(a, counts, value=number), x(2, 3), counts=[1, 0, 2, 3], number=0)
case("tril", lambda a, diagonal: torch.tril(a, diagonal), bools(4, 4), dtypes=("bool",), diagonal=0)
case("meshgrid", lambda *vectors: torch.meshgrid(*vectors, indexing="ij"), x(3), x(4), x())
case("squeeze_all", lambda a: a.squeeze(), x(1, 3, 1, 4))
case("roll", lambda a, shift, dim: torch.roll(a, shift, dim), ints(7), dtypes=("i64",), shift=10, dim=-1)
case("linspace", lambda low, high, steps: torch.linspace(low, high, steps, dtype=torch.float64), dtypes=("f64",), low=-1.5, high=2.25, steps=7)
for name in ["mm", "bmm", "mv", "dot", "outer"]:
    shapes = {"mm": ((3, 4), (4, 2)), "bmm": ((2, 3, 4), (2, 4, 2)), "mv": ((3, 4), (4,)), "dot": ((4,), (4,)),
              "outer": ((3,), (4,))}[name]
    case(name, getattr(torch, name), x(*shapes[0]), x(*shapes[1]))
for layout in ["contiguous", "transposed", "offset"]:
    for start, end, step in [(1, 5, 2), (-4, 100, 3), (4, 2, 2), (0, -1, 1)]:
        case("slice", lambda a, dim, start, end, step: a[:, start:end:step], x(3, 5, 2, layout=layout), dim=1, start=start,
             end=end, step=step)
