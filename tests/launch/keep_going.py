"""Tests of lockstep-run: --keep-going. See launcher.py for how it is started; one program more: <lockstep-launch-survivor>,
whose ranks get over the loss of others."""
import json
import pathlib
import signal
import sys
import tempfile
import unittest

from launcher import SOON, Started, lines, main, run
from support.jobs import free_port

SURVIVOR = sys.argv.pop(4)
SLOW = ("--patience", "0.1", "--grace", "1")
NEVER = str(100 * SOON)
SILENT = "3"  # seconds after which node 0 gives a silent node up: a machine that is busy is not silent for so long


def nodes(*program, options=(), first=(), grace="1"):
    master = f"127.0.0.1:{free_port()}"
    return [Started("-n", "2", "--nnodes", "2", "--node-rank", str(node), "--master", master, "--keep-going",
                    "--patience", "0.1", "--grace", grace, *options, *(first if node == 0 else ()), *program)
            for node in (0, 1)]


class KeepGoing(unittest.TestCase):
    def check_survivors(self, out, ranks):
        self.assertEqual(lines(out), [f"[{r}] rank {r} of 4: {len(ranks)} ranks went on" for r in ranks])

    def test_the_others_go_on(self):
        for how, number, said in ((0, 7, "exited with code 7"), (signal.SIGKILL, 137, "was killed by signal 9 (SIGKILL)")):
            result = run("-n", "4", "--keep-going", *SLOW, SURVIVOR, "survive", "3", str(int(how)), "1")
            self.assertEqual(result.returncode, number, result.stderr)
            self.check_survivors(result.stdout, [0, 2, 3])
            self.assertIn(f"lockstep-run: rank 1 {said}: the others go on\n", result.stderr)
            self.assertIn(f"first failure: rank 1 {said}\n", result.stderr)
            self.assertTrue(result.stderr.endswith("\n  3 of 4 ranks ended well\n"), result.stderr)
            for rank in (0, 2, 3):
                self.assertRegex(result.stderr, rf"\[{rank}\] rank {rank} noticed: .*rank 1 ")

    def test_without_it_they_do_not(self):
        result = run("-n", "2", *SLOW, "sh", "-c", "[ $LOCKSTEP_RANK = 1 ] && exit 7; sleep 1000; echo went on")
        self.assertEqual((result.returncode, result.stdout), (7, ""))

    def test_they_lose_one_after_the_other(self):
        result = run("-n", "4", "--keep-going", "--min-ranks", "2", *SLOW, SURVIVOR, "again", "3", "9", "1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.check_survivors(result.stdout, [0, 2])
        self.assertIn("first failure: rank 1 was killed by signal 9 (SIGKILL)\n", result.stderr)
        self.assertRegex(result.stderr, r"\n  rank 3 on .*: was killed by signal 9 \(SIGKILL\)")
        self.assertTrue(result.stderr.endswith("\n  2 of 4 ranks ended well, at least 2 are asked for\n"), result.stderr)

    def test_too_few_are_left(self):
        for min_ranks, code, out in ((1, 0, ["[0] went on"]), (2, 8, [])):
            job = Started("-n", "3", "--keep-going", "--min-ranks", str(min_ranks), *SLOW, "sh", "-c",
                          "touch $F/$LOCKSTEP_RANK; case $LOCKSTEP_RANK in 1) exit 8;; "
                          "2) while [ ! -e $F/go ]; do sleep 0.01; done; exit 9;; esac; "
                          "while [ ! -e $F/end ]; do sleep 0.01; done; echo went on")
            self.assertIn("rank 1 exited with code 8: the others go on", job.process.stderr.readline())
            (pathlib.Path(job.folder.name) / "go").touch()
            if min_ranks == 1:
                self.assertIn("rank 2 exited with code 9: the others go on", job.process.stderr.readline())
                (pathlib.Path(job.folder.name) / "end").touch()
            result, words, err = job.finish()
            self.assertEqual((result, lines(words)), (code, out), err)
            self.assertIn("first failure: rank 1 exited with code 8\n", err)
            self.assertEqual("fewer than 2 ranks are left" in err, min_ranks == 2)
            self.assertNotIn("rank 2 exited with code 9: the others go on", err)

    def test_all_fail(self):
        result = run("-n", "2", "--keep-going", "--min-ranks", "1", *SLOW, "sh", "-c", "exit 6")
        self.assertEqual(result.returncode, 6)
        self.assertIn("0 of 2 ranks ended well, at least 1 are asked for", result.stderr)

    def test_all_end_well(self):
        result = run("-n", "2", "--keep-going", "echo", "well")
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_one_that_is_stopped_is_not_waited_for(self):
        result = run("-n", "2", "--keep-going", "--min-ranks", "1", "--timeout", "0.3", "sh", "-c",
                     "[ $LOCKSTEP_RANK = 1 ] && kill -STOP $$; echo went on")
        self.assertEqual((result.returncode, result.stdout), (0, "[0] went on\n"))
        self.assertRegex(result.stderr, r"rank 1 on .*: was killed by signal 9 \(SIGKILL\): "
                                        r"it was stopped by signal 19 \(SIGSTOP\) for 0.3 s\n")

    def test_a_signal_ends_it_all_the_same(self):
        job = Started("-n", "2", "--keep-going", *SLOW, "sh", "-c", "touch $F/$LOCKSTEP_RANK; exec sleep 1000")
        job.wait_for_files("0", "1")
        job.process.send_signal(signal.SIGTERM)
        self.assertEqual(job.finish()[0], 128 + signal.SIGTERM)

    def test_on_two_nodes(self):
        for victim in (0, 3):
            jobs = nodes(SURVIVOR, "survive", "3", "9", str(victim))
            results = [job.finish() for job in jobs]
            self.check_survivors("".join(out for _, out, _ in results), sorted({0, 1, 2, 3} - {victim}))
            for code, _, err in results:
                self.assertEqual(code, 137, err)
                self.assertIn(f"first failure: rank {victim} was killed by signal 9 (SIGKILL)\n", err)
                self.assertIn("\n  3 of 4 ranks ended well\n", err)

    def test_too_few_are_left_on_two_nodes(self):
        jobs = nodes("sh", "-c", "[ $LOCKSTEP_RANK = 3 ] && exit 9; exec sleep 1000", options=("--min-ranks", "4"))
        for code, _, err in [job.finish() for job in jobs]:
            self.assertEqual(code, 9)
            self.assertIn("fewer than 4 ranks are left", err)
            self.assertIn("first failure: rank 3 exited with code 9\n", err)

    def test_the_node_that_knows_who_failed_is_killed(self):
        program = ("trap 'touch $F/asked$LOCKSTEP_RANK' TERM; "
                   "[ $LOCKSTEP_RANK = 0 ] && exit 9; while [ ! -e $F/go ]; do sleep 0.01; done")
        first, second = nodes("sh", "-c", program, options=("--min-ranks", "4"), grace=str(SOON))
        self.assertIn("fewer than 4 ranks are left", second.process.stderr.readline())
        second.wait_for_files("asked2", "asked3")  # they are cut, and will end well all the same
        first.process.kill()
        first.finish()
        (pathlib.Path(second.folder.name) / "go").touch()
        code, _, err = second.finish()
        self.assertEqual(code, 1, err)
        self.assertIn("a rank has failed, and its node does not say which\n", err)

    def test_a_rank_that_fails_before_its_node_is_lost(self):
        program = ("touch $F/$LOCKSTEP_RANK; [ $LOCKSTEP_RANK = 2 ] && exit 9; "
                   "while [ ! -e $F/end ]; do sleep 0.01; done")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        logs, end = folder.name, pathlib.Path(folder.name) / "end.json"
        master = f"127.0.0.1:{free_port()}"
        common = ("-n", "2", "--nnodes", "2", "--master", master, "--keep-going", *SLOW, "--log-dir", logs)
        first = Started(*common, "--node-rank", "0", "--timeout", NEVER, "--json", str(end), SURVIVOR, "wait", "0", "0")
        second = Started(*common, "--node-rank", "1", "sh", "-c", program)
        second.wait_for_files("2", "3")
        first.wait_for_files("told0", "told1")
        second.process.kill()
        second.finish()
        code, _, err = first.finish()
        self.assertEqual(code, 9, err)
        self.assertRegex(err, r"first failure: rank 2 exited with code 9\n"
                              rf"  rank 2 on .*, process \d+, .*: exited with code 9\n    log: {logs}/rank2.log\n"
                              rf"  rank 3 on .*: was lost with its node: node 1 .*\n    log: {logs}/rank3.log\n")
        found = json.loads(end.read_text())
        self.assertEqual([each["part"] for each in found["ranks"]], ["well", "well", "first", "failed"])

    def test_a_node_that_is_lost(self):
        program = "touch $F/$LOCKSTEP_RANK; while [ ! -e $F/end ]; do sleep 0.01; done; echo went on"
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        end = pathlib.Path(folder.name) / "end.json"
        first, second = nodes("sh", "-c", program,
                              options=("--min-ranks", "2"), first=("--timeout", NEVER, "--json", str(end)))
        first.wait_for_files("0", "1")
        second.wait_for_files("2", "3")
        second.process.kill()
        second.finish()
        second.wait_until_gone()
        self.assertRegex(first.process.stderr.readline(), rf"node 1 is gone: its lockstep-run has ended \(.*\): the others go on\n")
        (pathlib.Path(first.folder.name) / "end").touch()
        code, out, err = first.finish()
        self.assertEqual((code, lines(out)), (0, ["[0] went on", "[1] went on"]), err)
        self.assertRegex(err, r"first failure: rank 2 was lost with its node\n"
                              rf"  rank 2 on .*: was lost with its node: node 1 is gone: its lockstep-run has ended \(.*\)\n"
                              r"  rank 3 on .*: was lost with its node: ")
        self.assertIn("2 of 4 ranks ended well, at least 2 are asked for", err)
        found = json.loads(end.read_text())
        self.assertEqual([each["how"] for each in found["ranks"]], ["exited", "exited", "lost", "lost"])

    def test_survivors_of_a_node_that_is_lost(self):
        # Those that will be lost stop at step 2.
        first, second = nodes(SURVIVOR, "survive", "2", str(int(signal.SIGSTOP)), "2", "3", first=("--timeout", NEVER))
        second.wait_for_files("2", "3")
        second.process.kill()
        second.finish()
        code, out, err = first.finish()
        self.check_survivors(out, [0, 1])
        self.assertEqual(code, 1)
        self.assertIn("was lost with its node", err)

    def test_a_node_that_was_lost_and_comes_back(self):
        program = "touch $F/$LOCKSTEP_RANK; while [ ! -e $F/end ]; do sleep 0.01; done; echo went on"
        first, second = nodes("sh", "-c", program, first=("--timeout", SILENT))
        first.wait_for_files("0", "1")
        second.wait_for_files("2", "3")
        second.process.send_signal(signal.SIGSTOP)
        try:
            first_line = first.process.stderr.readline()
        finally:
            second.process.send_signal(signal.SIGCONT)
        self.assertIn(f"node 1 was silent for {SILENT} s", first_line)
        code, out, err = second.finish()
        self.assertEqual((code, out), (1, ""))
        self.assertIn(f"they go on without this one: node 1 was silent for {SILENT} s", err)
        self.assertNotIn("nobody goes on", err)
        (pathlib.Path(first.folder.name) / "end").touch()
        code, out, err = first.finish()
        self.assertEqual((code, lines(out)), (1, ["[0] went on", "[1] went on"]), err)

    def test_the_node_with_the_store_is_final(self):
        first, second = nodes("sh", "-c", "touch $F/$LOCKSTEP_RANK; exec sleep 1000")
        second.wait_for_files("2", "3")
        first.process.kill()
        first.finish()
        code, _, err = second.finish()
        self.assertEqual(code, 1)
        self.assertIn("node 0 has the job's store: nobody goes on without it", err)
        second.wait_until_gone()

    def test_nodes_that_do_not_fit(self):
        master = f"127.0.0.1:{free_port()}"
        common = ("-n", "2", "--nnodes", "2", "--master", master)
        first = Started(*common, "--node-rank", "0", "--keep-going", "sleep", "1000")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        end = pathlib.Path(folder.name) / "end.json"
        code, _, err = Started(*common, "--node-rank", "1", "--json", str(end), "sleep", "1000").finish()
        self.assertEqual((code, json.loads(end.read_text())["code"]), (2, 2))
        self.assertIn("2 nodes of 2 ranks on node 1 and 2 nodes of 2 ranks that keep going", err)
        first.process.terminate()
        first.finish()


if __name__ == "__main__":
    main()
