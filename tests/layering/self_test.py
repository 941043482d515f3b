"""Shows that check.py turns red: each case breaks a sound tree in one way and names the line it expects."""
import pathlib
import sys
import tempfile

from check import check

SOUND = {
    "runtime/stream.h": '#pragma once\n#include <vector>\n',
    "runtime/log.cpp": '#include <cstdio>\nvoid log() { fputs("x", stderr); }\n',
    "runtime/stream.cpp": '#include "lockstep/runtime/stream.h"\n// std::cout << abort();\n'
                          'const char* text = "std::cout // exit(1)"; int n = 1\'000; char c = \'"\';\n',
    "runtime/cuda/cuda_backend.cpp": '#include <cuda_runtime.h>\n',
    "kernels/view.h": '#pragma once\n#include "lockstep/runtime/stream.h"\n',
    "kernels/host/matmul.h": '#pragma once\n#include <oneapi/dnnl/dnnl.hpp>\n',
    "tensor/tensor.h": '#pragma once\n#include "lockstep/kernels/view.h"\n',
    "parallel/comm/communicator.h": '#pragma once\nstruct Communicator { virtual void abort(); void exit(); };\n',
    "parallel/comm/communicator.cpp": '#include "lockstep/parallel/comm/communicator.h"\n'
                                      'void Communicator::abort() { this->exit(); }\n',
    "parallel/comm/nccl_communicator.cpp": '#include <nccl.h>\n',
    "parallel/launch/main.cpp": '#include <iostream>\nint main() { std::cout << 1; exit(0); }\n',
    "tests/support/catch.h": '#pragma once\n#include <catch2/catch.hpp>\n',
}

# (file, what it holds instead, a part of the one breach this must give)
BROKEN = [
    ("runtime/stream.h", '#pragma once\n#include "lockstep/tensor/shape.h"\n', "stream.h:2: runtime/ lies below"),
    ("kernels/view.h", '#pragma once\n\n#include "lockstep/parallel/x.h"\n', "view.h:3: kernels/ lies below"),
    ("kernels/view.h", '#pragma once\n#include "lockstep/lockstep.h"\n', "users' header"),
    ("kernels/view.h", '#pragma once\n#include "view_detail.h"\n', 'write "lockstep/..."'),
    ("kernels/view.h", '#pragma once\n#include <lockstep/runtime/stream.h>\n', "in quotes"),
    ("kernels/view.h", '#pragma once\n#include "lockstep/kernels/host/matmul.h"\n', "private"),
    ("kernels/view.h", '// no pragma\n', "view.h:1: a header starts"),
    ("tests/support/catch.h", '#ifndef X\n', "catch.h:1: a header starts"),
    ("tensor/tensor.h", '#pragma once\n#include <nlohmann/json.hpp>\n', "users would need it"),
    ("runtime/stream.cpp", '#include <cuda_runtime.h>\n', "under a cuda/ folder"),
    ("kernels/host/matmul.h", '#pragma once\n#include <cublas_v2.h>\n', "under a cuda/ folder"),
    ("parallel/comm/communicator.cpp", '#  include <nccl.h>\n', "nccl*"),
    ("runtime/cuda/cuda_backend.cpp", 'void f() { cudaStreamSynchronize(0); }\n', "in one place"),
    ("runtime/cuda/cuda_backend.cpp", 'void f() { cudaMemcpy(a, b, 1, k); }\n', "blocks the host"),
    ("kernels/cuda/relu.cu", 'void f() { cudaFree(p); }\n', "under its lock"),
    ("kernels/cuda/relu.cu", 'void f() { kernel<<<1, 2>>>(p); }\n', "one checked wrapper"),
    ("runtime/stream.cpp", '/* fine */\nvoid f() { std::cout << 1; }\n', "stream.cpp:2: std::cout"),
    ("runtime/stream.cpp", 'void f() { printf("x"); }\n', "does not print"),
    ("runtime/stream.cpp", 'void f() { fprintf(stderr, "x"); }\n', "does not print"),
    ("runtime/stream.cpp", 'void f() { std::abort(); }\n', "end the process"),
    ("runtime/stream.cpp", 'void f() { exit(1); }\n', "end the process"),
    ("runtime/stream.cpp", 'void f() { std::terminate(); }\n', "end the process"),
    ("runtime/stream.cpp", 'void f() { ::_exit(1); }\n', "end the process"),
    ("runtime/stream.h", '#pragma once\n#include "lockstep/runtime/stream.h"\n', "cycle"),
]


def breaches_of(tree):
    with tempfile.TemporaryDirectory() as folder:
        for path, text in tree.items():
            file = pathlib.Path(folder, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return check(folder)


failures = [f"the sound tree: {breach}" for breach in breaches_of(SOUND)]
if not breaches_of({}):
    failures.append("an empty tree passed")
longer_cycle = {"runtime/a.h": '#pragma once\n#include "lockstep/runtime/b.h"\n',
                "runtime/b.h": '#pragma once\n#include "lockstep/runtime/a.h"\n'}
if not any("cycle" in breach for breach in breaches_of(SOUND | longer_cycle)):
    failures.append("a cycle of two files was not found")
for path, text, expected in BROKEN:
    found = breaches_of(SOUND | {path: text})
    if len(found) != 1 or expected not in found[0]:
        failures.append(f"{path} = {text!r}: expected one breach with {expected!r}, got {found}")
print("\n".join(failures) or f"{len(BROKEN) + 3} trees judged rightly")
sys.exit(1 if failures else 0)
