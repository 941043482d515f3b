"""What tests that start jobs share: ports, a clean environment, the processes of a job, skips."""
import os
import pathlib
import random
import socket
import threading
import unittest

# What launchers, MPI and OpenMP look at, and Lockstep itself. A test sets what it wants of it.
LAUNCHERS = ("LOCKSTEP_", "OMPI_", "PMI", "MPI_", "SLURM_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_",
             "GROUP_", "ROLE_", "OMP_")
MPI_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def clean_environment(**variables):
    """This process's environment, `variables`, and nothing that a launcher has left there."""
    return {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)} | variables


def _ports():
    """Each port once that the system gives to no client, from a place that differs from process to process."""
    low, high = map(int, pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    # Where clients may get every port, those that they do not get elsewhere are as good as any.
    ports = max(range(10_000, low), range(high + 1, 65_536), key=len) or range(10_000, 32_768)
    begin = random.randrange(len(ports))
    yield from ports[begin:]
    yield from ports[:begin]


_PORTS, _LOCK = _ports(), threading.Lock()


def _is_free(port):
    with socket.socket() as one:
        try:
            one.bind(("", port))
        except OSError:
            return False
        return True


def free_port(count=1):
    """The first of `count` ports in a row that nobody has. They stay free: no client is given one of them."""
    row = []
    with _LOCK:
        for port in _PORTS:
            follows = row and port == row[-1] + 1
            row = [*(row if follows else []), port] if _is_free(port) else []
            if len(row) == count:
                return row[0]
    raise AssertionError("there are no more ports")


def processes_with(marker):
    """The processes that have `marker` in their environment: number and command line."""
    found = {}
    for folder in pathlib.Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and marker.encode() in (folder / "environ").read_bytes():
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(folder.name)] = command.decode(errors="replace")
        except OSError:  # gone, or somebody else's
            pass
    return found


def may_skip():
    """Whether it is known that this machine lacks something."""
    return os.environ.get("LOCKSTEP_TESTS_MAY_SKIP") == "1"


def skip(reason):
    """Skips the test that calls it. It fails where nobody has said that it may be skipped: else nobody would notice."""
    if may_skip():
        raise unittest.SkipTest(reason)
    raise AssertionError(f"cannot be tested here, and LOCKSTEP_TESTS_MAY_SKIP=1 is not set: {reason}")
