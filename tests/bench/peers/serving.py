"""What the Python programs of compare_peers share: the same lines of JSON as serve.h, and the works' files."""
import json
import sys
import time

DTYPES = {"F32": "float32", "F64": "float64", "F16": "float16", "I64": "int64", "I32": "int32", "U8": "uint8",
          "BOOL": "bool"}


class Unsupported(Exception):
    """The program cannot do this work."""


def read(folder, tensor):
    """The tensors of the work's file: tensor(bytes, dtype as safetensors names it, shape) makes each."""
    with open(f"{folder}/work.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = bytearray(file.read())
    header.pop("__metadata__", None)
    found = {}
    for name, about in header.items():
        begin, end = about["data_offsets"]
        found[name] = tensor(memoryview(data)[begin:end], about["dtype"], about["shape"])
    return found


def numbered(tensors, prefix):
    return [tensors[f"{prefix}.{i}"] for i in range(sum(name.startswith(f"{prefix}.") for name in tensors))]


def seconds_per_call(repeat, least):
    """As serve.h has it."""
    times = 1
    while True:
        begin = time.perf_counter()
        repeat(times)
        seconds = time.perf_counter() - begin
        if seconds >= least:
            return seconds / times
        times = int(times * least / seconds) + 1 if seconds >= least / 2 else times * 2


def serve(hello, prepare):
    """prepare(work, folder) returns the ways to do it by name: a function that does it so many times, and a report."""
    answer, ways = hello, {}
    lines = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is no answer
    while True:
        print(json.dumps(answer), file=lines, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        request = json.loads(line)
        try:
            if request["do"] == "prepare":
                ways.clear()
                ways.update(prepare(request["work"], request["folder"]))
                answer = {"ways": {name: report for name, (_, report) in ways.items()}}
            else:
                answer = {"seconds": seconds_per_call(ways[request["way"]][0], request["least"])}
        except Unsupported as error:
            answer = {"unsupported": str(error)}
        except Exception as error:  # pylint: disable=broad-except  # whatever a peer throws is a row's reason
            answer = {"error": f"{type(error).__name__}: {error}"[:400]}
