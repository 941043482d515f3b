"""lockstep-bench of collectives: what it computes is right, and what is wrong is noticed; threads and processes.

usage: collectives.py <lockstep-bench> <lockstep-run> [<mpirun>]
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from support.jobs import MPI_AS_ROOT, clean_environment  # noqa: E402

BENCH, RUN = sys.argv[1:3]
MPIRUN = sys.argv[3] if len(sys.argv) > 3 else None
SOON = 120  # seconds, for what comes at once when it works
COLLECTIVES = ["allreduce", "all_gather", "broadcast", "reduce", "reduce_scatter", "all_to_all", "gather", "scatter",
               "sendrecv"]
WITH_ROOT = {"broadcast", "reduce", "gather", "scatter"}
REDUCING = {"allreduce", "reduce", "reduce_scatter"}
SMALL = "-b 24 -e 2400 -f 100 -n 2".split()  # 24 bytes: less than an element for each of four doubles


def run(*command, **variables):
    environment = clean_environment(LOCKSTEP_HOST_DEVICES="2") | MPI_AS_ROOT
    return subprocess.run(command, capture_output=True, text=True, timeout=SOON, stdin=subprocess.DEVNULL,
                          env=environment | variables)


class Case(unittest.TestCase):
    def report(self, *command, code=0, **variables):
        """What the program has printed, which is one JSON report."""
        done = run(*command, "--json", **variables)
        self.assertEqual(done.returncode, code, f"{command}\n{done.stdout}\n{done.stderr}")
        report = json.loads(done.stdout)
        self.assertEqual(len(report["summary"]), 1)
        return report

    def check_right(self, report, name, ranks, rows):
        self.assertEqual(len(report[name]), rows)
        for row in report[name]:
            self.assertEqual((row["#wrong"], row["in-place #wrong"]), (0, 0), row)
            self.assertGreater(row["time(us)"], 0)
        self.assertEqual(report["summary"][0]["out of bounds values"], 0)
        self.assertEqual(report["summary"][0]["ranks"], ranks)

    def check_wrong(self, report, name):
        for row in report[name]:
            if row["count"]:
                self.assertGreater(row["#wrong"], 0, row)
                self.assertGreater(row["in-place #wrong"], 0, row)
        self.assertGreater(report["summary"][0]["out of bounds values"], 0)


class Threads(Case):
    def test_every_collective_is_right(self):
        for name in COLLECTIVES:
            with self.subTest(name):
                report = self.report(BENCH, name, *SMALL, *"-t 3 -o all -d all -r all -c 2".split())
                # 2 sizes of 9 dtypes; 5 reductions, of which 1 is for the 4 floating ones.
                rows = 2 * ((4 * 9 + 4) if name in REDUCING else 9) * (3 if name in WITH_ROOT else 1)
                self.check_right(report, name, 3, rows)
            with self.subTest(name, mode="async"):
                self.check_right(self.report(BENCH, name, *SMALL, "-t", "3", LOCKSTEP_HOST_MODE="async"), name, 3, 2)

    def test_wrong_values_are_noticed(self):
        for name in COLLECTIVES:
            with self.subTest(name):
                report = self.report(BENCH, name, *SMALL, *"-t 3 -d all -r 1 --spoil".split(), code=1)
                self.assertEqual(len(report[name]), 18)
                self.check_wrong(report, name)
        done = run(BENCH, "allreduce", *SMALL, "--spoil")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"# Out of bounds values : [1-9]\d* FAILED")

    def test_nothing_is_compared_when_not_asked_for(self):
        report = self.report(BENCH, "allreduce", *SMALL, "-c", "0", "--spoil")
        self.assertEqual({row["#wrong"] for row in report["allreduce"]}, {"N/A"})

    def test_ranks_and_flags(self):
        self.check_right(self.report(BENCH, "alltoall", *SMALL, *"-t 2 -g 2".split()), "all_to_all", 4, 2)
        for flags in ["-a 0", "-a 2", "-a 3", "-z 1", "-C 1", "-m 3", "-w 0", "-p 1", "-T 60", "-G 0",
                      "-i 8 -e 40 -f 0"]:
            with self.subTest(flags):
                rows = 3 if "-i" in flags else 2
                self.check_right(self.report(BENCH, "all_reduce", *SMALL, *flags.split()), "allreduce", 2, rows)
        with tempfile.TemporaryDirectory() as folder:
            printed = self.report(BENCH, "reduce", *SMALL, "-J", f"{folder}/report.json")
            with open(f"{folder}/report.json") as file:
                self.assertEqual(json.load(file), printed)

    def test_what_does_not_exist_is_an_error_of_the_command_line(self):
        for flags, part in {"-o median": "'median'", "-d int7": "'int7'", "-n 0": "0", "-n x": "x", "-m 0": "0",
                            "-c -1": "-1", "-w -1": "-1", "-a 4": "4", "-z 2": "2", "-C 2": "2", "-p 2": "2",
                            "-t 0": "0", "-g 0": "0", "-b 1Q": "1Q", "-b nan": "nan", "-b 8 -e 4": "at most",
                            "-f 0.5": "0.5", "-b 0 -e 1G -i 1": "sizes", "-r 2": "below 2", "-r x": "'x'",
                            "-G 1": "CUDA graphs", "-y 1": "null stream", "-R 1": "registered",
                            "-o avg -d int": "floating", "--devices none": "none", "--bogus": "--bogus"}.items():
            with self.subTest(flags):
                done = run(BENCH, "reduce", "-b", "8", "-e", "8", *flags.split())
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual(done.stdout, "")
                self.assertIn(part, done.stderr)
        self.assertEqual(run(BENCH, "reduce", "--help").returncode, 0)


class Processes(Case):
    def test_every_collective_is_right_among_processes_with_threads(self):
        for name in COLLECTIVES:
            with self.subTest(name):
                report = self.report(RUN, "-n", "2", "--no-prefix", BENCH, name, *SMALL, *"-t 2 -d all -r all".split())
                self.check_right(report, name, 4, 2 * 9 * (4 if name in WITH_ROOT else 1))

    def test_threads_of_processes_may_share_devices(self):
        report = self.report(RUN, "-n", "2", "--no-prefix", BENCH, "allreduce", *SMALL, "-t", "3",
                             LOCKSTEP_HOST_MODE="async")
        self.check_right(report, "allreduce", 6, 2)

    def test_rank_0_alone_prints(self):
        done = run(RUN, "-n", "2", BENCH, "sendrecv", *SMALL)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual({line[:3] for line in done.stdout.splitlines()}, {"[0]"})
        self.assertIn("# nRanks 2 nProcesses 2 nThread 1", done.stdout)
        report = self.report(RUN, "-n", "2", "--no-prefix", BENCH, "gather", *SMALL, "--spoil", code=1)
        self.check_wrong(report, "gather")

    @unittest.skipUnless(MPIRUN, "there is no mpirun, or no MPI in this build")
    def test_mpirun(self):
        mpirun = [MPIRUN, "--oversubscribe", "-n", "2"]
        report = self.report(*mpirun, BENCH, "allreduce", *SMALL)
        self.check_right(report, "allreduce", 2, 2)
        self.assertEqual(report["summary"][0]["backend"], "mpi")
        self.check_wrong(self.report(*mpirun, BENCH, "allreduce", *SMALL, "--spoil", code=1), "allreduce")
        done = run(*mpirun, BENCH, "allreduce", *SMALL, "-t", "2")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("one rank for each process", done.stderr)


unittest.main(argv=sys.argv[:1], verbosity=2)
