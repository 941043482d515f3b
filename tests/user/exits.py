"""Ends programs with work in flight, in each way of exits.cpp, each host mode, with and without a trace.

exits.py PROGRAM [--runs N] [--seed S]: N runs of each mode with and without a trace, spread over the ways. A program that
crashes, hangs, or leaves a trace that is empty or torn is an error. Last line: `exits: runs=N crashes=0 torn=0`.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

WAYS = ["products", "training", "abandoned", "abandoned_static", "elsewhere", "replica", "threads", "main_ends", "loader",
        "statics", "pool", "watched", "static_loader", "static_device_loader", "quick", "shutdown", "unused", "forked",
        "fork_first"]
MODES = ["inline", "async", "strict"]
LIMIT_SECONDS = 300


def run(program, way, milliseconds, mode, trace):
    environment = dict(os.environ, LOCKSTEP_HOST_MODE=mode, LOCKSTEP_HOST_DEVICES="2", LOCKSTEP_LOG="off")
    environment.pop("LOCKSTEP_TRACE", None)
    if trace:
        environment["LOCKSTEP_TRACE"] = str(trace)
    try:
        ended = subprocess.run([program, way, str(milliseconds)], env=environment, timeout=LIMIT_SECONDS,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except subprocess.TimeoutExpired:
        return "still running after %d s" % LIMIT_SECONDS, False
    problem = None if ended.returncode == 0 else "exit code %d: %s" % (ended.returncode, ended.stdout.strip())
    torn = False
    if trace and trace.exists():
        try:
            torn = "traceEvents" not in json.loads(trace.read_text())
        except ValueError:
            torn = True
    elif trace and way not in ("quick", "unused"):
        torn = True
    return problem, torn


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("program")
    arguments.add_argument("--runs", type=int, default=len(WAYS))
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--ways", default=",".join(WAYS))
    arguments.add_argument("--modes", default=",".join(MODES))
    options = arguments.parse_args()
    draw = random.Random(options.seed)
    ways = options.ways.split(",")
    runs = crashes = torn_traces = 0
    for mode in options.modes.split(","):
        for traced in (False, True):
            for i in range(options.runs):
                way, milliseconds = ways[i % len(ways)], draw.choice([0, 0, 1, 2, 5, 10, 20, 40, 60])
                with tempfile.TemporaryDirectory() as folder:
                    trace = pathlib.Path(folder, "trace.json") if traced else None
                    problem, torn = run(options.program, way, milliseconds, mode, trace)
                    left = [name for name in os.listdir(folder) if name != "trace.json"]
                runs += 1
                crashes += problem is not None
                torn_traces += torn
                if problem or torn or left:
                    print(f"{mode} {way} {milliseconds} ms, {'with' if traced else 'without'} a trace: "
                          f"{problem or 'ended'}{', its trace is empty or torn' if torn else ''} {left or ''}", flush=True)
                    torn_traces += bool(left) and not torn
    print(f"exits: runs={runs} crashes={crashes} torn={torn_traces}")
    return 0 if crashes == torn_traces == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
