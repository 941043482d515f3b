"""PyTorch in compare_peers: usage: run_torch.py <threads>. Eager, channels_last where there are images, and compiled
where there is a network."""
import sys

import torch
from serving import Unsupported, numbered, read, serve
from torch_networks import loaded, training_step
from torch_operations import OPERATIONS

DTYPES = {"F32": torch.float32, "F64": torch.float64, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
          "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}


def tensor(data, dtype, shape):
    return torch.frombuffer(data, dtype=DTYPES[dtype]).reshape(shape) if len(data) else torch.empty(shape)


def difference(ours, theirs):
    """The largest difference of the results, as a part of their largest element."""
    worst = 0.0
    if len(ours) != len(theirs):
        raise ValueError(f"expected {len(ours)} results as on the other side, got {len(theirs)}")
    for a, b in zip(ours, theirs):
        if tuple(a.shape) != tuple(b.shape):
            raise ValueError(f"expected {tuple(a.shape)} as on the other side, got {tuple(b.shape)}")
        if a.numel():
            a, b = a.double(), b.detach().double()
            worst = max(worst, ((a - b).abs().max() / b.abs().max().clamp(min=1e-30)).item())
    return worst


def repeated(call):
    def repeat(times):
        for _ in range(times):
            call()
    return repeat


def without_graph(call):
    @torch.inference_mode()
    def repeat(times):
        for _ in range(times):
            call()
    return repeat


def channels_last(x):
    return x.detach().to(memory_format=torch.channels_last).requires_grad_(x.requires_grad) if x.dim() == 4 else x


def operation(work, tensors):
    if work["op"] not in OPERATIONS:
        raise Unsupported(f"there is no operation {work['op']}")
    inputs, ours = numbered(tensors, "in"), numbered(tensors, "out")
    backward = work["kind"] == "grad"
    gradient = inputs.pop() if backward else None
    if backward:
        inputs = [x.requires_grad_() if x.is_floating_point() else x for x in inputs]

    def way(x):
        with torch.set_grad_enabled(backward):
            call = OPERATIONS[work["op"]](x, **work["args"])
        leaves = [one for one in x if one.requires_grad]

        def forget():
            for leaf in leaves:
                leaf.grad = None

        def with_backward():
            output = call()
            output.backward(gradient)
            return output

        def repeat(times):
            for _ in range(times):
                with_backward()
                forget()
        run = with_backward if backward else call
        with torch.set_grad_enabled(backward):
            result = run()
        results = [result if isinstance(result, torch.Tensor) else result[0], *(leaf.grad for leaf in leaves)]
        report = {} if work.get("random") else {"difference": difference(ours, results)}
        forget()
        return (repeat if backward else without_graph(call)), report

    ways = {"eager": way(inputs)}
    if work["group"] == "conv":
        ways["channels_last"] = way([channels_last(x) for x in inputs])
    return ways


def network(work, tensors):
    name, ours, inputs = work["op"], numbered(tensors, "out"), numbered(tensors, "in")
    state = {key[len("state."):]: value for key, value in tensors.items() if key.startswith("state.")}
    images = inputs[0].dim() == 4
    forms = ["eager", "compiled"] + (["channels_last", "channels_last, compiled"] if images else [])
    ways, reasons = {}, {}
    for form in forms:
        net = loaded(name, {key: value.clone() for key, value in state.items()})
        x = inputs[0]
        if "channels_last" in form:
            net, x = net.to(memory_format=torch.channels_last), channels_last(x)
        if work["kind"] == "infer":
            net.eval()
        try:
            runs = torch.compile(net) if "compiled" in form else net
            if work["kind"] == "train":
                step = training_step(runs, name, x, inputs[1])
                ways[form] = repeated(step), {"difference": difference(ours, [step() for _ in ours])}
            else:
                with torch.inference_mode():
                    result = runs(x)
                ways[form] = without_graph(lambda runs=runs, x=x: runs(x)), {"difference": difference(ours, [result])}
        except Exception as error:  # pylint: disable=broad-except  # a compiler that fails leaves the other ways
            if form == "eager":
                raise
            reasons[form] = f"{type(error).__name__}: {str(error).splitlines()[0]}"[:300]
    if reasons:
        ways["eager"][1]["missing"] = reasons
    return ways


def prepare(work, folder):
    torch._dynamo.reset()
    tensors = read(folder, tensor)
    return network(work, tensors) if work["kind"] in ("train", "infer") else operation(work, tensors)


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    torch.manual_seed(0)
    serve({"name": "pytorch", "version": torch.__version__}, prepare)
