#!/usr/bin/env python3
"""Every entry of the kernel table stands in both backends' tables, and has a test on the host and a comparison of CUDA
with the host.

usage: entries.py <repository root>
"""
import pathlib
import re
import sys


def check(root):
    root = pathlib.Path(root)
    found = []
    table = (root / "kernels" / "table.h").read_text()
    body = table[table.index("struct KernelTable"):]
    entries = re.findall(r"^\s*Kernel<\w+> (\w+) = nullptr;", body, re.M)
    if not entries:
        return ["kernels/table.h: no entries found"]

    def text(folder, pattern, leave_out=None):
        return "\n".join(path.read_text() for path in sorted((root / folder).rglob(pattern))
                         if not leave_out or leave_out not in path.relative_to(root).parts)

    sources = {
        "kernels/host's table": text("kernels/host", "host_table.cpp"),
        "kernels/cuda's table": text("kernels/cuda", "cuda_table.cpp"),
        "a test in tests/kernels": text("tests/kernels", "*_test.cpp", "cuda"),
        "a comparison with the host in tests/kernels/cuda/parity*": text("tests/kernels/cuda", "parity*_test.cpp"),
    }
    for entry in entries:
        for what, source in sources.items():
            pattern = rf"&KernelTable::{entry}\b" if "tests" in what else rf"\.{entry}\b"
            if not re.search(pattern, source):
                found.append(f"kernels/table.h: entry '{entry}' is missing in {what}")
    return found


if __name__ == "__main__":
    found = check(sys.argv[1])
    print("\n".join(found))
    sys.exit(1 if found else 0)
