"""What runs of programs write: nothing that nobody asked for. And programs started where they can write nothing.

usage: writes.py --run <lockstep-run> --rank <lockstep-launch-rank> --train <ddp_ranks> [--mpirun <mpirun>]
                 [--bench <lockstep-bench>] [--text <train_text>] [--help-of <program>]...

Runs in a namespace of mounts of its own, where /tmp, /var/tmp and /dev/shm are empty at first; every run has a working
directory, a HOME and a TMPDIR of its own. They are watched (inotify) while it runs, so that files which are gone at its end
count too; where strace works, it says what was opened for writing anywhere else. Where there are no namespaces, only the
folders of the run are watched. The first line says which. What needs namespaces is a failure there, unless
LOCKSTEP_TESTS_MAY_SKIP=1 says that this is known.
"""
import argparse
import ctypes
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from support.jobs import MPI_AS_ROOT, clean_environment, free_port, skip  # noqa: E402

SOON = 240  # seconds, for what ends at once when it works
ENVIRONMENT = clean_environment()
SHARED = ("/tmp", "/var/tmp", "/dev/shm")
# What MPI writes for itself: its session's folder, and memory that its processes share.
OF_MPI = re.compile(r"/(ompi\.|open_mpi\.|openmpi-sessions|pmix|prte|vader_segment|sm_segment|shmem|osc-|dstore|hwloc)")
# No files: devices, and what the system says of a process.
NO_FILES = re.compile(r"/dev/(null|zero|tty|ptmx|pts/\d+|full|nvidia.*)$|/proc/|/sys/|anon_inode:")

parser = argparse.ArgumentParser()
for name in ("run", "rank", "train", "mpirun", "bench", "text"):
    parser.add_argument("--" + name)
parser.add_argument("--help-of", action="append", default=[])
parser.add_argument("--inside", action="store_true")
OPTIONS, REST = parser.parse_known_args()
PROGRAMS = [getattr(OPTIONS, name) for name in ("run", "rank", "train", "bench", "text") if getattr(OPTIONS, name)]


def mount(*arguments):
    return subprocess.run(["mount", *arguments], capture_output=True).returncode == 0


def enter_namespace():
    """Becomes this script in a namespace of mounts, if there can be one."""
    for how in (["--mount"], ["--mount", "--user", "--map-root-user"]):
        if shutil.which("unshare") and subprocess.run(
                ["unshare", *how, "mount", "-t", "tmpfs", "none", "/var/tmp"], capture_output=True).returncode == 0:
            os.execvp("unshare", ["unshare", *how, sys.executable, "-B", *sys.argv, "--inside"])


if not OPTIONS.inside:
    enter_namespace()
WATCHED = []
for folder in SHARED if OPTIONS.inside else ():
    if not any(os.path.realpath(program).startswith(folder + "/") for program in [*PROGRAMS, sys.argv[0]]):
        if mount("-t", "tmpfs", "none", folder):
            WATCHED.append(folder)
BASE = tempfile.mkdtemp(prefix="lockstep-user-", dir="/dev/shm" if "/dev/shm" in WATCHED else None)
STRACE = shutil.which("strace")
if STRACE and subprocess.run([STRACE, "-f", "-z", "-o", "/dev/null", "true"], capture_output=True).returncode != 0:
    STRACE = None
print(f"watched: the folders of every run{''.join(', ' + folder for folder in WATCHED)}"
      f"{', and by strace what is opened elsewhere' if STRACE else ''}", flush=True)


class Watch:
    """What is made, or written, in folders that are empty at first."""

    def __init__(self, *folders):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self.libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        create_moved_modified_written = 0x100 | 0x80 | 0x2 | 0x8
        self.folders = {self.libc.inotify_add_watch(self.fd, folder.encode(), create_moved_modified_written): folder
                        for folder in folders}
        assert -1 not in self.folders, "no inotify"

    def paths(self):
        """Each once. Closes the watch."""
        found = set()
        while True:
            try:
                events = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                break
            at = 0
            while at < len(events):
                watch, _, _, length = struct.unpack_from("iIII", events, at)
                name = events[at + 16:at + 16 + length].rstrip(b"\0").decode()
                found.add(os.path.join(self.folders.get(watch, "?"), name))
                at += 16 + length
        os.close(self.fd)
        return sorted(found)


def opened_for_writing(log):
    """What a log of strace says was made or opened for writing."""
    found = set()
    with open(log, errors="replace") as file:
        lines = file.readlines()
    for line in lines:
        call = re.match(r"(?:\d+ +)?(\w+)\((.*)\) += ", line)
        if not call:
            continue
        name, arguments = call.groups()
        paths = re.findall(r'"((?:[^"\\]|\\.)*)"', arguments)
        if name.startswith("open") and not re.search(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC", arguments):
            continue
        if name == "bind" and not re.search(r'sun_path="', arguments):
            continue
        found.update(path for path in paths if not NO_FILES.match(path))
    return sorted(found)


class Run:
    """One run, with folders of its own."""

    def __init__(self, *command, variables=None, cwd=None, traced=True, shell_before=None):
        self.folder = tempfile.mkdtemp(dir=BASE)
        names = [os.path.join(self.folder, name) for name in ("cwd", "home", "tmp")]
        for name in names:
            os.mkdir(name)
        environment = ENVIRONMENT | {"HOME": names[1], "TMPDIR": names[2]} if variables is None else dict(variables)
        self.log = os.path.join(self.folder, "strace")
        if STRACE and traced:
            calls = "open,openat,openat2,creat,mkdir,mkdirat,mknod,mknodat,rename,renameat,renameat2,link,linkat,symlink," \
                    "symlinkat,truncate,bind"
            command = [STRACE, "-f", "-z", "-qq", "-s", "500", "-e", f"trace={calls}", "-o", self.log, *command]
        if shell_before:
            command = ["sh", "-c", shell_before + ' && exec "$@"', "sh", *command]
        watch = Watch(*names, *WATCHED)
        self.result = subprocess.run(command, cwd=cwd or names[0], env=environment, capture_output=True, text=True,
                                     stdin=subprocess.DEVNULL, timeout=SOON, errors="replace")
        self.written = watch.paths()
        if STRACE and traced:
            self.written += opened_for_writing(self.log)
        shutil.rmtree(self.folder)
        self.code, self.out, self.err = self.result.returncode, self.result.stdout, self.result.stderr


def torchrun_variables(rank, port):
    return {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


class NothingIsWritten(unittest.TestCase):
    def check(self, *command, code=0, allowed=None, **options):
        run = Run(*command, **options)
        self.assertEqual(run.code, code, run.out + run.err)
        self.assertEqual([path for path in run.written if not (allowed and allowed.search(path))], [])
        return run

    def test_that_it_would_be_seen(self):
        for program in ("echo x > file", "echo x > $HOME/file", "echo x > $TMPDIR/file && rm $TMPDIR/file",
                        *(f"echo x > {folder}/file; rm {folder}/file" for folder in WATCHED),
                        *([f"echo x > {BASE}/elsewhere; rm {BASE}/elsewhere"] if STRACE else [])):
            self.assertNotEqual(Run("sh", "-c", program).written, [], program)

    def test_a_program_alone(self):
        self.check(OPTIONS.train)

    def test_threads_as_ranks(self):
        self.check(OPTIONS.train, "--threads", "2")

    def test_lockstep_run(self):
        run = self.check(OPTIONS.run, "-n", "2", OPTIONS.train)
        self.assertGreater(run.out.count("good"), 10)
        self.check(OPTIONS.run, "-n", "2", "--no-prefix", OPTIONS.train)

    def test_lockstep_run_whose_rank_fails(self):
        self.check(OPTIONS.run, "-n", "2", "--patience", "0.1", "sh", "-c", "exit 3", code=3)

    def test_variables_of_torchrun(self):
        port = free_port()
        inner, outer = (" ".join(f"{k}={v}" for k, v in torchrun_variables(rank, port).items()) for rank in (1, 0))
        run = self.check("sh", "-c", f'env {inner} "$0" & other=$!; env {outer} "$0" && wait $other', OPTIONS.train)
        self.assertEqual(run.err.count("without a token: every user of this machine can take part"), 1, run.err)

    def test_mpirun(self):
        if not OPTIONS.mpirun:
            skip("there is no mpirun, or no MPI in this build")
        folder = tempfile.mkdtemp(dir=BASE)  # MPI's session goes there
        self.check(OPTIONS.mpirun, "--oversubscribe", "-n", "2", OPTIONS.train, allowed=OF_MPI, traced=False,
                   variables=ENVIRONMENT | MPI_AS_ROOT | {"HOME": folder})

    def test_examples_and_help(self):
        for program in OPTIONS.help_of:
            self.check(program, "--help")
        if OPTIONS.bench:
            self.check(OPTIONS.bench, "--help")
        self.check(OPTIONS.run, "--help")
        if OPTIONS.text:
            small = ["--data", os.path.abspath(sys.argv[0]), "--batch-size", "4", "--context", "16", "--layers", "1",
                     "--heads", "2", "--width", "16", "--sample", "5", "--steps", "2"]
            self.check(OPTIONS.text, *small, "--threads", "2")
            self.check(OPTIONS.run, "-n", "2", OPTIONS.text, *small)


class WhereNothingCanBeWritten(unittest.TestCase):
    """Programs work, and say which path and why when they are asked for what cannot be."""

    def works(self, **options):
        for command in ([OPTIONS.train, "--threads", "2"], [OPTIONS.run, "-n", "2", OPTIONS.train]):
            run = Run(*command, traced=False, **options)
            self.assertEqual(run.code, 0, run.err)
            self.assertGreater(run.out.count("good"), 10)

    def says(self, command, code, *parts, **options):
        run = Run(*command, traced=False, **options)
        self.assertEqual(run.code, code, run.err)
        for part in parts:
            self.assertIn(part, run.err)

    def trace(self, path):
        return {"variables": ENVIRONMENT | {"LOCKSTEP_TRACE": path}}

    def tmpfs(self, *options):
        if not OPTIONS.inside:
            skip("namespaces of mounts are not permitted")
        folder = tempfile.mkdtemp(dir=BASE)
        self.assertTrue(mount("-t", "tmpfs", *options, "none", folder))
        self.addCleanup(subprocess.run, ["umount", folder])
        return folder

    def test_a_folder_that_cannot_be_written(self):
        folder = self.tmpfs("-o", "ro")
        own = {"variables": ENVIRONMENT | {"HOME": folder, "TMPDIR": folder}, "cwd": folder}
        self.works(**own)
        self.says([OPTIONS.train, "--threads", "2"], 1, '"step.json"', "Read-only file system", cwd=folder,
                  **self.trace("step.json"))
        self.says([OPTIONS.run, "-n", "2", "--log-dir", "logs", OPTIONS.train], 1,
                  "cannot make the folder 'logs': Read-only file system", **own)
        self.says([OPTIONS.run, "-n", "2", "--log-dir", ".", OPTIONS.train], 1,
                  "cannot write './rank0.log': Read-only file system", **own)

    def test_a_folder_of_another_user(self):
        drop, folder, run, train = [], "/", OPTIONS.run, OPTIONS.train
        if os.access(folder, os.W_OK):  # as root, who becomes somebody else; for all others it is root's
            drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
            if not OPTIONS.inside or not shutil.which("setpriv") or subprocess.run([*drop, "true"]).returncode != 0:
                skip("root needs setpriv, and namespaces of mounts, to become another user")
            folder = tempfile.mkdtemp(dir=BASE)
            run, train = (shutil.copy(program, folder) for program in (run, train))
            os.chmod(folder, 0o755)
            os.chmod(BASE, 0o755)
        self.assertEqual(Run(*drop, run, "-n", "2", train, traced=False, cwd=folder).code, 0)
        self.says([*drop, run, "-n", "2", "--log-dir", "logs", train], 1,
                  "cannot make the folder 'logs': Permission denied", cwd=folder)
        self.says([*drop, train], 1, '"step.json"', "Permission denied", cwd=folder, **self.trace("step.json"))

    def test_a_full_disk(self):
        folder = self.tmpfs("-o", "size=64k")
        with self.assertRaises(OSError), open(os.path.join(folder, "full"), "wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        own = {"variables": ENVIRONMENT | {"HOME": folder, "TMPDIR": folder}, "cwd": folder}
        self.works(**own)
        before = sorted(os.listdir(folder))
        self.says([OPTIONS.train], 0, '[trace] expected to write "step.json", got: No space left on device', cwd=folder,
                  **self.trace("step.json"))
        self.assertEqual(sorted(os.listdir(folder)), before)
        self.says([OPTIONS.run, "-n", "2", "--log-dir", ".", OPTIONS.train], 1,
                  "cannot write './rank0.log': No space left on device", **own)

    def test_without_home_or_anything(self):
        self.works(variables={})

    def test_a_path_with_spaces(self):
        folder = os.path.join(tempfile.mkdtemp(dir=BASE), "a path", "with spaces")
        os.makedirs(folder)
        run, train = (shutil.copy(p, folder) for p in (OPTIONS.run, OPTIONS.train))
        result = Run(run, "-n", "2", "--log-dir", os.path.join(folder, "its logs"), train, traced=False, cwd=folder)
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(sorted(os.listdir(os.path.join(folder, "its logs"))), ["rank0.log", "rank1.log"])
        trace = os.path.join(folder, "a trace.json")
        self.assertEqual(Run(train, traced=False, cwd=folder, **self.trace(trace)).code, 0)
        self.assertGreater(os.path.getsize(trace), 0)

    def test_a_trace_into_standard_output(self):
        run = Run(OPTIONS.train, traced=False, **self.trace("/dev/stdout"))  # a pipe
        self.assertEqual(run.code, 0, run.err)
        self.assertIn('"traceEvents"', run.out)

    def test_a_folder_that_is_gone(self):
        gone = "mkdir gone && cd gone && rmdir ../gone"
        self.works(shell_before=gone)
        self.says([OPTIONS.run, "-n", "2", "--log-dir", "logs", OPTIONS.train], 1,
                  "cannot make the folder 'logs': No such file or directory", shell_before=gone)
        self.says([OPTIONS.train], 1, '"step.json"', "No such file or directory", shell_before=gone,
                  **self.trace("step.json"))


if __name__ == "__main__":
    try:
        unittest.main(argv=[sys.argv[0], *REST])
    finally:
        shutil.rmtree(BASE, ignore_errors=True)
