"""Ranks that fail under lockstep-run, by seed: is the code right, and the name of the rank that failed first?

usage: drill.py <lockstep-run> <lockstep-launch-drill> [--count N] [--seed S] [--jobs N] [--only SEED]

Runs N jobs (default 12) on one node, and N on two: two lockstep-run on this machine. A seed says how many ranks there
are, what they do together, which one fails when, and how: it throws, terminates, exits, is killed by a signal, or is
stopped. lockstep-run must exit, on every node, with the code of that rank and name it as the first, and every other rank's
own error must be in the log, as must be what it had written without an end of the line. The last line sums up. Exits with
0 when all were right.
"""
import argparse
import concurrent.futures
import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from support.jobs import clean_environment, free_port  # noqa: E402

SOON = 300  # seconds, for what comes at once when it works
DEADLINE = 5000  # milliseconds, after which a rank that is stopped is missed
ENVIRONMENT = clean_environment(OMP_NUM_THREADS="1")
PROGRAMS = ("reduce", "train", "hosts", "ring", "chain", "joining")
SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM, signal.SIGBUS, signal.SIGFPE)


class Failure:
    def __init__(self, seed, nodes):
        draw = random.Random(f"{seed} {nodes}")
        self.seed, self.nodes = seed, nodes
        self.how = ("throw", "exit", "signal", "stop")[seed % 4]
        if self.how == "throw" and draw.random() < 0.3:
            self.how = "terminate"
        self.ranks = draw.choice((2, 4)) if nodes == 2 else draw.randint(2, 5)
        self.victim = draw.randrange(self.ranks)
        self.program = draw.choice(PROGRAMS)
        if self.how == "stop" and self.program == "joining":  # which is noticed after minutes only
            self.program = "reduce"
        self.step = draw.choice((0, 1, draw.randrange(60)))
        self.late = draw.choice((0, 0, draw.randrange(600)))
        self.mode = draw.choice(("inline", "async"))
        self.number, self.code, way = 0, 0, self.how
        if self.how in ("throw", "exit"):
            self.number = self.code = draw.choice((0, 1, 3, 77, 255)) if self.how == "exit" else draw.choice((1, 3, 77))
            if self.how == "exit":
                way = draw.choice(("exit", "quick"))
            self.said = f"exited with code {self.code}"
        else:
            self.number = {"terminate": signal.SIGABRT, "stop": signal.SIGSTOP}.get(self.how) or draw.choice(SIGNALS)
            self.code = 128 + self.number
            verb = "stopped" if self.how == "stop" else "killed"
            self.said = f"was {verb} by signal {int(self.number)} ("
        timeout = DEADLINE if self.how == "stop" else 1000 * SOON
        self.arguments = [self.program, way, self.victim, self.step, int(self.number), timeout, self.late]

    def __str__(self):
        return (f"seed {self.seed} on {self.nodes} node{'s' * (self.nodes > 1)}: of {self.ranks} ranks ({self.program}, "
                f"{self.mode}) rank {self.victim} {self.said.rstrip(' (')} ({self.how}) at step {self.step}")


def run(failure, launcher, rank):
    """What was wrong."""
    options = ["-n", str(failure.ranks // failure.nodes), "--patience", str(SOON)]
    master = f"127.0.0.1:{free_port()}"
    jobs = []
    for node in range(failure.nodes):
        own = ["--nnodes", "2", "--node-rank", str(node), "--master", master] if failure.nodes == 2 else []
        jobs.append(subprocess.Popen([launcher, *options, *own, rank, *map(str, failure.arguments)], text=True,
                                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                     env=ENVIRONMENT | {"LOCKSTEP_HOST_MODE": failure.mode}))
    wrong = []
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        try:
            results = list(pool.map(lambda job: job.communicate(timeout=SOON), jobs))
        except subprocess.TimeoutExpired:
            for job in jobs:
                job.kill()
            return ["it hangs"]
    codes = {failure.code} if failure.code else {40 + r for r in range(failure.ranks) if r != failure.victim}
    for node, (job, (out, err)) in enumerate(zip(jobs, results)):
        name = f"node {node}: "
        if job.returncode not in codes:
            wrong.append(f"{name}code {job.returncode}, not {sorted(codes)}")
        if f"first failure: rank {failure.victim} {failure.said}" not in err:
            wrong.append(f"{name}it does not name rank {failure.victim}")
    all_out, all_err = ("".join(result[i] for result in results) for i in (0, 1))
    for r in range(failure.ranks):
        if failure.program != "joining" and f"[{r}] rank {r} has no end of its line" not in all_out:
            # What a program that is killed, or leaves without a word, has not handed over yet is nobody's.
            if r != failure.victim or failure.how in ("throw",):
                wrong.append(f"what rank {r} wrote is missing")
        if r == failure.victim:
            continue
        said = re.search(rf"^\[{r}\] rank {r} noticed: (.*)$", all_err, re.MULTILINE)
        if not said:
            wrong.append(f"the error of rank {r} is missing")
        elif failure.program != "chain" and not re.search(rf"\brank {failure.victim}\b", said.group(1)):
            wrong.append(f"rank {r} names another: {said.group(1)}")
    return wrong and wrong + [all_err]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("launcher")
    parser.add_argument("rank")
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seeds = [options.only] if options.only is not None else range(options.seed, options.seed + options.count)
    begin = time.monotonic()
    failures = [Failure(seed, nodes) for nodes in (1, 2) for seed in seeds]
    right = {1: 0, 2: 0}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for failure, wrong in zip(failures, pool.map(lambda each: run(each, options.launcher, options.rank), failures)):
            if options.only is not None:
                print(failure)
            if not wrong:
                right[failure.nodes] += 1
                continue
            print(f"WRONG {failure}\n  " + "\n  ".join(wrong), flush=True)
    print(f"launch drill: one_node={len(seeds)} right={right[1]} two_nodes={len(seeds)} right={right[2]} "
          f"seconds={time.monotonic() - begin:.0f}")
    return 0 if right[1] == right[2] == len(seeds) else 1


if __name__ == "__main__":
    sys.exit(main())
