#!/usr/bin/env python3
"""Every kernel, by the name of its arguments, has a test on the host and a comparison of CUDA with the host.

usage: entries.py <repository root>
"""
import pathlib
import re
import sys


def check(root):
    root = pathlib.Path(root)
    header = root / "kernels" / "table.h"
    listed = re.search(r"using AllArgs =\s*ArgsList<(.*?)>;", header.read_text(), re.S)
    kernels = re.findall(r"\w+", listed[1]) if listed else []
    if not kernels:
        return ["kernels/table.h: no kernels found"]
    tests = {path: path.read_text() for path in sorted((root / "tests" / "kernels").rglob("*_test.cpp"))}
    found = []
    for kernel in kernels:
        naming = [text for text in tests.values() if re.search(rf"\b{kernel}\b", text)]
        if not any(re.search(rf"\brun\({kernel}\b|{kernel} \w+[{{(]|\bcheck\w*\(.*{kernel}\b", text) for text in naming):
            found.append(f"kernels/table.h: {kernel} has no test in tests/kernels")
        if not any("compare_with_host" in text for text in naming):
            found.append(f"kernels/table.h: {kernel} is not compared with the host in tests/kernels")
    return found


if __name__ == "__main__":
    found = check(sys.argv[1])
    print("\n".join(found))
    sys.exit(1 if found else 0)
