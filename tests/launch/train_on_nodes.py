"""train_text on nodes that come and go: each round goes on from the newest checkpoint, to the same bits as a training
that begins with it on as many ranks of one machine.

usage: train_on_nodes.py <lockstep-run> <train_text> <text>
"""
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.argv[2:2] = ["-", "-"]  # launcher.py's other programs
from launcher import RUN, SOON, Started, environment, wait_until  # noqa: E402
from support.jobs import free_port  # noqa: E402

TRAIN, TEXT = sys.argv[4:6]
SMALL = ("--batch-size", "12", "--context", "16", "--layers", "1", "--heads", "2", "--width", "16", "--sample", "0",
         "--dropout", "0.1", "--no-progress", "--stall-seconds", str(SOON))
LONG = "100000000"  # steps: it is ended


class TrainOnNodes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.master = f"127.0.0.1:{free_port()}"

    def train(self, folder, steps):
        return (TRAIN, "--data", TEXT, *SMALL, "--checkpoint", str(folder), "--every", "2", "--keep", "1000000", "--steps", str(steps))

    def node(self, node):
        job = Started("-n", "1", "--nnodes", "3", "--node-rank", str(node), "--master", self.master, "--restarts", "3",
                      "--min-ranks", "2", "--timeout", "3", "--patience", "1", "--grace", str(SOON), "--no-prefix",
                      *self.train(self.folder, LONG))
        self.addCleanup(job.process.kill)
        return job

    def newest(self):
        return max((int(each.name[5:]) for each in self.folder.glob("step-????????")), default=-1)

    def wait_for_round(self, job, ranks):
        """The step that it goes on from; there is a checkpoint of a later one then."""
        found = None
        while not found:
            line = job.process.stdout.readline()
            self.assertNotEqual(line, "", "the output has ended")
            found = re.search(rf" {ranks} ranks \(.*\) on \w+(?:; resumed after step (\d+))?$", line.rstrip())
        step = int(found[1] or 0)
        wait_until(lambda: self.newest() > step, f"a checkpoint after step {step}")
        return step

    def alone(self, folder, steps):
        """Three ranks on one machine, to the end: the hash of their parameters."""
        done = subprocess.run([RUN, "-n", "3", "--no-prefix", *self.train(folder, steps)], capture_output=True, text=True,
                              timeout=SOON, env=environment())
        self.assertEqual(done.returncode, 0, done.stderr)
        return re.search(r"parameters_sha256=(\w+)", done.stdout)[1]

    def test_other_numbers_of_ranks_go_on(self):
        jobs = [self.node(node) for node in range(3)]
        self.assertEqual(self.wait_for_round(jobs[0], 3), 0)
        jobs[2].process.kill()
        jobs[2].finish()
        fewer = self.wait_for_round(jobs[0], 2)
        jobs[2] = self.node(2)
        more = self.wait_for_round(jobs[0], 3)
        self.assertGreater(fewer, 0)
        self.assertGreater(more, fewer)
        jobs[1].process.terminate()
        for job in jobs:
            code, _, err = job.finish()
            self.assertEqual(code, 128 + signal.SIGTERM, err)
            self.assertIn("round 2 begins with 3 ranks on nodes 0, 1, 2, after 1 of at most 3 restarts\n", err)
        last = self.newest()
        with tempfile.TemporaryDirectory() as name:
            copy = pathlib.Path(name)
            shutil.copytree(self.folder / f"step-{more:08d}", copy / f"step-{more:08d}")
            self.assertEqual(self.alone(self.folder, last), self.alone(copy, last))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
