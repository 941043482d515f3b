"""Sharded sets, read and written by nothing but the standard library, and the jobs of lockstep-sharded-sets."""
import hashlib
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from support.jobs import clean_environment  # noqa: E402

SIZES = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "I64": 8}
INDEX = "{}.safetensors.index.json"


def run(launcher, program, ranks, *arguments):
    """The lines that rank 0 of a job prints, as a table: (of, name) to (dtype, shape, SHA-256)."""
    done = subprocess.run([launcher, "-n", str(ranks), "--no-prefix", program, *map(str, arguments)], text=True, timeout=240,
                          env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        raise AssertionError(f"{ranks} ranks, {arguments}: {done.stdout}{done.stderr}")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {(row["of"], row["name"]): (row["dtype"], tuple(row["shape"]), row["sha256"]) for row in rows}


def of(table, what):
    return {name: row for (belongs, name), row in table.items() if belongs == what}


def read_file(path):
    """The tensors of one file: name to (dtype, shape, bytes)."""
    data = pathlib.Path(path).read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    return {name: (each["dtype"], tuple(each["shape"]), data[begin + each["data_offsets"][0]:begin + each["data_offsets"][1]])
            for name, each in header.items()}


def write_file(path, tensors):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(len(text).to_bytes(8, "little") + text + b"".join(each[2] for each in tensors.values()))


def read_set(folder, stem):
    """The tensors of a set, each from the file that the index names: there, and nowhere else."""
    folder = pathlib.Path(folder)
    index = json.loads((folder / INDEX.format(stem)).read_text(encoding="utf-8"))
    files = {path.name: read_file(path) for path in folder.glob(f"{stem}-*.safetensors")}
    assert set(index["weight_map"].values()) <= set(files), (index["weight_map"], sorted(files))
    in_files = sorted((name, file) for file, tensors in files.items() for name in tensors)
    assert in_files == sorted(index["weight_map"].items()), (in_files, index["weight_map"])
    found = {name: files[file][name] for name, file in index["weight_map"].items()}
    total = sum(len(data) for _, _, data in found.values())
    assert index["metadata"]["total_size"] == total, (index["metadata"], total)
    return found


def write_set(folder, tensors, files):
    """As the field writes it: tensors in the order of their names, file by file."""
    names = sorted(tensors)
    weight_map = {}
    for i in range(files):
        name = f"model-{i + 1:05}-of-{files:05}.safetensors"
        part = names[i * len(names) // files:(i + 1) * len(names) // files]
        write_file(os.path.join(folder, name), {each: tensors[each] for each in part})
        weight_map |= dict.fromkeys(part, name)
    text = json.dumps({"metadata": {"total_size": sum(len(each[2]) for each in tensors.values())}, "weight_map": weight_map})
    pathlib.Path(folder, INDEX.format("model")).write_text(text, encoding="utf-8")


def table_of(tensors):
    """Name to (dtype, shape, SHA-256), as `run` has it."""
    for name, (dtype, shape, data) in tensors.items():
        count = SIZES[dtype]
        for size in shape:
            count *= size
        assert count == len(data), (name, dtype, shape, len(data))
    return {name: (dtype, shape, hashlib.sha256(data).hexdigest()) for name, (dtype, shape, data) in tensors.items()}


def differences(wanted, got):
    """Lines, one for each tensor that differs; none where both are the same."""
    return [f"{name}: expected {wanted.get(name, 'none')}, got {got.get(name, 'none')}"
            for name in sorted(wanted.keys() | got.keys()) if wanted.get(name) != got.get(name)]
