"""A job on two hosts: two network namespaces with a cable (veth) between them, and a token.

usage: two_hosts.py <lockstep-run> <lockstep-launch-rank> [<mpirun> <lockstep-tests-mpi> <ddp_ranks>]
"""
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

RUN, RANK = sys.argv[1:3]
MPI = sys.argv[3:6]
SOON = 120  # seconds, for what comes at once when it works
LAUNCHERS = ("LOCKSTEP_", "OMPI_", "PMI_", "SLURM_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "MPI_")
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
ENVIRONMENT["OMP_NUM_THREADS"] = "1"  # else lockstep-run says that it sets it
MASTER = "10.77.0.1:29400"


def sentence_why_not():
    """Why there cannot be two hosts here, or None."""
    for tool in ("unshare", "nsenter", "ip", "hostname"):
        if not shutil.which(tool):
            return f"there is no {tool}"
    if subprocess.run(["unshare", "--net", "--uts", "true"], capture_output=True).returncode != 0:
        return "network namespaces are not permitted"
    made = subprocess.run(["unshare", "--net", "ip", "link", "add", "cable", "type", "veth", "peer", "name", "other"],
                          capture_output=True)
    return None if made.returncode == 0 else "there are no veth pairs"


class Host:
    """A network namespace, there as long as a process in it."""

    def __init__(self):
        self.holder = subprocess.Popen(["unshare", "--net", "--uts", "sleep", "300"])
        own = os.readlink("/proc/self/ns/uts")
        while os.readlink(f"/proc/{self.holder.pid}/ns/uts") == own:
            time.sleep(0.005)

    def inside(self, *command):
        namespaces = f"/proc/{self.holder.pid}/ns"
        return ["nsenter", f"--net={namespaces}/net", f"--uts={namespaces}/uts", *command]

    def do(self, *command):
        subprocess.run(self.inside(*command), check=True)

    def close(self):
        self.holder.kill()
        self.holder.wait()


class TwoHosts(unittest.TestCase):
    def setUp(self):
        self.hosts = [Host(), Host()]
        for host in self.hosts:
            self.addCleanup(host.close)
        self.hosts[0].do("ip", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns",
                         str(self.hosts[1].holder.pid))
        for i, host in enumerate(self.hosts):
            host.do("hostname", f"host{i + 1}")
            host.do("ip", "address", "add", f"10.77.0.{i + 1}/24", "dev", "cable")
            for link in ("lo", "cable"):
                host.do("ip", "link", "set", link, "up")
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def start(self, node, *program, token, options=()):
        token_options = []
        if token:
            path = os.path.join(self.folder.name, f"token{node}")
            with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
                file.write(token)
            token_options = ["--token-file", path]
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

    def mpirun(self, ranks, program, **variables):
        """Ranks of mpirun on both hosts, which talk over the cable alone; mpirun reaches the second without ssh."""
        agent = os.path.join(self.folder.name, "agent")
        with open(agent, "w") as file:
            file.write(f"#!/bin/sh\nshift\nexec {' '.join(self.hosts[1].inside())} sh -c \"$*\"\n")
        os.chmod(agent, 0o700)
        names = [option for name in variables for option in ("-x", name)]
        hosts = ",".join(f"10.77.0.{i}:{(ranks + 2 - i) // 2}" for i in (1, 2))
        return subprocess.run(
            self.hosts[0].inside(MPI[0], "--allow-run-as-root", "--host", hosts, "-n", str(ranks), *names,
                                 *("--mca", "plm_rsh_agent", agent, "--mca", "btl", "tcp,self"),
                                 *("--mca", "btl_tcp_if_include", "cable", "--mca", "oob_tcp_if_include", "cable"),
                                 program),
            capture_output=True, text=True, timeout=2 * SOON, env=ENVIRONMENT | variables)

    @unittest.skipUnless(MPI, "no MPI")
    def test_mpi_ranks_do_what_communicators_do(self):
        for ranks in (2, 5):
            result = self.mpirun(ranks, MPI[1])
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            self.assertEqual(result.stdout.count("All tests passed"), ranks)

    @unittest.skipUnless(MPI, "no MPI")
    def test_mpi_ranks_train_as_threads_do(self):
        for ranks in (2, 3):
            threads = subprocess.run([MPI[2], "--threads", str(ranks)], capture_output=True, text=True, timeout=SOON,
                                     env=ENVIRONMENT)
            self.assertGreater(threads.stdout.count("good"), 20)
            result = self.mpirun(ranks, MPI[2], LOCKSTEP_COMMUNICATOR="mpi")
            self.assertEqual((result.returncode, result.stdout), (0, threads.stdout), result.stderr)


if __name__ == "__main__":
    why_not = sentence_why_not()
    if why_not:
        print(f"skipped: {why_not}")
    else:
        unittest.main(argv=sys.argv[:1])
