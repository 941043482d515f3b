"""Which communicator ranks get, over every launcher and every backend, and whether it computes.

usage: launchers.py --run <lockstep-run> --host <job> [--cuda <job on the fake CUDA> [--nccl]] [--mpirun <mpirun>]

Prints the table of launchers and backends. cells.txt lists what every cell must be. A cell whose tools are absent is
skipped; skipped.txt lists those that may be, and any other skip is a failure, as is a listed one that ran. Where a machine
is known to lack something, LOCKSTEP_TESTS_MAY_SKIP=1 lets cells be skipped.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from support.jobs import MPI_AS_ROOT, clean_environment, free_port, may_skip  # noqa: E402

HERE = pathlib.Path(__file__).parent
SOON = 240  # seconds, for what takes a few
ENVIRONMENT = clean_environment(LOCKSTEP_HOST_DEVICES="8") | MPI_AS_ROOT

parser = argparse.ArgumentParser()
for option in ("--run", "--host", "--cuda", "--mpirun"):
    parser.add_argument(option)
parser.add_argument("--nccl", action="store_true")
ARGUMENTS = parser.parse_args()


def master_port():
    """With a free one behind it, where ranks meet if torchrun's own store has the first."""
    return free_port(2)


def finish(processes):
    """All output, and the exit codes; processes that hang are ended."""
    said, codes = "", []
    try:
        for process in processes:
            out, _ = process.communicate(timeout=SOON)
            said += out
            codes.append(process.returncode)
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
    return said, codes


def faults():
    """A rank that dies, and one that is silent, in each kind of group of processes: what the others say."""
    kinds = [("shared_memory", ARGUMENTS.host, "died", "rank 1")]
    if ARGUMENTS.cuda and ARGUMENTS.nccl:
        # Rank 0 serves the store: the others may hear first that it has given up.
        kinds.append(("nccl", ARGUMENTS.cuda, "remote process exited|the store at .* is gone", "rank 1|the store at .* is gone"))
    for backend, job, dead, silent in kinds:
        for option, text, timeout in (("--killed", dead, 600_000), ("--stopped", silent, 5_000)):
            port = master_port()
            ranks = [start([job, option, "1", "--timeout", str(timeout)],
                           {k: str(v) for k, v in torchrun(r, 3, port).items()}) for r in range(3)]
            try:
                for r in (0, 2):
                    out, _ = ranks[r].communicate(timeout=SOON)
                    if ranks[r].returncode != 4 or not re.search(rf"failed: \[\w+\] rank \d.*({text})", out, re.S):
                        yield f"{backend}, rank 1 {option[2:]}: rank {r} exited with {ranks[r].returncode} and said {out}"
            finally:
                for rank in ranks:
                    os.killpg(rank.pid, signal.SIGKILL) if rank.poll() is None else None
                    rank.communicate()


def start(command, environment):
    return subprocess.Popen(command, env=ENVIRONMENT | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, start_new_session=True, cwd="/")


def one_by_one(variables):
    """A launcher that is no more than what it puts into the environment of rank r of n."""
    def launch(command, ranks, environment, per_rank):
        port = master_port()
        return finish([start(command, environment | variables(r, ranks, port) | per_rank(r)) for r in range(ranks)])
    return launch


def torchrun(r, n, port, agent_store="False"):
    # What torch/distributed/elastic/agent/server/local_elastic_agent.py sets.
    return {"RANK": r, "WORLD_SIZE": n, "LOCAL_RANK": r, "LOCAL_WORLD_SIZE": n, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1,
            "ROLE_RANK": r, "ROLE_WORLD_SIZE": n, "ROLE_NAME": "default", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0, "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_USE_AGENT_STORE": agent_store, "OMP_NUM_THREADS": 1}


def slurm(r, n, port):
    return {"SLURM_JOB_ID": 7, "SLURM_STEP_ID": 0, "SLURM_PROCID": r, "SLURM_LOCALID": r, "SLURM_NODEID": 0,
            "SLURM_NTASKS": n, "SLURM_STEP_NUM_TASKS": n, "SLURM_STEP_TASKS_PER_NODE": n, "SLURM_NNODES": 1,
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def texts(variables):
    return lambda r, n, port: {k: str(v) for k, v in variables(r, n, port).items()}


def in_shell(command, per_rank, variable):
    """A command whose environment depends on its rank, where the launcher starts it."""
    if not per_rank(0):
        return command
    cases = "".join(f"{r}) export {' '.join(f'{k}={v}' for k, v in per_rank(r).items())};; " for r in range(16))
    return ["sh", "-c", f"case ${variable} in {cases}esac; exec \"$@\"", "sh", *command]


def lockstep_run(command, ranks, environment, per_rank):
    command = in_shell(command, per_rank, "LOCKSTEP_RANK")
    return finish([start([ARGUMENTS.run, "-n", str(ranks), "--no-prefix", *command], environment)])


def mpirun(with_store):
    def launch(command, ranks, environment, per_rank):
        if with_store:
            environment = environment | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(master_port())}
        names = [option for name in environment for option in ("-x", name)]
        command = in_shell(command, per_rank, "OMPI_COMM_WORLD_RANK")
        return finish([start([ARGUMENTS.mpirun, "--oversubscribe", "-n", str(ranks), *names, *command], environment)])
    return launch


def mpirun_of_lockstep_run(command, ranks, environment, per_rank):
    names = [option for name in environment for option in ("-x", name)]
    return finish([start([ARGUMENTS.mpirun, "-n", "1", *names, ARGUMENTS.run, "-n", str(ranks), "--no-prefix",
                          *in_shell(command, per_rank, "LOCKSTEP_RANK")], environment)])


def threads(option):
    def launch(command, ranks, environment, per_rank):
        return finish([start([*command, option, str(ranks)], environment)])
    return launch


HOW = {
    "run_ranks": threads("--run-ranks"),
    "threads": threads("--threads"),
    "lockstep-run": lockstep_run,
    "torchrun": one_by_one(texts(torchrun)),
    "torchrun, agent's store": one_by_one(texts(lambda r, n, port: torchrun(r, n, port, "True"))),
    "mpirun": mpirun(False),
    "mpirun, store": mpirun(True),
    "mpirun, lockstep-run": mpirun_of_lockstep_run,
    "Slurm": one_by_one(texts(slurm)),
}


def why_absent(launcher, device):
    """What the machine lacks for the cell, or None."""
    if launcher.startswith("mpirun") and not ARGUMENTS.mpirun:
        return "no MPI"
    if device == "cuda" and not ARGUMENTS.cuda:
        return "no CUDA toolkit"
    if device == "cuda" and not ARGUMENTS.nccl:
        return "no nccl.h"
    return None


# The GPUs that the ranks see: all 8; one that they share; each another one, as its only one.
GPUS = {"": lambda r: {}, "one GPU": lambda r: {}, "own GPU": lambda r: {"LOCKSTEP_FAKE_CUDA": f"devices=1,order={r}"}}


def run_cell(launcher, ranks, device, asked, detail):
    """(what came out, all output): a backend, or the refusal in short."""
    job = ARGUMENTS.cuda if device == "cuda" else ARGUMENTS.host
    command, environment = [job], {}
    if detail == "one GPU":
        environment |= {"LOCKSTEP_FAKE_CUDA": "devices=1"}
        if launcher in ("run_ranks", "threads"):
            environment |= {"LOCKSTEP_CUDA_DEVICES": str(ranks)}
    if detail == "no NCCL":
        environment |= {"LOCKSTEP_NCCL_LIBRARY": "/nowhere/libnccl.so.2"}
    if detail == "no plug-in":
        environment |= {"LOCKSTEP_MPI_LIBRARY": "/nowhere/liblockstep_mpi.so"}
    if asked.startswith("$"):
        environment |= {"LOCKSTEP_COMMUNICATOR": asked[1:]}
    elif asked != "-":
        command += ["--backend", asked]
    said, codes = HOW[launcher](command, ranks, environment, GPUS.get(detail, GPUS[""]))
    right = re.findall(r"rank (\d+) of (\d+): (\w+) on \S+, numbers are right", said)
    if right and set(codes) == {0} and sorted(right) == [(str(r), str(ranks), right[0][2]) for r in range(ranks)]:
        return right[0][2], said
    refusals = set(re.findall(r"refused: \[\w+\] (.*)", said))
    if len(refusals) == 1 and any(codes) and not right:
        return "refused: " + re.sub(r"(/\S+?:).*?;", r"\1 …;", refusals.pop()), said
    return "FAILED", said


def read_cells(path):
    """Rows of a table: fields with bars between them, # begins a comment."""
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            yield [field.strip() for field in line.split("|")]


def main():
    wanted = list(read_cells(HERE / "cells.txt"))
    may_be_skipped = {tuple(cell) for cell in read_cells(HERE / "skipped.txt")}
    failures, table = [], []

    def one(cell):
        launcher, ranks, device, asked, detail, expected = cell
        if expected.startswith("impossible"):
            return expected, ""
        absent = why_absent(launcher, device)
        if absent:
            return f"skipped: {absent}", ""
        return run_cell(launcher, int(ranks), device, asked, detail)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for cell, (got, said) in zip(wanted, pool.map(one, wanted)):
            expected, key = cell[-1], tuple(cell[:-1])
            skipped = got.startswith("skipped")
            if skipped and key not in may_be_skipped and not may_skip():
                failures.append(f"{' | '.join(key)}: {got}, which is not in skipped.txt")
            elif not skipped and key in may_be_skipped:
                failures.append(f"{' | '.join(key)}: is in skipped.txt, and ran")
            elif not skipped and not re.fullmatch(expected, got):
                failures.append(f"{' | '.join(key)}: expected {expected}, got {got}\n{said}")
            table.append((*key, got))
    heads = ("launcher", "ranks", "devices", "asked for", "where", "chosen")
    widths = [max(len(row[i]) for row in [heads, *table]) for i in range(5)]
    for row in [heads, *table]:
        print("  ".join([*(field.ljust(width) for field, width in zip(row, widths)), row[5]]))
    counts = {word: sum(row[5].startswith(word) for row in table) for word in ("skipped", "impossible", "refused")}
    print(f"{len(table)} cells: {counts['refused']} refused, {counts['impossible']} impossible, {counts['skipped']} skipped")
    failures += faults()
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


sys.exit(main())
