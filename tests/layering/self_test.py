"""Shows that check.py, edges.py, test_names.py, entries.py and operations.py turn red: each case breaks a sound tree in
one way and names the line it expects."""
import pathlib
import sys
import tempfile

import edges
import entries
import operations
import test_names
from check import check

SOUND = {
    "scripts/cmake/public_headers.cmake": "set(headers_for_users\n  tensor/tensor.h\n  runtime/stream/stream.h)\n",
    "runtime/stream/stream.h": '#pragma once\n#include <vector>\n',
    "runtime/log.cpp": '#include <cstdio>\nvoid log() { fputs("x", stderr); }\n',
    "runtime/stream/stream.cpp": '#include "lockstep/runtime/stream/stream.h"\n// std::cout << abort();\n'
                          'const char* text = "std::cout // exit(1)"; int n = 1\'000; char c = \'"\';\n',
    "runtime/cuda/cuda_backend.cpp": '#include <cuda_runtime.h>\n',
    "kernels/view.h": '#pragma once\n#include "lockstep/runtime/stream/stream.h"\n',
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
    ("runtime/stream/stream.h", '#pragma once\n#include "lockstep/tensor/shape.h"\n', "stream.h:2: runtime/ lies below"),
    ("kernels/view.h", '#pragma once\n\n#include "lockstep/parallel/x.h"\n', "view.h:3: kernels/ lies below"),
    ("kernels/view.h", '#pragma once\n#include "lockstep/lockstep.h"\n', "users' header"),
    ("kernels/view.h", '#pragma once\n#include "view_detail.h"\n', 'write "lockstep/..."'),
    ("kernels/view.h", '#pragma once\n#include <lockstep/runtime/stream/stream.h>\n', "in quotes"),
    ("scripts/cmake/public_headers.cmake", "set(headers_for_users\n  tensor/none.h)\n", "there is no tensor/none.h"),
    ("kernels/view.h", "#pragma once\n" + "\n" * 400, "at most 400 lines, this one 401"),
    ("kernels/view.h", '// no pragma\n', "view.h:1: a header starts"),
    ("tests/support/catch.h", '#ifndef X\n', "catch.h:1: a header starts"),
    ("tensor/tensor.h", '#pragma once\n#include <nlohmann/json.hpp>\n', "users would need it"),
    ("runtime/stream/stream.cpp", '#include "lockstep/runtime/stream/stream.h"\n#include <cuda_runtime.h>\n',
     "under a cuda/ folder"),
    ("runtime/stream/stream.cpp", '#include <vector>\n#include "lockstep/runtime/stream/stream.h"\n',
     "its own header first"),
    ("kernels/host/matmul.h", '#pragma once\n#include <cublas_v2.h>\n', "under a cuda/ folder"),
    ("parallel/comm/split.cpp", '#  include <nccl.h>\n', "nccl*"),
    ("runtime/cuda/cuda_backend.cpp", 'void f() { cudaStreamSynchronize(0); }\n', "in one place"),
    ("runtime/cuda/cuda_backend.cpp", 'void f() { cudaMemcpy(a, b, 1, k); }\n', "blocks the host"),
    ("kernels/cuda/relu.cu", 'void f() { cudaFree(p); }\n', "under its lock"),
    ("kernels/cuda/relu.cu", 'void f() { cudaMallocFromPoolAsync(&p, 1, pool, s); }\n', "under its lock"),
    ("kernels/cuda/relu.cu", 'void f() { kernel<<<1, 2>>>(p); }\n', "one checked wrapper"),
    ("runtime/stream/watch.cpp", '/* fine */\nvoid f() { std::cout << 1; }\n', "watch.cpp:2: std::cout"),
    ("runtime/stream/watch.cpp", 'void f() { printf("x"); }\n', "does not print"),
    ("runtime/stream/watch.cpp", 'void f() { fprintf(stderr, "x"); }\n', "does not print"),
    ("runtime/stream/watch.cpp", 'void f() { std::abort(); }\n', "end the process"),
    ("runtime/stream/watch.cpp", 'void f() { exit(1); }\n', "end the process"),
    ("runtime/stream/watch.cpp", 'void f() { std::terminate(); }\n', "end the process"),
    ("runtime/stream/watch.cpp", 'void f() { ::_exit(1); }\n', "end the process"),
    ("runtime/stream/stream.h", '#pragma once\n#include "lockstep/runtime/stream/stream.h"\n', "cycle"),
]


SOUND_EDGES = {
    "runtime/stream/stream.cpp": 'void Stream::wait_for(Stream& other) {\n  LOCKSTEP_EDGE(event.record(other));\n}\n'
                          'EventHandle mark(const StreamState& stream) { return event; }\n'
                          'LOCKSTEP_API void wait(const Event& event);\n// stream.wait(event);\n'
                          'void f() { LOCKSTEP_EDGE_SCOPE(StreamScope, scope, a); flushed_.wait(lock, g); }\n',
    "runtime/host/host_stream.cpp": "void f() { other.wait(event); }\n",
    "tensor/io/dlpack.cpp": "void f() {\n  done.record(stream);  // on CUDA alone\n}\n",
    "docs/edges.md": "| file | edge | goes red | how |\n|---|---|---|---|\n"
                     "| runtime/stream/stream.cpp | `event.record(other)` | runtime: `a stream waits` | crash |\n"
                     "| runtime/stream/stream.cpp | `StreamScope, scope, a` | runtime: `a stream waits` | crash |\n",
}
BROKEN_EDGES = [
    ("runtime/copy/copy.cpp", "void f() {\n  source.wait(done);\n}\n", "copy.cpp:2: .wait(...: this orders"),
    ("runtime/copy/copy.cpp", "void f() {\n  piece->filled.record(out);\n}\n", "copy.cpp:2: .record("),
    ("tensor/storage.cpp", "void f() { if (block) lockstep::record_use(block, stream); }\n", "storage.cpp:1: lockstep::record"),
    ("tensor/storage.cpp", "void f() {\n  synchronize(stream);\n}\n", "storage.cpp:2: synchronize("),
    ("tensor/data/transfer.cpp", "void f() {\n  sent.record(stream_);\n}\n", "transfer.cpp:2: .record("),
    ("tensor/io/dlpack.cpp", "// on CUDA alone\nvoid f() { done.record(stream); }\n", "dlpack.cpp:2: .record("),
    ("parallel/call.h", "bool f() { return wait(event, now()); }\n", "call.h:1: return wait("),
    ("parallel/call.cpp", "void f() { const StreamScope scope(stream); }\n", "call.cpp:1: StreamScope scope("),
    ("tensor/node.cpp", "void f() { node->stream = &current_stream(device); }\n", "node.cpp:1: stream = &current"),
    ("tensor/node.cpp", "void f() {\n  LOCKSTEP_EDGE(a.wait(\n      b));\n}\n", "node.cpp:2: a LOCKSTEP_EDGE has"),
    ("tensor/node.cpp", "void f() { LOCKSTEP_EDGE(a.wait(b)); }\n", "no line for tensor/node.cpp: a.wait(b)"),
    ("runtime/stream/stream.cpp", "void f() { LOCKSTEP_EDGE(event.record(other)); }\n", "has no such edge: StreamScope"),
]

SOUND_NAMES = {
    "tests/runtime/stream/stream_test.cpp": 'TEST_CASE("a stream waits") {}\nTEST_CASE("an event that was "\n  "never \\"made\\"") {}\n',
    "docs/backend-contract.md": "1. Streams `wait`. `a stream\n   waits`\n2. So `a.b(c, d, e)` does.\n"
                                "   `an event that was never \"made\"`\n\n## Else\n\n`cmake --preset a b`\n",
    "docs/edges.md": SOUND_EDGES["docs/edges.md"],
    "docs/fake-cuda.md": "| rule | `a stream waits` |\n",
    "docs/testing.md": "Rules are `elsewhere`.\n",
}
BROKEN_NAMES = [
    ("docs/backend-contract.md", "1. Streams. `a stream does wait`\n", "no test is called `a stream does wait`"),
    ("docs/backend-contract.md", "1. A. `a stream waits`\n2. B `c`.\n3. C. `a stream waits`\n", "rule 2 names no test"),
    ("docs/backend-contract.md", "Nothing.\n", "no rules"),
    ("docs/fake-cuda.md", "| rule | `a stream does wait` |\n", "no test is called `a stream does wait`"),
    ("docs/edges.md", "| a.cpp | `b(c)` | runtime: `an event waits` | crash |\n", "no test is called `an event waits`"),
]

SOUND_ENTRIES = {
    "kernels/table.h": "using AllArgs =\n    ArgsList<FillArgs>;\n",
    "tests/kernels/host/copy_test.cpp": "run(FillArgs{});\n",
    "tests/kernels/cuda/parity_test.cpp": "compare_with_host(FillArgs{});\n",
    "kernels/cuda/kernels.h": "inline constexpr ListKernels* kAllLists[] = {list_fill};\n",
    "kernels/cuda/fill.cu": "template <class T>\n__global__ void __launch_bounds__(kThreads)\n    fill(T* y) {\n}\n"
                            "void list_fill(KernelList& list) {\n  list.add(fill<float>);\n}\n",
}
BROKEN_ENTRIES = [
    ("tests/kernels/host/copy_test.cpp", "// fill\n", "FillArgs has no test"),
    ("tests/kernels/cuda/parity_test.cpp", "compare_with_host(Fill2Args{});\n", "FillArgs is not compared"),
    ("kernels/table.h", "struct KernelTable {};\n", "no kernels found"),
    ("kernels/cuda/kernels.h", "inline constexpr ListKernels* kAllLists[] = {list_copy};\n", "list_fill is not in kAllLists"),
    ("kernels/cuda/fill.cu", "__global__ void fill(float* y) {\n}\n", "no list_… of the file adds fill"),
]

SOUND_OPERATIONS = {
    "tensor/ops/math_ops.h": "LOCKSTEP_API Tensor exp(const Tensor& x);\nLOCKSTEP_API bool equal(int a);\n",
    "tensor/ops/shape_ops.h": "inline Tensor reshape(const Tensor& x);\nLOCKSTEP_API Tensor join(int tensors);\n",
    "tests/tensor/ops/table/rows.cpp": '      unary(\n          "exp", "", exp),\n      of_one("reshape", "", f),\n',
}
BROKEN_OPERATIONS = [
    ("tests/tensor/ops/table/rows.cpp", 'unary("exp", "", exp)', "shape_ops.h: 'reshape' has no row"),
    ("tests/tensor/ops/table/rows.cpp", 'of_one("reshape", "exp", f)', "math_ops.h: 'exp' has no row"),
    ("tensor/ops/nn_ops.h", "LOCKSTEP_API LstmState cell(Tensor x);\n", "nn_ops.h: 'cell' has no row"),
    ("tensor/ops/nn_ops.h", "LOCKSTEP_API std::vector<Tensor> cut(Tensor x);\n", "nn_ops.h: 'cut' has no row"),
]


def breaches_of(tree, check=check):
    with tempfile.TemporaryDirectory() as folder:
        for path, text in tree.items():
            file = pathlib.Path(folder, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return check(folder)


failures = []
if not breaches_of({}):
    failures.append("an empty tree passed")
longer_cycle = {"runtime/a.h": '#pragma once\n#include "lockstep/runtime/b.h"\n',
                "runtime/b.h": '#pragma once\n#include "lockstep/runtime/a.h"\n'}
if not any("cycle" in breach for breach in breaches_of(SOUND | longer_cycle)):
    failures.append("a cycle of two files was not found")
circle_of_folders = {"tensor/nn/module.h": '#pragma once\n#include "lockstep/tensor/ops/view.h"\n',
                     "tensor/ops/view.h": '#pragma once\n#include "lockstep/tensor/tensor.h"\n',
                     "tensor/ops/view.cpp": '#include "lockstep/tensor/nn/linear.h"\n',
                     "tensor/nn/linear.h": '#pragma once\n'}
if not any("tensor/nn -> tensor/ops -> tensor/nn" in breach for breach in breaches_of(SOUND | circle_of_folders)):
    failures.append("a circle of two folders was not found")
tests = [(SOUND, BROKEN, check), (SOUND_EDGES, BROKEN_EDGES, edges.check), (SOUND_NAMES, BROKEN_NAMES, test_names.check),
         (SOUND_ENTRIES, BROKEN_ENTRIES, entries.check), (SOUND_OPERATIONS, BROKEN_OPERATIONS, operations.check)]
for sound, broken, checks in tests:
    failures += [f"a sound tree: {breach}" for breach in breaches_of(sound, checks)]
    for path, text, expected in broken:
        found = breaches_of(sound | {path: text}, checks)
        if len(found) != 1 or expected not in found[0]:
            failures.append(f"{path} = {text!r}: expected one breach with {expected!r}, got {found}")
print("\n".join(failures) or f"{sum(len(broken) for _, broken, _ in tests) + 7} trees judged rightly")
sys.exit(1 if failures else 0)
