"""The programs that compare_peers drives by turns, and which of them this machine has."""
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SLOW = 900  # seconds for one answer: compiling a network takes minutes on a busy machine

# What each peer is for: the groups of works.py.
GROUPS = {"pytorch": {"tiny", "product", "op", "conv", "big", "network"}, "libtorch": {"tiny", "product"},
          "onednn": {"product", "conv"}, "onnxruntime": {"network"}, "openvino": {"network"},
          "openmpi": {"collective"}, "gloo": {"collective"}}


class Lost(Exception):
    """The program has ended or does not answer."""


def environment(threads, **more):
    """Allocators keep what is freed, and all sides have as many threads. Lockstep divides the cores that it may use among
    its devices by itself: a number of threads would be each device's."""
    count = str(threads)
    kept = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "OMP_NUM_THREADS": count,
            "MKL_NUM_THREADS": count, "LOCKSTEP_HOST_DEVICES": count}
    base = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
    return base | kept | more


class Program:
    """A program that answers lines of JSON. It starts at its first work, and again when it was lost."""

    def __init__(self, name, command, cores, **variables):
        self.name, self.command, self.cores, self.variables = name, command, cores, variables
        self.process, self.version = None, None
        self.errors = None

    def start(self):
        pin = lambda: os.sched_setaffinity(0, self.cores)
        self.errors = tempfile.TemporaryFile("w+")  # a pipe that nobody reads would block the program
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, text=True, preexec_fn=pin,
                                        env=environment(len(self.cores), **self.variables))
        self.version = self.answer()["version"]

    def answer(self):
        if not select.select([self.process.stdout], [], [], SLOW)[0]:
            self.stop()
            raise Lost(f"did not answer within {SLOW} seconds")
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.errors.seek(0)
            said = self.errors.read().strip().splitlines()
            self.stop()
            raise Lost("ended: " + (said[-1][:300] if said else "it said nothing"))
        return json.loads(line)

    def ask(self, **request):
        if self.process is None:
            self.start()
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer says why
        return self.answer()

    def prepare(self, work, folder):
        return self.ask(do="prepare", work=work, folder=folder)

    def measure(self, way, least):
        answer = self.ask(do="measure", way=way, least=least)
        if "seconds" not in answer:
            raise Lost(answer.get("error", "no answer"))
        return answer["seconds"]

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.communicate()
            self.errors.close()
            self.process = None


def version_of(python, module):
    """The version of a Python package in the peers' environment; None where it is not."""
    done = subprocess.run([python, "-c", f"import {module}; print({module}.__version__)"], capture_output=True, text=True,
                          check=False)
    return done.stdout.strip().splitlines()[-1] if done.returncode == 0 and done.stdout.strip() else None


def compiled_libtorch(python, folder):
    """(the program, None), or (None, why not). A minute's work, done again for another PyTorch or source."""
    where = subprocess.run([python, "-c", "import os, torch; print(os.path.dirname(torch.__file__)); "
                            "print(int(torch.compiled_with_cxx11_abi()))"], capture_output=True, text=True, check=False)
    if where.returncode:
        return None, "there is no torch in the peers' environment"
    torch, abi = where.stdout.split()
    program, source = folder / "libtorch", HERE / "libtorch.cpp"
    newest = max(path.stat().st_mtime for path in (source, *HERE.glob("*.h"), pathlib.Path(torch)))
    if program.exists() and program.stat().st_mtime > newest:
        return program, None
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [os.environ.get("CXX", "g++"), "-std=c++20", "-O2", "-w", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", "-isystem",
         f"{torch}/include", "-isystem", f"{torch}/include/torch/csrc/api/include", str(source), f"-L{torch}/lib",
         f"-Wl,-rpath,{torch}/lib", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-Wl,--allow-shlib-undefined",
         "-o", str(program)], capture_output=True, text=True, check=False)
    errors = [text for text in done.stderr.splitlines() if "error" in text] or done.stderr.splitlines()
    return (None, "does not compile: " + errors[0][:300]) if done.returncode else (program, None)


def find(works, folder, cores, wanted=GROUPS):
    """(the program of Lockstep, {peer: its program}, {peer: why it is not compared}), of the peers that are wanted."""
    threads, cache = str(len(cores)), {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    works = pathlib.Path(works).resolve()
    found, missing, python = {}, {}, folder / "bin" / "python"

    def add(name, needs, *command):
        absent = [package for package in needs if not python.exists() or not version_of(python, package)]
        if absent:
            missing[name] = f"{' and '.join(absent)} not in {folder} (scripts/compare_peers --install)"
        else:
            found[name] = Program(name, [str(python), "-B", *command, threads], cores, **cache)

    if "pytorch" in wanted:
        add("pytorch", ["torch"], str(HERE / "run_torch.py"))
    for name in ("onnxruntime", "openvino"):
        if name in wanted:
            add(name, ["torch", "onnxscript", name], str(HERE / "run_onnx.py"), name)
    if "libtorch" in wanted:
        add("libtorch", ["torch"])
        if "libtorch" in found:
            program, reason = compiled_libtorch(python, works.parent.parent / "peers")
            if program:
                found["libtorch"] = Program("libtorch", [str(program), threads], cores)
            else:
                missing["libtorch"] = reason
                del found["libtorch"]
    if "onednn" in wanted:
        alone = works.with_name("lockstep-works-onednn")
        if alone.exists():
            found["onednn"] = Program("onednn", [str(alone), threads], cores)
        else:
            missing["onednn"] = "the build is without oneDNN (Debian: libdnnl-dev)"
    return Program("lockstep", [str(works)], cores), found, missing
