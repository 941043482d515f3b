"""lockstep-run as its tests start it; each of them is a program with these arguments.

usage: <test>.py <lockstep-run> <lockstep-launch-rank> <lockstep-launch-drill> [<test>...]
"""
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from support.jobs import clean_environment, processes_with  # noqa: E402

RUN, RANK, DRILL = sys.argv[1:4]
SOON = 120  # seconds, for what comes at once when it works

# The start of a rank's program, which reports failures to the launcher by hand.
SAY = ("import os, socket, sys, time\n"
       "rank = int(os.environ['LOCKSTEP_RANK'])\n"
       "def say(text):\n"
       "    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
       "    s.sendto(f'{rank} {text}'.encode(), '\\0' + os.environ['LOCKSTEP_REPORTS'])\n"
       "def wait(*others):\n"
       "    while not all(os.path.exists(f'{os.environ[\"F\"]}/{o}') for o in others): time.sleep(0.005)\n"
       "def leave(code):\n"
       "    open(f'{os.environ[\"F\"]}/{rank}', 'w').close()\n"
       "    os._exit(code)\n")


def environment(**variables):
    clean = clean_environment(OMP_NUM_THREADS="1")  # else lockstep-run says that it sets it
    clean.pop("PYTHONUNBUFFERED", None)
    return clean | variables


def run(*arguments, **variables):
    return subprocess.run([RUN, *arguments], capture_output=True, text=True, timeout=SOON, stdin=subprocess.DEVNULL,
                          env=environment(**variables))


def lines(text):
    return sorted(text.splitlines())


def wait_until(condition, what):
    end = time.monotonic() + SOON
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"never: {what}")
        time.sleep(0.005)


class Started:
    """A lockstep-run in the background, whose processes carry a marker."""

    def __init__(self, *arguments, **variables):
        self.folder = tempfile.TemporaryDirectory()
        self.marker = f"LAUNCH_TEST={uuid.uuid4()}"
        name, value = self.marker.split("=")
        self.process = subprocess.Popen([RUN, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env=environment(F=self.folder.name, **{name: value}, **variables))

    def wait_for_files(self, *names):
        wait_until(lambda: all((pathlib.Path(self.folder.name) / n).exists() for n in names), f"files {names}")

    def finish(self):
        """The exit code and what is left of output and errors. Not communicate(), which passes over what readline() has
        read ahead."""
        left = {}
        pipes = [pipe for pipe in (self.process.stdout, self.process.stderr) if pipe and not pipe.closed]
        readers = [threading.Thread(target=lambda of=pipe: left.update({of: of.read()}), daemon=True) for pipe in pipes]
        end = time.monotonic() + SOON
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(max(0, end - time.monotonic()))
        self.process.wait(max(0, end - time.monotonic()))
        if len(left) < len(pipes):
            raise subprocess.TimeoutExpired(self.process.args, SOON)
        for pipe in pipes:
            pipe.close()
        self.folder.cleanup()
        return self.process.returncode, left.get(self.process.stdout, ""), left.get(self.process.stderr, "")

    def wait_until_gone(self):
        wait_until(lambda: not processes_with(self.marker), "no process is left")


def wait_until_gone(process):
    wait_until(lambda: not pathlib.Path(f"/proc/{process}").exists(), f"process {process} is gone")


def main():
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
