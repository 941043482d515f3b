"""What tests of lockstep-run share that start jobs whose nodes come and go."""
import pathlib
import signal
import tempfile
import threading
import unittest

from launcher import SOON, Started, lines, wait_until
from support.jobs import free_port

SILENT = "3"  # seconds after which node 0 gives a silent node up: a machine that is busy is not silent for so long
# Ranks say in $G who they are, and go on until there is $G/end.
HOLD = ("echo $LOCKSTEP_ROUND $LOCKSTEP_RANK $LOCKSTEP_WORLD_SIZE >>$G/ranks; "
        "until [ -e $G/end ]; do sleep 0.02; done; echo $LOCKSTEP_ROUND: $LOCKSTEP_RANK of $LOCKSTEP_WORLD_SIZE")


class ComingNodes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.master = f"127.0.0.1:{free_port()}"
        self.started = []
        self.addCleanup(self.end_all)

    def end_all(self):
        for job in self.started:
            if job.process.poll() is None:
                job.process.send_signal(signal.SIGCONT)
                job.process.kill()
                job.process.communicate()
            job.folder.cleanup()
            job.process.stdout.close()
            job.process.stderr.close()

    def node(self, node, *options, program=HOLD, nnodes=3, ranks=2, restarts=3, least=2, silent=SILENT, grace="1",
             command=None, master=None):
        bounds = ("--min-ranks", str(least)) if least else ()
        job = Started("-n", str(ranks), "--nnodes", str(nnodes), "--node-rank", str(node), "--master", master or self.master,
                      "--restarts", str(restarts), *bounds, "--timeout", silent, "--patience", "0.1", "--grace", grace,
                      *options, *(command or ("sh", "-c", program)), G=str(self.folder))
        job.said = ""
        self.started.append(job)
        return job

    def nodes(self, *options, of=(0, 1, 2), **how):
        return [self.node(node, *options, **how) for node in of]

    def one_that_has_come(self, node, *options, **how):
        """It says nothing while a round is formed. But of two with one number the second goes when the first has come."""
        two = [self.nodes(*options, of=(node,), **how)[0] for _ in range(2)]
        wait_until(lambda: any(job.process.poll() is not None for job in two), f"node {node} has come")
        two.sort(key=lambda job: job.process.poll() is None)
        self.check(two[0], 2, f"got two with --node-rank {node}")
        return two[1]

    def wait_for_round(self, round, size):
        wanted = {f"{round} {rank} {size}" for rank in range(size)}
        file = self.folder / "ranks"
        wait_until(lambda: file.exists() and wanted <= set(file.read_text().splitlines()), f"round {round} of {size}")

    def end(self):
        (self.folder / "end").touch()

    def kill(self, *jobs):
        for job in jobs:
            job.process.kill()
        for job in jobs:
            job.finish()

    def until_it_says(self, job, what):
        too_late = threading.Timer(SOON, job.process.kill)  # which ends what it says
        too_late.start()
        while what not in job.said:
            line = job.process.stderr.readline()
            if not line:
                break
            job.said += line
        too_late.cancel()
        self.assertIn(what, job.said)

    def check(self, job, code, *said, out=None):
        got, words, err = job.finish()
        job.said += err
        self.assertEqual(got, code, job.said)
        for each in said:
            self.assertIn(each, job.said)
        if out is not None:
            self.assertEqual(lines(words), out, job.said)
