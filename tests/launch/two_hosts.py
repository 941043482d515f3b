"""A job on two hosts, and a token.

usage: two_hosts.py <lockstep-run> <lockstep-launch-rank> [<mpirun> <lockstep-tests-mpi> <ddp_ranks>]
"""
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from support import hosts  # noqa: E402
from support.jobs import MPI_AS_ROOT, clean_environment  # noqa: E402

RUN, RANK = sys.argv[1:3]
MPI = sys.argv[3:6]
SOON = 120  # seconds, for what comes at once when it works
ENVIRONMENT = clean_environment(OMP_NUM_THREADS="1") | MPI_AS_ROOT  # else lockstep-run says that it sets the threads
MASTER = ":".join(hosts.MASTER)


class TwoHosts(hosts.TwoHosts):
    def start(self, node, *program, token, options=()):
        token_options = ["--token-file", self.token_file(f"token{node}", token)] if token else []
        job = subprocess.Popen(
            self.hosts[node].inside(RUN, "-n", "2", "--nnodes", "2", "--node-rank", str(node), "--master", MASTER,
                                    *token_options, *options, *program),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        self.addCleanup(job.communicate)
        self.addCleanup(job.terminate)
        return job

    def test_ranks_meet(self):
        jobs = [self.start(node, RANK, token="a token for tests, 0123456789") for node in (0, 1)]
        everybody = "".join(f" {r}/4:{r % 2}/2" for r in range(4))
        for node, job in enumerate(jobs):
            out, err = job.communicate(timeout=SOON)
            self.assertEqual((job.returncode, err), (0, ""))
            self.assertEqual(sorted(out.splitlines()),
                             [f"[{r}] lockstep-run{everybody}" for r in (2 * node, 2 * node + 1)])

    def test_a_failure_reaches_the_other_host(self):
        jobs = [self.start(node, "sh", "-c", "[ $LOCKSTEP_RANK = 3 ] && exit 9; exec sleep 1000",
                           token="a token for tests, 0123456789") for node in (0, 1)]
        for job in jobs:
            _, err = job.communicate(timeout=SOON)
            self.assertEqual(job.returncode, 9)
            self.assertIn("rank 3 exited with code 9", err)

    def test_a_wrong_token(self):
        first = self.start(0, "sleep", "1000", token="a token for tests, 0123456789")
        second = self.start(1, "sleep", "1000", token="another token, 0123456789")
        _, err = second.communicate(timeout=SOON)
        self.assertEqual(second.returncode, 1)
        self.assertIn("another token than this", err)
        self.assertIsNone(first.poll())

    def test_no_token(self):
        for node in (0, 1):
            job = self.start(node, "sleep", "1000", token=None)
            _, err = job.communicate(timeout=SOON)
            self.assertEqual(job.returncode, 2)
            self.assertIn("expected a token", err)

    def test_a_cable_that_is_pulled(self):
        options = ("--timeout", "2", "--grace", "1")
        jobs = [self.start(node, "sh", "-c", "echo started; exec sleep 1000", token="a token for tests, 0123456789",
                           options=options) for node in (0, 1)]
        for job in jobs:
            for _ in range(2):
                self.assertIn("started", job.stdout.readline())
        self.hosts[0].do("ip", "link", "set", "cable", "down")
        _, err = jobs[0].communicate(timeout=SOON)
        self.assertEqual(jobs[0].returncode, 1)
        self.assertIn("node 1 was silent for 2 s", err)
        _, err = jobs[1].communicate(timeout=SOON)
        self.assertEqual(jobs[1].returncode, 1)
        self.assertIn("lost the other nodes", err)

    def test_a_cable_that_is_pulled_while_ranks_keep_going(self):
        options = ("--timeout", "2", "--grace", "1", "--keep-going", "--min-ranks", "2")
        jobs = [self.start(node, "sh", "-c", "echo started; while [ ! -e $0 ]; do sleep 0.01; done; echo went on",
                           self.folder / "end", token="a token for tests, 0123456789", options=options)
                for node in (0, 1)]
        for job in jobs:
            for _ in range(2):
                self.assertIn("started", job.stdout.readline())
        self.hosts[0].do("ip", "link", "set", "cable", "down")
        out, err = jobs[1].communicate(timeout=SOON)
        self.assertEqual((jobs[1].returncode, out), (1, ""))
        self.assertIn("node 0 has the job's store: nobody goes on without it", err)
        (self.folder / "end").touch()
        out, err = jobs[0].communicate(timeout=SOON)
        self.assertEqual((jobs[0].returncode, out.count("went on")), (0, 2), err)
        self.assertIn("was lost with its node: node 1 was silent for 2 s (host2)", err)

    def test_a_cable_that_is_pulled_and_put_back_where_there_are_restarts(self):
        program = ("echo $LOCKSTEP_ROUND: $LOCKSTEP_RANK of $LOCKSTEP_WORLD_SIZE; until [ -e $0 ]; do sleep 0.01; done")
        jobs = [self.start(node, "sh", "-c", program, self.folder / "end", token="a token for tests, 0123456789",
                           options=("--no-prefix", "--restarts", "2", "--min-ranks", "2", "--grace", "1", "--timeout", silent))
                for node, silent in ((0, "2"), (1, str(SOON)))]

        def begins(round, size, node, job):
            self.assertEqual({job.stdout.readline() for _ in range(2)},
                             {f"{round}: {rank} of {size}\n" for rank in (2 * node, 2 * node + 1)})

        for node, job in enumerate(jobs):
            begins(0, 4, node, job)
        self.hosts[0].do("ip", "link", "set", "cable", "down")
        begins(1, 2, 0, jobs[0])
        self.hosts[0].do("ip", "link", "set", "cable", "up")
        for node, job in enumerate(jobs):
            begins(2, 4, node, job)
        (self.folder / "end").touch()
        for job, said in zip(jobs, ("node 1 was silent for 2 s (host2)", "lost the other nodes")):
            _, err = job.communicate(timeout=SOON)
            self.assertEqual(job.returncode, 0, err)
            self.assertIn(said, err)
            self.assertIn("round 2 begins with 4 ranks on nodes 0, 1, after 1 of at most 2 restarts\n", err)

    def test_health(self):
        for options, code in (((), 0), (("--min-free", "1e12"), 1)):
            jobs = [self.start(node, token="a token for tests, 0123456789", options=("--health", *options))
                    for node in (0, 1)]
            results = [(*job.communicate(timeout=SOON), job.returncode) for job in jobs]
            self.assertEqual(results[0], results[1])
            self.assertEqual(results[0][1:], ("", code))
            for node in (0, 1):
                self.assertRegex(results[0][0], rf"(?m)^{node}  *host{node + 1}  *[0-9]+ x .* MB/s$")

    def run_mpi(self, ranks, program, **variables):
        return subprocess.run(self.hosts[0].inside(*self.mpirun_command(MPI[0], ranks, "tcp,self", variables, program)),
                              capture_output=True, text=True, timeout=2 * SOON, env=ENVIRONMENT | variables)

    @unittest.skipUnless(MPI, "no MPI")
    def test_mpi_ranks_do_what_communicators_do(self):
        for ranks in (2, 5):
            result = self.run_mpi(ranks, MPI[1])
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            self.assertEqual(result.stdout.count("All tests passed"), ranks)

    @unittest.skipUnless(MPI, "no MPI")
    def test_mpi_ranks_train_as_threads_do(self):
        for ranks in (2, 3):
            threads = subprocess.run([MPI[2], "--threads", str(ranks)], capture_output=True, text=True, timeout=SOON,
                                     env=ENVIRONMENT)
            self.assertGreater(threads.stdout.count("good"), 20)
            result = self.run_mpi(ranks, MPI[2], LOCKSTEP_COMMUNICATOR="mpi")
            self.assertEqual((result.returncode, result.stdout), (0, threads.stdout), result.stderr)


if __name__ == "__main__":
    why_not = hosts.sentence_why_not()
    if why_not:
        print(f"skipped: {why_not}")
    else:
        unittest.main(argv=sys.argv[:1])
