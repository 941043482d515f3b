"""Tests of lockstep-run: that nothing of a job is left behind. See launcher.py for how it is started."""
import pathlib
import signal
import socket
import unittest

from launcher import RUN, Started, main
from support.jobs import processes_with


class LeftBehind(unittest.TestCase):
    CHILDREN = "sleep 1000 & setsid sleep 1000 & (setsid sh -c 'sleep 1000; true' &) ; touch $F/$LOCKSTEP_RANK; "

    def test_children_of_ranks_that_have_ended_well(self):
        job = Started("-n", "2", "sh", "-c", self.CHILDREN + "exit 0")
        self.assertEqual(job.finish()[0], 0)
        self.assertEqual(processes_with(job.marker), {})

    def test_children_of_ranks_that_fail(self):
        job = Started("-n", "2", "--grace", "0.1", "sh", "-c", self.CHILDREN + "exit 4")
        self.assertEqual(job.finish()[0], 4)
        self.assertEqual(processes_with(job.marker), {})

    def test_all_when_the_launcher_is_killed(self):
        job = Started("-n", "2", "sh", "-c", self.CHILDREN + "trap '' TERM HUP INT; exec sleep 1000")
        job.wait_for_files("0", "1")
        self.assertGreater(len(processes_with(job.marker)), 6)
        job.process.kill()
        self.assertEqual(job.finish()[0], -signal.SIGKILL)
        job.wait_until_gone()

    def test_all_when_the_launcher_is_killed_while_a_job_in_the_job_runs(self):
        job = Started("-n", "1", RUN, "-n", "2", "sh", "-c", self.CHILDREN + "exec sleep 1000")
        job.wait_for_files("0", "1")
        job.process.kill()
        job.finish()
        job.wait_until_gone()

    def test_what_was_written_while_somebody_else_holds_the_pipe(self):
        # Without the job's variables it is not known as one of its processes.
        job = Started("-n", "1", "sh", "-c", "printf partial; setsid env -i sh -c \"touch $F/there; exec sleep 10\" & "
                      "while [ ! -e $F/there ]; do sleep 0.01; done; exit 0")
        code, out, _ = job.finish()
        self.assertEqual((code, out), (0, "[0] partial\n"))

    def test_the_stores_port(self):
        job = Started("-n", "1", "sh", "-c", "echo $LOCKSTEP_STORE > $F/new; mv $F/new $F/0; exec sleep 1000")
        job.wait_for_files("0")
        host, port = (pathlib.Path(job.folder.name) / "0").read_text().strip().split(":")
        socket.create_connection((host, int(port))).close()
        job.process.terminate()
        job.finish()
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))


if __name__ == "__main__":
    main()
