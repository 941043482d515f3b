"""What is run, in the order of its worth: phases of two calls."""
import json
import re
import time
import traceback

from gpu import speeds
from gpu.cases import TIME_UP, Cases, left_out, matches, names_of
from gpu.machine import find_tool, find_torch
from gpu.record import counts_of, result_of, words_of_counts
from gpu.run import end_of, run

REWRITE_SECONDS = 5
# Without the script's folder on Python's path: its other files have names that packages may have too.
RUN_FILE = "import sys; exec(compile(open(sys.argv[1]).read(), sys.argv[1], 'exec'))"
SHARED_GPU_NCCL = 23000  # 2.30
# The phases of the two calls with what they run and the seconds that each may take where all of them are wanted.
CALLS = {
    1: {"probe": ("the GPU, the programs, CUDA's libraries and tools", 20),
        "contract": ("rules of the CUDA runtime, each in a process of its own", 60),
        "kernels": ("kernels against the host's, on one device", 110),
        "memcheck": ("compute-sanitizer on small kernels, with the caching allocator on and off", 110),
        "bench": ("kernels' speed, the same shapes in PyTorch, and ceilings", 110),
        "digits": ("an example that trains a network", 30),
        "tensor": ("tests of the tensor layer on one device", 70),
        "nccl": ("NCCL with one rank", 30),
        "ranks": ("NCCL with two processes on one GPU, from 2.30 on", 30),
        "races": ("racecheck, synccheck and initcheck on kernels with shared memory", 90)},
    2: {"parallel": ("tests of the parallel layer on one device", 60),
        "models": ("tests of models and generation on one device", 30),
        "logical": ("kernels, digits and the layers' tests on 2 and 4 logical devices, the layers' on 8", 390),
        "engine": ("copies between devices and the cost of operations, on 1 and 2 logical devices", 90)},
}
PHASES = {phase: of for call in CALLS.values() for phase, of in call.items()}
NEEDS = {"probe": [], "contract": ["contract"], "kernels": ["kernels"], "memcheck": ["kernels"], "bench": ["bench"],
         "digits": ["digits"], "tensor": ["tensor"], "nccl": ["parallel"], "ranks": ["run", "bench"],
         "races": ["kernels"],
         "parallel": ["parallel"], "models": ["models"],
         "logical": ["kernels", "digits", "tensor", "parallel"], "engine": ["bench"]}


def on(devices):
    return f"{devices} logical device{'s' if devices > 1 else ''}"


class Session:
    """What the phases work with."""

    def __init__(self, root, record, scratch, environment, end, arguments, say):
        self.root, self.record, self.scratch, self.environment = root, record, scratch, environment
        self.wanted_cases, self.small, self.most = arguments.cases, arguments.small, arguments.case_seconds
        self.say = say
        self.programs = {}
        self.began = time.monotonic()
        self.end = end
        self.phase, self.phase_end, self.written = "", self.end, 0

    def left(self):
        return self.end - time.monotonic()

    def begin(self, phase):
        self.phase, self.phase_end = phase, min(self.end, time.monotonic() + PHASES[phase][1])
        self.record.begin(phase)
        self.say(f"== {phase}: {PHASES[phase][0]}")
        self.write()

    def write(self):
        spent = time.monotonic() - self.began
        self.record.data["time"] = f"{spent:.0f} s of {self.end - self.began:.0f} s"
        self.record.drop_long_outputs()
        self.record.write()
        self.written = time.monotonic()

    def row(self, name, result="not run", detail="interrupted", **more):
        row = {"name": name, "result": result, "detail": detail, **more}
        self.record.add(self.phase, row)
        if detail == "interrupted":  # as it stays where nothing of this process is left to say more
            self.write()
        return row

    def finish(self, row, begin=None):
        if begin is not None:
            row["seconds"] = round(time.monotonic() - begin, 1)
        counts = words_of_counts(counts_of([row])) if "cases" in row else row["result"]
        detail = f" ({row['detail']})" if row["detail"] else ""
        self.say(f"{self.phase}: {row['name']}: {counts}{detail}, {row.get('seconds', 0)} s")
        self.write()
        return row

    def missing(self, name, *keys):
        """A row that says so where a program is not there, or no time is left."""
        absent = [key for key in keys if key not in self.programs]
        if not absent and time.monotonic() < self.phase_end - 2:
            return False
        self.finish(self.row(name, detail=f"the program {absent[0]} is not there" if absent else TIME_UP))
        return True

    def command(self, name, key, arguments, variables=None, seconds=60, program=None):
        """Runs one program to its end. Its text, where it passed."""
        if self.missing(name, *([key] if key else [])):
            return None
        row, begin = self.row(name), time.monotonic()
        seconds = min(seconds, self.phase_end - begin)
        command = [program or self.programs[key], *arguments]
        environment = {**self.environment, **(variables or {})}
        outcome = run(command, environment, seconds, self.scratch / "output.txt", self.scratch)
        self.record.log(f"{self.phase}: {name}: {' '.join(map(str, command))}", outcome.text)
        row.update(result="fail" if outcome.why else "pass", detail=outcome.why)
        if outcome.why:
            row["output"] = end_of(outcome.text)
        elif re.search(r"no CUDA device|GPUs expected, 0\s+found", outcome.text):
            row.update(result="not run", detail="the program found no GPU")
        self.finish(row, begin)
        return outcome.text if row["result"] == "pass" else None

    def cases(self, name, key, spec, variables=None, case_seconds=30, seconds=None, alone=False, tool=(), without=(),
              give_up=lambda case: None):
        """Runs the cases of a program, each with its limit, until `give_up` says of one why no more are worth it."""
        if self.missing(name, key):
            return None
        row, begin = self.row(name, cases=[]), time.monotonic()
        environment = {**self.environment, **(variables or {})}
        names = names_of(self.programs[key], spec, environment)
        until = min(self.phase_end, begin + seconds) if seconds else self.phase_end

        def done(case):
            for field in ["detail", "notes"]:
                if not case.get(field):
                    case.pop(field, None)
            row["cases"].append(case)
            if case["result"] == "fail":
                self.say(f"  failed: {case['name']}: {case.get('detail', '')}")
            if time.monotonic() > self.written + REWRITE_SECONDS:
                self.write()
            return give_up(case)

        if not names:
            del row["cases"]
            row.update(result="fail", detail="the program names no cases")
            return self.finish(row, begin)
        names = [case for case in names if not any(matches(pattern, case) for pattern in without)]
        if self.wanted_cases:
            names = [case for case in names if any(matches(pattern, case) for pattern in self.wanted_cases)]
        command = [*tool, self.programs[key]]
        Cases(command, environment, self.scratch, self.most or case_seconds, until, time.monotonic, done,
              lambda what, text: self.record.log(f"{self.phase}: {name}: {what}", text), alone).run(names)
        row.update(result=result_of(row["cases"]), detail="" if row["cases"] else "no case of that name")
        return self.finish(row, begin)


def devices(count):
    return {"LOCKSTEP_CUDA_DEVICES": str(count)}


def probe(session):
    smi = find_tool("nvidia-smi")
    session.command("nvidia-smi", None, [], seconds=20, program=smi)
    for library, entry in session.record.data["libraries"].items():
        found = entry["path"] is not None
        tried = f"; tried {', '.join(entry['tried'])}" if entry["tried"] else ""
        detail = f"{entry['path']} {entry.get('version', '')}".strip() if found else entry["why"] + tried
        session.finish(session.row(library, "pass" if found else "not run", detail))


def contract(session):
    session.cases("contract", "contract", [], case_seconds=20, alone=True)


def kernels(session):
    session.cases("kernels against the host's", "kernels", ["[cuda]"], devices(1), case_seconds=60)


def sanitizer(session, name, tool, arguments, spec, variables, seconds):
    """Cases under one of compute-sanitizer's tools, a process for each: its exit code is the case's."""
    path = find_tool("compute-sanitizer")
    if not path:
        session.finish(session.row(name, detail="compute-sanitizer was not found"))
        return

    def give_up(case):
        if case.get("detail", "").startswith("exit code") and "ERROR SUMMARY" not in case.get("output", ""):
            return "compute-sanitizer does not work here: it came to no summary"
        return None

    command = [path, "--tool", tool, "--error-exitcode", "9", *arguments]
    session.cases(name, "kernels", spec, variables, 40, seconds, alone=True, tool=command, give_up=give_up)


def memcheck(session):
    arguments, half = ["--report-api-errors", "no"], PHASES["memcheck"][1] / 2
    sanitizer(session, "memcheck", "memcheck", arguments, ["[.sanitize]"], devices(1), half)
    sanitizer(session, "memcheck, without the cache", "memcheck", arguments, ["[.sanitize]"],
              {**devices(1), "LOCKSTEP_CACHE": "off"}, None)


def races(session):
    third = PHASES["races"][1] / 3
    for tool in ["racecheck", "synccheck", "initcheck"]:
        sanitizer(session, tool, tool, [], ["[.sanitize][shared]"], devices(1), third)


def bench(session):
    small = ["--elements", "65536", "--size", "64"] if session.small else []
    text = session.command("kernels", "bench", ["kernels", "--device", "cuda:0", "--json", *small], devices(1), 80)
    ours = speeds.rows_of(text) if text else []
    row, begin = session.row("PyTorch and ceilings"), time.monotonic()
    theirs, why = None, "no Python with PyTorch was found"
    for python in find_torch():
        if time.monotonic() > session.phase_end - 2:
            why = TIME_UP
            break
        script = [python, "-B", "-c", RUN_FILE, session.root / "scripts" / "gpu" / "torch_shapes.py"]
        script += ["--small"] if session.small else []
        outcome = run(script, session.environment, session.phase_end - time.monotonic(), session.scratch / "torch.txt",
                      session.scratch)
        session.record.log(f"bench: {python} torch_shapes.py", outcome.text)
        why = outcome.why and f"{python}: {outcome.why}"
        row["output"] = end_of(outcome.text, 5)
        if not why:
            theirs = json.loads(outcome.text.strip().splitlines()[-1])
            row.update(detail=f"PyTorch {theirs['torch']}")
            break
    row["result"] = "pass" if theirs else "not run"
    row["detail"] = row["detail"] if theirs else why
    if theirs:
        row.pop("output", None)
    row["speeds"] = speeds.compare(ours, theirs)
    row["shown"] = speeds.table(row["speeds"], theirs)
    session.finish(row, begin)


def digits(session, counts=(1,)):
    data = session.root / "docs" / "examples" / "data" / "digits"
    for count in counts:
        small = ["--epochs", "2"] if session.small else []
        text = session.command(f"digits on {on(count)}", "digits",
                               ["--devices", "cuda:all", "--no-progress", "--data", data, *small], devices(count), 60)
        if text:
            session.record.data["phases"][session.phase][-1]["shown"] = f"```\n{end_of(text, 12)}\n```"


def layer(session, key, count, seconds=None):
    name = f"{key} on {on(count)}"
    session.cases(name, key, ["~[.]"], devices(count), 30, seconds, without=left_out(session.root, key))


def tensor(session):
    layer(session, "tensor", 1)


def nccl(session):
    session.cases("NCCL, one rank", "parallel", ["NCCL alone: *"], devices(1), 30)


def ranks(session):
    """Two ranks on one GPU, which only a new NCCL takes, and only where it is told so: a launcher as a user has it."""
    name = "all_reduce of two ranks"
    version = session.record.data["libraries"]["nccl"].get("version") or 0
    if int(version) < SHARED_GPU_NCCL:
        session.finish(session.row(name, detail=f"needs NCCL {SHARED_GPU_NCCL} or later, got {version or 'none'}"))
        return
    if session.missing(name, *NEEDS["ranks"]):
        return
    sizes = ["-b", "8", "-e", "4K" if session.small else "64M", "-f", "8", "-T", "20"]
    text = session.command(name, "run", ["-n", "2", session.programs["bench"], "allreduce", *sizes],
                           {**devices(1), "NCCL_MULTI_RANK_GPU_ENABLE": "1"}, 30)
    if text:
        row = session.record.data["phases"][session.phase][-1]
        row["shown"] = f"```\n{text}\n```"
        if "# backend nccl" not in text:
            row.update(result="fail", detail="the ranks did not go over NCCL")


def parallel(session):
    layer(session, "parallel", 1)


def models(session):
    layer(session, "models", 1)


def logical(session):
    share = PHASES["logical"][1] / 7
    for count in [2, 4]:
        layer(session, "parallel", count, share)
        layer(session, "tensor", count, share)
    digits(session, [2, 4])
    session.cases("kernels on 2 logical devices", "kernels", ["[cuda]"], devices(2), 60, share)
    for key in ["parallel", "tensor"]:
        layer(session, key, 8, share)


def engine(session):
    for count in [1, 2]:
        numbered = [f"cuda:{index}" for index in range(1 if session.small else count)]
        for arguments, small in [(["topology", "--devices", ",".join(["cpu", *numbered])], ["--bytes", "4096"]),
                                 (["engine"], ["--calls", "10"])]:
            arguments += small if session.small else []
            text = session.command(f"{arguments[0]}, {on(count)}", "bench", arguments, devices(count), 40)
            if text:
                session.record.data["phases"][session.phase][-1]["shown"] = f"```\n{text}\n```"


def run_phases(session, phases):
    for phase in phases:
        session.begin(phase)
        try:
            globals()[phase](session)
        except Exception:  # pylint: disable=broad-except  # a mistake of this script, which must not cost the rest
            said = traceback.format_exc()
            session.finish(session.row("gpu_check itself", "fail", said.splitlines()[-1], output=end_of(said)))
