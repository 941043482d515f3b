"""all_reduce among ranks in compare_peers: Lockstep's threads over shared memory, OpenMPI's processes, Gloo's threads.
Each measurement is a program of its own, which prints the time of a call."""
import json
import os
import pathlib
import shutil
import subprocess

from programs import HERE, Lost, environment

ROOT_USER = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
SIZES = (8, 1024, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)


def works():
    name = lambda size: f"{size >> 20} MiB" if size >> 20 else f"{size >> 10} KiB" if size >> 10 else f"{size} bytes"
    return [{"name": f"all_reduce {name(size)}", "op": "all_reduce", "kind": "call", "group": "collective", "inputs": [],
             "args": {"bytes": size}, "tolerance": 0, "seed": 0} for size in SIZES]


class Ranks:
    """Has what programs.Program has. `command(bytes, check)` is the command line, `read(text)` finds microseconds."""

    def __init__(self, name, version, cores, command, read):
        self.name, self.version, self.cores, self.command, self.read = name, version, cores, command, read
        self.bytes = 0

    def run(self, check):
        done = subprocess.run(self.command(self.bytes, check), capture_output=True, text=True, check=False, timeout=300,
                              env=environment(len(self.cores), **ROOT_USER),
                              preexec_fn=lambda: os.sched_setaffinity(0, self.cores))
        if done.returncode:
            raise Lost(f"ended with {done.returncode}: " + ((done.stderr or done.stdout).strip().splitlines() or [""])[-1])
        return self.read(done.stdout) * 1e-6

    def prepare(self, work, _):
        self.bytes = work["args"]["bytes"]
        self.run(check=True)
        return {"ways": {f"{len(self.cores)} ranks": {}}}

    def measure(self, _way, _least):
        return self.run(check=False)

    def stop(self):
        pass


def last_figure(text):
    return float(text.split()[-1])


def calls(count):
    return 100_000 if count <= 1024 else 3000 if count <= 64 << 10 else 200 if count <= 4 << 20 else 20


def compiled(compiler, source, program, *libraries):
    """None, or why not."""
    program.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([compiler, "-O2", "-w", str(HERE / source), "-o", str(program), *libraries],
                          capture_output=True, text=True, check=False)
    return done.stderr.strip().splitlines()[-1] if done.returncode else None


def find(bench, folder, cores):
    """(Lockstep's ranks, {peer: its ranks}, {peer: why it is not compared}). `bench` is lockstep-bench."""
    count = str(len(cores))
    ours = Ranks("lockstep", None, cores,
                 lambda size, check: [str(bench), "allreduce", "--json", "-t", count, "-b", str(size), "-e", str(size), "-f",
                                      "2", "-n", str(calls(size)), "-w", "5", "-c", str(int(check))],
                 lambda text: json.loads(text)["allreduce"][0]["time(us)"])
    found, missing = {}, {}
    version = lambda *command: subprocess.run(command, capture_output=True, text=True, check=False).stdout
    if not shutil.which("mpicxx") or not shutil.which("mpirun"):
        missing["openmpi"] = "mpicxx or mpirun is not installed (Debian: libopenmpi-dev openmpi-bin)"
    elif reason := compiled("mpicxx", "mpi_allreduce.cpp", folder / "mpi_allreduce"):
        missing["openmpi"] = reason
    else:
        found["openmpi"] = Ranks("openmpi", version("mpirun", "--version").splitlines()[0].split()[-1], cores,
                                 lambda size, _: ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", count,
                                                  str(folder / "mpi_allreduce"), "1", str(size)], last_figure)
    if not any(pathlib.Path(where, "gloo", "allreduce.h").exists() for where in ("/usr/include", "/usr/local/include")):
        missing["gloo"] = "gloo/allreduce.h is not installed (Debian: libgloo-dev)"
    elif len(cores) != 2:
        missing["gloo"] = f"its program has 2 ranks, {count} are asked for"
    elif reason := compiled(os.environ.get("CXX", "g++"), "gloo_allreduce.cpp", folder / "gloo_allreduce", "-lgloo",
                            "-lpthread"):
        missing["gloo"] = reason
    else:
        found["gloo"] = Ranks("gloo", version("dpkg-query", "-W", "-f", "${Version}", "libgloo-dev") or "unknown", cores,
                              lambda size, _: [str(folder / "gloo_allreduce"), "1", str(size)], last_figure)
    return ours, found, missing
