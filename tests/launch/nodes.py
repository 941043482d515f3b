"""Tests of lockstep-run: jobs on several nodes. See launcher.py for how it is started."""
import pathlib
import signal
import socket
import sys
import unittest

from launcher import RANK, SAY, SOON, Started, lines, main, run, wait_until_gone
from support.jobs import free_port


NEVER = str(100 * SOON)


class Nodes(unittest.TestCase):
    """Two lockstep-run on this machine, as if they were on two."""

    def nodes(self, *program, options=(), counts=(2, 2), tokens=("", ""), nodes=(0, 1)):
        master = f"127.0.0.1:{free_port()}"
        return [Started("-n", str(count), "--nnodes", "2", "--node-rank", str(node), "--master", master, *options,
                        *program, **({"LOCKSTEP_TOKEN": token} if token else {}))
                for node, count, token in zip(nodes, counts, tokens)]

    def test_ranks_meet_across_nodes(self):
        token = "a token for tests, 0123456789"
        for tokens in (("", ""), (token, token)):
            results = [job.finish() for job in self.nodes(RANK, tokens=tokens)]
            everybody = "".join(f" {r}/4:{r % 2}/2" for r in range(4))
            for node, (code, out, err) in enumerate(results):
                self.assertEqual((code, err), (0, ""))
                self.assertEqual(lines(out), [f"[{r}] lockstep-run{everybody}" for r in (2 * node, 2 * node + 1)])

    def test_a_rank_that_fails_ends_all_nodes(self):
        for failing in range(4):
            jobs = self.nodes("sh", "-c", "touch $F/$LOCKSTEP_RANK; while [ ! -e $F/go ]; do sleep 0.01; done; "
                              f"[ $LOCKSTEP_RANK = {failing} ] && exit 9; exec sleep 1000", options=("--patience", "0.1"))
            jobs[0].wait_for_files("0", "1")
            jobs[1].wait_for_files("2", "3")
            for job in jobs:
                (pathlib.Path(job.folder.name) / "go").touch()
            for job in jobs:
                code, _, err = job.finish()
                self.assertEqual(code, 9)
                self.assertIn(f"rank {failing} exited with code 9", err)
                job.wait_until_gone()

    def test_a_node_whose_launcher_is_killed(self):
        for killed in (0, 1):
            jobs = self.nodes("sh", "-c", "touch $F/$LOCKSTEP_RANK; exec sleep 1000", options=("--timeout", NEVER))
            jobs[0].wait_for_files("0", "1")
            jobs[1].wait_for_files("2", "3")
            jobs[killed].process.kill()
            jobs[killed].finish()
            code, _, err = jobs[1 - killed].finish()
            self.assertEqual(code, 1)
            self.assertIn(f"node 1 is gone: its lockstep-run has ended ({socket.gethostname()})" if killed else "lost the other nodes: [store] rank", err.replace(
                "[store] the store", "[store] rank"))
            for job in jobs:
                job.wait_until_gone()

    def test_a_node_whose_launcher_is_killed_after_its_rank_has_failed(self):
        program = ("case $LOCKSTEP_RANK in 2) exit 9;; 3) exec sleep 1000;; esac; "
                   "while [ ! -e $F/go ]; do sleep 0.01; done")
        first, second = self.nodes("sh", "-c", program, options=("--timeout", NEVER, "--patience", NEVER))
        self.assertIn("a rank of another node has failed", first.process.stderr.readline())
        second.process.kill()
        second.finish()
        (pathlib.Path(first.folder.name) / "go").touch()
        code, _, err = first.finish()
        self.assertEqual(code, 1)
        self.assertIn("first failure: a rank has failed, and its node does not say which\n  node 1 is gone: its lockstep-run has ended", err)

    def test_a_node_that_answers_late_does_not_keep_signals_away(self):
        program = ("trap 'touch $F/asked; exit 0' TERM; echo $$ > $F/new$LOCKSTEP_RANK; "
                   "mv $F/new$LOCKSTEP_RANK $F/$LOCKSTEP_RANK; while [ ! -e $F/go$LOCKSTEP_RANK ]; do sleep 0.01; done")
        first, second = self.nodes("sh", "-c", program, options=("--timeout", str(10 * SOON)))
        first.wait_for_files("0", "1")
        second.wait_for_files("2", "3")
        first.process.send_signal(signal.SIGSTOP)
        folder = pathlib.Path(second.folder.name)
        gone = (folder / "3").read_text().strip()
        (folder / "go3").touch()
        wait_until_gone(gone)
        second.process.send_signal(signal.SIGTERM)
        try:
            second.wait_for_files("asked")
        finally:
            first.process.send_signal(signal.SIGCONT)
        self.assertEqual([job.finish()[0] for job in (first, second)], [128 + signal.SIGTERM] * 2)

    def test_long_words_of_many_ranks(self):
        ranks = 300  # in all they say more than a value of the store holds
        program = SAY + (f"for r in range({ranks}):\n"
                         "    rank = r; say(f'{r} ' + 4000 * 'x')\n"
                         "os._exit(7)\n")
        jobs = self.nodes("sh", "-c", f"[ $LOCKSTEP_RANK = 0 ] && exec {sys.executable} -c \"$0\"; exit 0", program,
                          counts=(ranks, ranks), options=("--no-prefix",))
        for job in jobs:
            code, _, err = job.finish()
            self.assertEqual(code, 7)
            self.assertRegex(err, r"first failure: rank 0 exited with code 7\n  rank 0 on .*: x{1000}")

    def test_a_node_that_comes_when_it_is_over(self):
        first, second = self.nodes("sh", "-c", "exit 9")
        self.assertEqual([job.finish()[0] for job in (first, second)], [9, 9])

    def test_a_node_that_never_comes(self):
        master = f"127.0.0.1:{free_port()}"
        result = run("-n", "1", "--nnodes", "2", "--master", master, "--timeout", "0.3", "sleep", "1000")
        self.assertEqual(result.returncode, 1)
        self.assertIn("node 1 did not come within 0.3 s", result.stderr)
        result = run("-n", "1", "--nnodes", "2", "--node-rank", "1", "--master", master, "--timeout", "0.3", "true")
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"cannot reach the store at {master}", result.stderr)

    def test_nodes_that_do_not_fit(self):
        for nodes in ((0, 1), (1, 0)):  # whoever comes first, node 0 is right
            jobs = self.nodes("sleep", "1000", counts=[2 + node for node in nodes], nodes=nodes)
            first, second = jobs[nodes.index(0)], jobs[nodes.index(1)]
            self.assertEqual(second.process.wait(SOON), 2)
            self.assertIn("2 nodes of 3 ranks on node 1 and 2 nodes of 2 ranks", second.finish()[2])
            first.process.terminate()
            first.finish()

    def test_a_wrong_token(self):
        first, second = self.nodes("sleep", "1000", tokens=("a" * 20, "b" * 20))
        code, _, err = second.finish()
        self.assertEqual(code, 1)
        self.assertIn("another token", err)
        first.process.terminate()
        first.finish()


if __name__ == "__main__":
    main()
