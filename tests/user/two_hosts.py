"""Jobs of a user's program on two hosts, which are network namespaces with names of their own and a cable between them.

usage: two_hosts.py <lockstep-run> <job> <mpirun, or -> <job on the fake CUDA, or ->

It is a failure where there can be no namespaces, unless LOCKSTEP_TESTS_MAY_SKIP=1 says that this is known.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "launch"))
import two_hosts as launch  # noqa: E402

RUN, JOB, MPIRUN, FAKE = (None if argument == "-" else argument for argument in sys.argv[1:5])
SOON = 240  # seconds, for what takes a few
MASTER = ("10.77.0.1", "29400")
TOKEN = "a token for tests, 0123456789"


def left_behind(marker):
    """The processes that have `marker` in their environment."""
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and marker.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:  # gone, or somebody else's
            pass
    return found


class Jobs(unittest.TestCase):
    def setUp(self):
        self.marker = f"two-hosts-{uuid.uuid4()}"
        self.environment = launch.ENVIRONMENT | {"MARKER": self.marker, "LOCKSTEP_TOKEN": TOKEN, "LOCKSTEP_HOST_DEVICES": "4",
                                                 "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.hosts = []
        for _ in range(2):
            self.hosts.append(launch.Host())
            self.addCleanup(self.hosts[-1].close)
        self.addCleanup(self.end_all)
        first, second = self.hosts
        first.do("ip", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", str(second.holder.pid))
        for i, host in enumerate(self.hosts):
            host.do("hostname", f"host{i + 1}")
            host.do("ip", "address", "add", f"10.77.0.{i + 1}/24", "dev", "cable")
            for link in ("lo", "cable"):
                host.do("ip", "link", "set", link, "up")

    def end_all(self):
        for process in left_behind(self.marker):
            try:
                os.kill(process, 9)
            except ProcessLookupError:
                pass

    def check(self, said, ranks, backend):
        right = re.findall(rf"rank (\d+) of {ranks}: {backend} on \S+, numbers are right", said)
        self.assertEqual(sorted(right), [str(r) for r in range(ranks)], said)
        self.assertEqual(left_behind(self.marker), [])

    def mpirun(self, ranks, **variables):
        """Output of the job, half of whose ranks are on each host; mpirun reaches the second without ssh."""
        agent = os.path.join(self.folder.name, "agent")
        with open(agent, "w") as file:
            file.write(f"#!/bin/sh\nshift\nexec {' '.join(self.hosts[1].inside())} sh -c \"$*\"\n")
        os.chmod(agent, 0o700)
        names = [option for name in variables | {"LOCKSTEP_TOKEN": "", "MARKER": ""} for option in ("-x", name)]
        hosts = f"10.77.0.1:{ranks // 2},10.77.0.2:{ranks // 2}"
        result = subprocess.run(
            self.hosts[0].inside("timeout", "-k", "5", str(SOON), MPIRUN, "--host", hosts, "-n", str(ranks), *names,
                                 *("--mca", "plm_rsh_agent", agent, "--mca", "btl", "tcp,self,vader"),
                                 *("--mca", "btl_tcp_if_include", "cable", "--mca", "oob_tcp_if_include", "cable"), JOB),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environment | variables, cwd="/")
        self.assertEqual(result.returncode, 0, result.stdout)
        return result.stdout

    def lockstep_run(self, program, **variables):
        """What both nodes of two ranks say, and their exit codes."""
        token = os.path.join(self.folder.name, "token")
        with open(os.open(token, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(TOKEN)
        nodes = [subprocess.Popen(
            self.hosts[node].inside("timeout", "-k", "5", str(SOON), RUN, "-n", "2", "--nnodes", "2", "--node-rank", str(node),
                                    "--master", ":".join(MASTER), "--token-file", token, "--no-prefix", program),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environment | variables, cwd="/")
            for node in (0, 1)]
        said = [node.communicate()[0] for node in nodes]
        return "".join(said), [node.returncode for node in nodes]

    def test_the_hosts_have_names_of_their_own(self):
        names = [subprocess.check_output(host.inside("hostname"), text=True).strip() for host in self.hosts]
        self.assertEqual(names, ["host1", "host2"])

    @unittest.skipUnless(MPIRUN, "no MPI")
    def test_mpirun_trains_over_mpi_with_a_store(self):
        for ranks in (2, 4):
            said = self.mpirun(ranks, MASTER_ADDR=MASTER[0], MASTER_PORT=MASTER[1])
            self.check(said, ranks, "mpi")

    @unittest.skipUnless(MPIRUN, "no MPI")
    def test_mpirun_trains_over_mpi_alone(self):
        self.check(self.mpirun(4), 4, "mpi")

    @unittest.skipUnless(FAKE, "no nccl.h")
    def test_lockstep_run_trains_over_nccl(self):
        said, codes = self.lockstep_run(FAKE)
        self.assertEqual(codes, [0, 0], said)
        self.check(said, 4, "nccl")

    def test_host_devices_without_mpi_are_refused_with_the_reason(self):
        said, codes = self.lockstep_run(JOB)
        self.assertNotIn(0, codes)
        self.assertIn("no communicator suits 4 ranks in 4 processes on 2 machines with host devices: shared_memory needs "
                      "ranks on one machine; mpi cannot be used by rank 0: [mpi] expected a rank of an MPI job", said)
        self.assertEqual(left_behind(self.marker), [])


if __name__ == "__main__":
    why_not = launch.sentence_why_not()
    if why_not and os.environ.get("LOCKSTEP_TESTS_MAY_SKIP") == "1":
        print(f"skipped: {why_not}")
    elif why_not:
        sys.exit(f"FAILED: a new skip: {why_not}")
    else:
        unittest.main(argv=sys.argv[:1], verbosity=2)
