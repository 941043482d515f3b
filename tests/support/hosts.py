"""Two hosts: network namespaces with names of their own and a cable (veth) between them."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import unittest

# Any port will do: in these namespaces there is nobody else.
MASTER = ("10.77.0.1", "29400")


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
    """A test with `self.hosts`, which are called host1 and host2, and an empty `self.folder`."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.hosts = []
        for _ in range(2):
            self.hosts.append(Host())
            self.addCleanup(self.hosts[-1].close)
        self.hosts[0].do("ip", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns",
                         str(self.hosts[1].holder.pid))
        for i, host in enumerate(self.hosts, 1):
            host.do("hostname", f"host{i}")
            host.do("ip", "address", "add", f"10.77.0.{i}/24", "dev", "cable")
            for link in ("lo", "cable"):
                host.do("ip", "link", "set", link, "up")

    def token_file(self, name, token):
        """A file that only its owner may read."""
        path = self.folder / name
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(token)
        return str(path)

    def mpirun_command(self, mpirun, ranks, transports, variables, program):
        """For the first host: the ranks are on both, talk over the cable alone, and get the variables named."""
        agent = self.folder / "agent"  # mpirun reaches the second host without ssh
        agent.write_text(f"#!/bin/sh\nshift\nexec {' '.join(self.hosts[1].inside())} sh -c \"$*\"\n")
        agent.chmod(0o700)
        hosts = ",".join(f"10.77.0.{i}:{(ranks + 2 - i) // 2}" for i in (1, 2))
        names = [option for name in variables for option in ("-x", name)]
        return [mpirun, "--host", hosts, "-n", str(ranks), *names, "--mca", "plm_rsh_agent", str(agent),
                "--mca", "btl", transports, "--mca", "btl_tcp_if_include", "cable",
                "--mca", "oob_tcp_if_include", "cable", program]
