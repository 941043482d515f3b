"""What becomes of an MPI job when one of its ranks is killed, or stopped, while the others wait for it.

usage: faults.py <lockstep-tests-mpi> [<mpirun>]
"""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from support.jobs import MPI_AS_ROOT, clean_environment, processes_with  # noqa: E402

PROGRAM = sys.argv[1]
MPIRUN = sys.argv[2] if len(sys.argv) > 2 else None
SOON = 120  # seconds, for what comes at once, or at the deadline, when it works
RANKS = 3


class Faults(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.go = pathlib.Path(self.folder.name, "go")
        self.output = pathlib.Path(self.folder.name, "output")
        self.marker = f"faults-{uuid.uuid4()}"
        self.job = None
        self.addCleanup(self.clean_up)

    def clean_up(self):
        if self.job and self.job.poll() is None:  # mpirun ends its ranks
            self.job.terminate()
            self.job.wait()

    def start(self, timeout, mode="inline", case="[.fault]", **variables):
        """Returns the ranks' processes, when they are about to call the collective."""
        environment = clean_environment(MARKER=self.marker, LOCKSTEP_HOST_MODE=mode, LOCKSTEP_TEST_GO=str(self.go),
                                        LOCKSTEP_TEST_TIMEOUT=str(int(timeout * 1000))) | MPI_AS_ROOT | variables
        with open(self.output, "w") as file:
            self.job = subprocess.Popen([MPIRUN, "--oversubscribe", "-n", str(RANKS), PROGRAM, case], stdout=file,
                                        stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment)
        if case != "[.fault]":
            return None
        processes = self.read(r"rank (\d) is process (\d+)", RANKS)
        return {int(rank): int(process) for rank, process in processes}

    def read(self, pattern, count):
        """The groups of the matches in the job's output, once there are `count` of them."""
        end = time.monotonic() + SOON
        while True:
            found = re.findall(pattern, self.output.read_text())
            if len(found) == count:
                return found
            self.assertLess(time.monotonic(), end, f"{pattern!r} in: {self.output.read_text()}")
            time.sleep(0.01)

    def end(self):
        """The exit code of the job, of which nothing is left behind."""
        code = self.job.wait(timeout=SOON)
        end = time.monotonic() + SOON
        while left := processes_with(self.marker):
            self.assertLess(time.monotonic(), end, f"left behind: {left}")
            time.sleep(0.01)
        return code

    def test_a_rank_that_is_killed_ends_the_job(self):
        # One that others wait for in a collective, and one that waits in it itself; far from the deadline.
        for victim in [RANKS - 1, 1]:
            with self.subTest(victim=victim):
                processes = self.start(timeout=600)
                os.kill(processes[victim], signal.SIGKILL)
                self.assertNotEqual(self.end(), 0)
                self.assertNotIn("is done", self.output.read_text())

    def test_a_rank_that_is_stopped_is_named_at_the_deadline(self):
        timeout = 5
        stay = pathlib.Path(self.folder.name, "stay")
        processes = self.start(timeout, "async", LOCKSTEP_TEST_STAY=str(stay))
        os.kill(processes[RANKS - 1], signal.SIGSTOP)
        self.go.touch()
        for rank, named, text in self.read(r"rank (\d) got rank (\d): (.*)", RANKS - 1):
            self.assertIn(int(rank), range(RANKS - 1))
            self.assertEqual(int(named), RANKS - 1)
            self.assertIn("[all_reduce]", text)
            self.assertTrue(text.endswith(f"within {timeout * 1000} ms, got nothing from rank {RANKS - 1}"), text)
        # When it goes on it is told, and the job ends in an orderly way.
        os.kill(processes[RANKS - 1], signal.SIGCONT)
        (text,) = self.read(rf"rank {RANKS - 1} got rank {RANKS - 1}: (.*)", 1)
        self.assertIn("[all_reduce]", text)
        stay.touch()
        self.assertEqual(self.end(), 0)

    def test_a_rank_that_stays_stopped_does_not_keep_the_job(self):
        processes = self.start(2, "async")
        os.kill(processes[RANKS - 1], signal.SIGSTOP)
        self.go.touch()
        self.read(r"rank (\d) got rank (\d): (.*)", RANKS - 1)
        before = time.monotonic()
        self.assertNotEqual(self.end(), 0)
        self.assertLess(time.monotonic() - before, 20)  # two seconds; for ranks that speak it would be two minutes

    def test_a_rank_that_exits_is_named_at_once(self):
        for mode in ("inline", "async"):
            with self.subTest(mode=mode):
                self.start(600, mode, case="[.exit]")
                for rank, named, text in self.read(r"rank (\d) got rank (\d): (.*)", RANKS - 1):
                    self.assertEqual(int(named), RANKS - 1)
                    self.assertIn(f"rank {RANKS - 1} left before it came to all_reduce", text)
                self.end()

    def test_without_a_fault_it_is_done(self):
        self.go.touch()
        self.start(timeout=600)
        self.read(r"rank \d is done", RANKS)
        self.assertEqual(self.end(), 0)


if not MPIRUN:
    print("skipped: there is no mpirun")
    sys.exit()
unittest.main(argv=sys.argv[:1], verbosity=2)
