"""A pretended machine with a GPU: stub tools on PATH, a toolkit, Python packages, and a folder of prepared programs."""
import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "scripts" / "gpu_check"
sys.path.insert(0, str(ROOT / "scripts"))
from gpu import programs  # noqa: E402
from gpu.machine import find_tool  # noqa: E402,F401

SOON = 300  # seconds, for what takes a few when it works
STUBS = {
    "nvidia-smi": """case "$*" in
  *--query-gpu*) echo "NVIDIA Pretended, 580.1, 9.0" ;;
  *) echo "the table of nvidia-smi" ;;
esac""",
    "compute-sanitizer": """if [ "$STUB_SANITIZER" = refuses ]; then echo "Error: Device not supported"; exit 1; fi
while :; do case $1 in --tool | --error-exitcode | --report-api-errors) shift 2 ;; *) break ;; esac; done
"$@"; code=$?
if [ "$STUB_SANITIZER" = finds ]; then echo "========= Invalid __global__ write of size 4 bytes"; code=9; fi
echo "========= ERROR SUMMARY: 0 errors"; exit $code""",
    "ldconfig": "exit 0",
    # Leaves in the build folder what STUB_BUILT holds, as far as it is asked for.
    "cmake": """echo "cmake $*" >>"$STUB_LOG"
case $1 in
  -S) mkdir -p "$4/bin"; echo "NLOHMANN_JSON_INCLUDE_DIR:PATH=$STUB_HEADERS" >"$4/CMakeCache.txt" ;;
  --build) build=$2; shift 2
    while [ $# -gt 0 ]; do
      if [ -e "$STUB_BUILT/$1" ]; then cp "$STUB_BUILT/$1" "$build/bin/$1"; fi
      shift
    done ;;
esac""",
    "nvcc": 'echo "Cuda compilation tools, release 13.0, V13.0.88"',
}
# A PyTorch whose GPU takes a millisecond for everything.
TORCH = """
from unittest.mock import MagicMock
import sys
module = MagicMock(name="torch")
module.__version__ = "0.0+pretended"
module.cuda.Event.return_value.elapsed_time.return_value = 1.0
sys.modules["torch"] = module
"""


class Machine:
    """A folder that has all of it. `environment` is what a program there finds: nothing of this machine's."""

    def __init__(self, stand_in):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pretended."))
        self.tools, self.toolkit, self.packages = (self.folder / name for name in ("tools", "toolkit", "packages"))
        self.out, self.prebuilt, self.built = (self.folder / name for name in ("out", "prebuilt", "built"))
        for path in [self.tools, self.toolkit / "bin", self.toolkit / "lib64", self.built, self.packages / "torch",
                     self.packages / "nvidia" / "nccl" / "lib", self.folder / "headers" / "nlohmann"]:
            path.mkdir(parents=True)
        for name, text in STUBS.items():
            self.stub(self.toolkit / "bin" if name == "nvcc" else self.tools, name, text)
        shutil.copy(stand_in, self.toolkit / "lib64" / "libcublasLt.so.13")
        self.nccl = self.packages / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
        shutil.copy(stand_in, self.nccl)
        (self.packages / "torch" / "__init__.py").write_text(TORCH)
        (self.folder / "headers" / "nlohmann" / "json.hpp").write_text("")
        self.environment = {"PATH": f"{self.tools}:/usr/bin:/bin", "CUDA_HOME": str(self.toolkit),
                            "PYTHONPATH": str(self.packages), "STUB_BUILT": str(self.built),
                            "STUB_LOG": str(self.folder / "stub.log"), "STUB_HEADERS": str(self.folder / "headers")}

    @staticmethod
    def stub(folder, name, text):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)

    def pack(self, paths):
        """As --prepare packs what it has built."""
        return programs.pack(self.prebuilt, paths, {"commit": "abc123", "architectures": "90"}, preset=0)

    def command(self, *arguments):
        return [sys.executable, "-B", str(SCRIPT), "--out", str(self.out), "--commit", "abc123",
                "--build", str(self.folder / "build"), *map(str, arguments)]

    def start(self, *arguments, before=(), **variables):
        return subprocess.Popen([*before, *self.command(*arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, cwd=self.folder,
                                env={**self.environment, **variables})

    def run(self, *arguments, before=(), **variables):
        """(exit code, what was printed, seconds)."""
        began = time.monotonic()
        process = self.start(*arguments, before=before, **variables)
        text, _ = process.communicate(timeout=SOON)
        return process.returncode, text, time.monotonic() - began

    def record(self):
        """The JSON of the only record there is."""
        found = sorted(self.out.glob("*.json"))
        assert len(found) == 1, found
        return json.loads(found[0].read_text())

    def page(self):
        return next(self.out.glob("*.md")).read_text()

    def log(self):
        with gzip.open(next(self.out.glob("*.log.gz")), "rt") as file:
            return file.read()

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)


def cases_of(record, phase):
    """Result by name, over the rows of a phase; a row without cases stands for itself."""
    return {case["name"]: case for row in record["phases"].get(phase, []) for case in row.get("cases") or [row]}


def left_running(folder):
    """Programs that still run from below a folder."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "exe").startswith(str(folder)) or str(folder) in os.readlink(process / "cwd"):
                found.append(process.name)
        except OSError:
            pass
    return found
