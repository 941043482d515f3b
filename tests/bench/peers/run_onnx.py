"""ONNX Runtime and OpenVINO in compare_peers, for inference in f32: usage: run_onnx.py onnxruntime|openvino <threads>.
Both read what PyTorch exports."""
import importlib
import io
import logging
import pathlib
import sys
import warnings

import torch
from run_torch import difference, tensor
from serving import Unsupported, numbered, read, serve
from torch_networks import loaded

PEER, THREADS = sys.argv[1], int(sys.argv[2])


def exported(work, state, x, folder):
    """The network as ONNX, in bytes: the first of the two programs makes it."""
    path = pathlib.Path(folder, f"{work['seed']}.onnx")
    if not path.exists():
        net = loaded(work["op"], state).eval()
        torch.onnx.export(net, (x,), dynamo=True, verbose=False).save(str(path))
    return path.read_bytes()


def onnxruntime_session(model):
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x})[0]


def openvino_session(model):
    openvino = importlib.import_module("openvino")
    core = openvino.Core()
    # f32: where the processor has AMX it would choose bf16.
    compiled = core.compile_model(core.read_model(io.BytesIO(model)), "CPU",
                                  {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": THREADS,
                                   "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1})
    request = compiled.create_infer_request()
    return lambda x: request.infer([x], share_inputs=True, share_outputs=True)[0]


SESSIONS = {"onnxruntime": onnxruntime_session, "openvino": openvino_session}


def prepare(work, folder):
    if work["kind"] != "infer":
        raise Unsupported("infers only")
    tensors = read(folder, tensor)
    state = {key[len("state."):]: value for key, value in tensors.items() if key.startswith("state.")}
    x = numbered(tensors, "in")[0]
    session = SESSIONS[PEER](exported(work, state, x, folder))
    x = x.numpy()
    result = torch.from_numpy(session(x).copy())

    def repeat(times):
        for _ in range(times):
            session(x)
    return {"session": (repeat, {"difference": difference(numbered(tensors, "out"), [result])})}


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    torch.set_num_threads(THREADS)
    serve({"name": PEER, "version": importlib.import_module(PEER).__version__}, prepare)
