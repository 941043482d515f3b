#!/usr/bin/env python3
"""Every operation that tensor/ops/*_ops.h declares has a row in tests/tensor/ops/table, which takes it through what holds
for all of them.

usage: operations.py <repository root>
"""
import pathlib
import re
import sys

# A function that returns tensors, at the beginning of a line.
DECLARED = re.compile(r"^(?:LOCKSTEP_API|inline) (?:std::vector<Tensor>|Tensor|\w+(?:Indices|Result|State)) (\w+)\(", re.M)
ROW = re.compile(r'\b(?:unary|binary|of_one|of_all|comparison)\(\s*"(\w+)"')
# What cat and stack call, on any number of tensors.
NOT_OPERATIONS = {"join", "join_stacked"}


def check(root):
    root = pathlib.Path(root)
    headers = sorted((root / "tensor" / "ops").glob("*_ops.h"))
    rows = {name for path in (root / "tests" / "tensor" / "ops" / "table").glob("*.cpp")
            for name in ROW.findall(path.read_text())}
    found, declared = [], set()
    for header in headers:
        for name in dict.fromkeys(DECLARED.findall(header.read_text())):
            declared.add(name)
            if name not in NOT_OPERATIONS and name not in rows:
                found.append(f"{header.relative_to(root)}: '{name}' has no row in tests/tensor/ops/table")
    if not declared:
        found.append("tensor/ops: no operations found")
    return found


if __name__ == "__main__":
    found = check(sys.argv[1])
    print("\n".join(found))
    sys.exit(1 if found else 0)
