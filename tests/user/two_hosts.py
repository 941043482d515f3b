"""Jobs of a user's program on two hosts, which are network namespaces with names of their own and a cable between them.

usage: two_hosts.py <lockstep-run> <job> <mpirun, or -> <job on the fake CUDA, or ->

It is a failure where there can be no namespaces, unless LOCKSTEP_TESTS_MAY_SKIP=1 says that this is known.
"""
import os
import pathlib
import re
import subprocess
import sys
import unittest
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from support import hosts  # noqa: E402
from support.jobs import MPI_AS_ROOT, clean_environment, may_skip, processes_with, skip  # noqa: E402

RUN, JOB, MPIRUN, FAKE = (None if argument == "-" else argument for argument in sys.argv[1:5])
SOON = 240  # seconds, for what takes a few
LIMIT = ("timeout", "-k", "5", str(SOON))
TOKEN = "a token for tests, 0123456789"


class Jobs(hosts.TwoHosts):
    def setUp(self):
        super().setUp()
        self.marker = f"two-hosts-{uuid.uuid4()}"
        self.environment = clean_environment(MARKER=self.marker, LOCKSTEP_TOKEN=TOKEN, LOCKSTEP_HOST_DEVICES="4",
                                             OMP_NUM_THREADS="1") | MPI_AS_ROOT
        self.addCleanup(self.end_all)

    def end_all(self):
        for process in processes_with(self.marker):
            try:
                os.kill(process, 9)
            except ProcessLookupError:
                pass

    def check(self, said, ranks, backend):
        right = re.findall(rf"rank (\d+) of {ranks}: {backend} on \S+, numbers are right", said)
        self.assertEqual(sorted(right), [str(r) for r in range(ranks)], said)
        self.assertEqual(processes_with(self.marker), {})

    def needs_mpi(self):
        if not MPIRUN:
            skip("there is no mpirun, or no MPI in this build")

    def run_mpi(self, ranks, **variables):
        """Output of the job, half of whose ranks are on each host."""
        names = [*variables, "LOCKSTEP_TOKEN", "MARKER"]
        command = self.mpirun_command(MPIRUN, ranks, "tcp,self,vader", names, JOB)
        result = subprocess.run(self.hosts[0].inside(*LIMIT, *command), stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, env=self.environment | variables, cwd="/")
        self.assertEqual(result.returncode, 0, result.stdout)
        return result.stdout

    def lockstep_run(self, program):
        """What both nodes of two ranks say, and their exit codes."""
        token = self.token_file("token", TOKEN)
        nodes = [subprocess.Popen(
            self.hosts[node].inside(*LIMIT, RUN, "-n", "2", "--nnodes", "2", "--node-rank", str(node),
                                    "--master", ":".join(hosts.MASTER), "--token-file", token, "--no-prefix", program),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environment, cwd="/")
            for node in (0, 1)]
        said = [node.communicate()[0] for node in nodes]
        return "".join(said), [node.returncode for node in nodes]

    def test_the_hosts_have_names_of_their_own(self):
        names = [subprocess.check_output(host.inside("hostname"), text=True).strip() for host in self.hosts]
        self.assertEqual(names, ["host1", "host2"])

    def test_mpirun_trains_over_mpi_with_a_store(self):
        self.needs_mpi()
        for ranks in (2, 4):
            said = self.run_mpi(ranks, MASTER_ADDR=hosts.MASTER[0], MASTER_PORT=hosts.MASTER[1])
            self.check(said, ranks, "mpi")

    def test_mpirun_trains_over_mpi_alone(self):
        self.needs_mpi()
        self.check(self.run_mpi(4), 4, "mpi")

    def test_lockstep_run_trains_over_nccl(self):
        if not FAKE:
            skip("this build has no CUDA, or there is no nccl.h")
        said, codes = self.lockstep_run(FAKE)
        self.assertEqual(codes, [0, 0], said)
        self.check(said, 4, "nccl")

    def test_host_devices_without_mpi_are_refused_with_the_reason(self):
        said, codes = self.lockstep_run(JOB)
        self.assertNotIn(0, codes)
        self.assertIn("no communicator suits 4 ranks in 4 processes on 2 machines with host devices: shared_memory needs "
                      "ranks on one machine; mpi cannot be used by rank 0: [mpi] expected a rank of an MPI job", said)
        self.assertEqual(processes_with(self.marker), {})


if __name__ == "__main__":
    why_not = hosts.sentence_why_not()
    if why_not and may_skip():
        print(f"skipped: {why_not}")
    elif why_not:
        sys.exit(f"FAILED: {why_not}, and LOCKSTEP_TESTS_MAY_SKIP=1 is not set")
    else:
        unittest.main(argv=sys.argv[:1], verbosity=2)
