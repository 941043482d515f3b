#!/usr/bin/env python3
"""Every kernel, by the name of its arguments, has a test on the host and a comparison of CUDA with the host; and every
kernel of a .cu file is in the list of what is loaded before any collective is in flight.

usage: entries.py <repository root>
"""
import pathlib
import re
import sys


KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\(")
LIST = re.compile(r"^void (list_\w+)\(KernelList& list\) \{(.*?)^\}", re.M | re.S)


def check_lists(root):
    folder, found = root / "kernels" / "cuda", []
    header = folder / "kernels.h"
    every = re.search(r"kAllLists\[\] = \{(.*?)\}", header.read_text() if header.exists() else "", re.S)
    listed = re.findall(r"\w+", every[1]) if every else []
    for file in sorted(folder.glob("*.cu")):
        text = file.read_text()
        lists = dict(LIST.findall(text))
        found += [f"kernels/cuda/{file.name}: {name} is not in kAllLists" for name in lists if name not in listed]
        added = re.findall(r"\badd\((\w+)", "".join(lists.values()))
        found += [f"kernels/cuda/{file.name}: no list_… of the file adds {kernel}"
                  for kernel in KERNEL.findall(text) if kernel not in added]
    return found


def check(root):
    root = pathlib.Path(root)
    header = root / "kernels" / "table.h"
    listed = re.search(r"using AllArgs =\s*ArgsList<(.*?)>;", header.read_text(), re.S)
    kernels = re.findall(r"\w+", listed[1]) if listed else []
    if not kernels:
        return ["kernels/table.h: no kernels found"]
    tests = {path: path.read_text() for path in sorted((root / "tests" / "kernels").rglob("*_test.cpp"))}
    found = check_lists(root)
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
