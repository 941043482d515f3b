"""Tests of lockstep-run: --restarts. See launcher.py for how it is started."""
import json
import pathlib
import signal
import sys
import tempfile
import unittest

from launcher import RANK, SOON, Started, lines, main, run
from support.jobs import free_port

SLOW = ("--patience", "0.1", "--grace", "1")


class Restarts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_a_round_follows_when_a_rank_fails(self):
        end = self.folder / "end.json"
        result = run("-n", "3", "--restarts", "3", "--json", str(end), *SLOW, "sh", "-c",
                     "[ $LOCKSTEP_RANK = 1 ] && [ $LOCKSTEP_ROUND = 0 ] && exit 7; "
                     "[ $LOCKSTEP_RANK = 2 ] && [ $LOCKSTEP_ROUND = 1 ] && kill -9 $$; "
                     "[ $LOCKSTEP_ROUND = 2 ] || exec sleep 1000; "
                     "echo round $LOCKSTEP_ROUND of $LOCKSTEP_RESTARTS: $LOCKSTEP_RANK of $LOCKSTEP_WORLD_SIZE")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(lines(result.stdout), [f"[{r}] round 2 of 3: {r} of 3" for r in range(3)])
        for said in ("first failure: rank 1 exited with code 7\n", "round 1 begins with 3 ranks, after 1 of at most 3 restarts\n",
                     "first failure: rank 2 was killed by signal 9 (SIGKILL)\n", "round 2 begins with 3 ranks, after 2 of at most 3 restarts\n"):
            self.assertIn(said, result.stderr)
        found = json.loads(end.read_text())
        self.assertEqual((found["code"], found["round"], found["restarts"], found["first_failure"]), (0, 2, 3, None))
        self.assertEqual([(each["round"], each["code"], each["first_failure"]) for each in found["rounds"]],
                         [(0, 7, 1), (1, 137, 2), (2, 0, None)])
        self.assertEqual([each["part"] for each in found["rounds"][0]["ranks"]], ["ended", "first", "ended"])

    def test_they_are_used_up(self):
        result = run("-n", "2", "--restarts", "2", *SLOW, "sh", "-c", "echo begins; exit 5")
        self.assertEqual(result.returncode, 5)
        self.assertEqual(len(lines(result.stdout)), 6)
        self.assertNotIn("round 3", result.stderr)
        self.assertEqual(run("-n", "2", *SLOW, "sh", "-c", "[ -z \"$LOCKSTEP_ROUND$LOCKSTEP_RESTARTS\" ]",
                             LOCKSTEP_ROUND="7", LOCKSTEP_RESTARTS="9").returncode, 0)

    def test_those_that_are_left_go_on_or_all_come_back(self):
        program = "echo $LOCKSTEP_ROUND/$LOCKSTEP_WORLD_SIZE; [ $LOCKSTEP_RANK = 0 ] && exit 5; exec sleep 1000"
        for options, sizes in ((("--min-ranks", "2"), (4, 3, 2, 4, 3)), (("--min-ranks", "2", "--max-ranks", "3"), (3, 2, 3, 2, 3)),
                               ((), (4, 4, 4, 4, 4)), (("--max-ranks", "2"), (2, 2, 2, 2, 2))):
            result = run("-n", "4", "--restarts", "4", *options, *SLOW, "sh", "-c", program)
            seen = sorted(set(line.split()[1] for line in lines(result.stdout)))
            self.assertEqual(seen, [f"{round}/{size}" for round, size in enumerate(sizes)], result.stderr)

    def test_what_another_round_does_not_help(self):
        result = run("-n", "2", "--restarts", "5", "/no/such/program")
        self.assertEqual(result.returncode, 127)
        self.assertNotIn("round 1", result.stderr)

    def test_a_signal_is_the_end(self):
        job = Started("-n", "2", "--restarts", "5", *SLOW, "sh", "-c", "touch $F/$LOCKSTEP_RANK; exec sleep 1000")
        job.wait_for_files("0", "1")
        job.process.send_signal(signal.SIGTERM)
        code, _, err = job.finish()
        self.assertEqual(code, 128 + signal.SIGTERM, err)
        self.assertNotIn("round 1", err)
        job.wait_until_gone()

    def test_one_grace_for_all(self):
        # Of three that do not heed SIGTERM none has a grace of its own, and the next round begins without them.
        job = Started("-n", "4", "--restarts", "1", "--patience", "0", "--grace", "0.5", "sh", "-c",
                      "[ $LOCKSTEP_ROUND = 1 ] && exit 0; trap '' TERM; touch $F/$LOCKSTEP_RANK; "
                      "[ $LOCKSTEP_RANK = 0 ] && until [ -e $F/1 ] && [ -e $F/2 ] && [ -e $F/3 ]; do sleep 0.01; done && "
                      "exit 5; while true; do sleep 0.05; done")
        code, _, err = job.finish()
        self.assertEqual(code, 0, err)
        self.assertEqual(sorted(line.split(" did not")[0] for line in err.splitlines() if line.endswith("killed")),
                         [f"lockstep-run: rank {r}" for r in (1, 2, 3)])

    def test_signals_for_the_user_are_passed_on_in_a_later_round(self):
        program = ("import os, signal, time\n"
                   "if os.environ['LOCKSTEP_ROUND'] == '0': os._exit(5)\n"
                   "got = []\n"
                   "for each in 'SIGUSR1', 'SIGUSR2':\n"
                   "    signal.signal(getattr(signal, each), lambda *_, each=each: got.append(each))\n"
                   "open(f'{os.environ[\"F\"]}/{os.environ[\"LOCKSTEP_RANK\"]}', 'w').close()\n"
                   "while len(got) < 2: time.sleep(0.01)\n"
                   "print('got', *sorted(got))\n")
        job = Started("-n", "2", "--restarts", "1", *SLOW, sys.executable, "-c", program)
        job.wait_for_files("0", "1")
        job.process.send_signal(signal.SIGUSR2)
        job.process.send_signal(signal.SIGUSR1)
        code, out, err = job.finish()
        self.assertEqual(code, 0, err)
        self.assertEqual(lines(out), [f"[{r}] got SIGUSR1 SIGUSR2" for r in (0, 1)])

    def test_a_rank_of_an_earlier_round_is_refused(self):
        program = ('if [ $LOCKSTEP_ROUND = 0 ]; then [ $LOCKSTEP_RANK = 0 ] || exec sleep 1000; '
                   'echo $LOCKSTEP_TOKEN >$F/token; exit 5; fi; '
                   '[ $LOCKSTEP_RANK = 0 ] || exit 0; [ "$(cat $F/token)" != "$LOCKSTEP_TOKEN" ] || exit 6; '
                   f'LOCKSTEP_ROUND=0 LOCKSTEP_TOKEN=$(cat $F/token) LOCKSTEP_REPORTS= {RANK} 5000 2>&1 >/dev/null | tee $F/said; exit 0')
        job = Started("-n", "2", "--restarts", "1", *SLOW, "sh", "-c", program)
        code, out, err = job.finish()
        self.assertEqual(code, 0, err)
        self.assertIn("has another token than this rank, which is of round 0 of its job: has a later one begun?", out)

    def test_logs_go_on(self):
        logs = self.folder / "logs"
        run("-n", "2", "--restarts", "1", "--log-dir", str(logs), *SLOW, "sh", "-c",
            "echo round $LOCKSTEP_ROUND; [ $LOCKSTEP_RANK = 1 ] && exit 5; exec sleep 1000")
        self.assertEqual((logs / "rank1.log").read_text(), "round 0\nround 1\n")

    def nodes(self, *program, restarts="2"):
        self.master = f"127.0.0.1:{free_port()}"
        return [self.node(node, *program, restarts=restarts) for node in (0, 1)]

    def node(self, node, *program, restarts="2"):
        return Started("-n", "2", "--nnodes", "2", "--node-rank", str(node), "--master", self.master, "--restarts", restarts,
                       "--timeout", str(SOON), *SLOW, *program, G=str(self.folder))

    def test_on_two_nodes(self):
        program = "[ $LOCKSTEP_ROUND = 1 ] && echo well && exit 0; [ $LOCKSTEP_RANK = 3 ] && exit 7; exec sleep 1000"
        for code, out, err in [job.finish() for job in self.nodes("sh", "-c", program)]:
            self.assertEqual((code, len(lines(out))), (0, 2), err)
            self.assertIn("first failure: rank 3 exited with code 7\n", err)
            self.assertIn("round 1 begins with 4 ranks on nodes 0, 1, after 1 of at most 2 restarts\n", err)

    def test_a_node_that_is_killed_is_noticed_and_one_that_comes_back_joins_the_next_round(self):
        program = ("touch $F/$LOCKSTEP_RANK.$LOCKSTEP_ROUND; [ $LOCKSTEP_ROUND = 0 ] && exec sleep 1000; "
                   "echo round $LOCKSTEP_ROUND")
        first, second = self.nodes("sh", "-c", program)
        first.wait_for_files("0.0", "1.0")
        second.wait_for_files("2.0", "3.0")
        second.process.kill()
        second.finish()
        self.assertIn("node 1 is gone: its lockstep-run has ended (", first.process.stderr.readline())
        third = self.node(1, "sh", "-c", program)
        for code, out, err in (first.finish(), third.finish()):
            self.assertEqual(code, 0, err)
            self.assertEqual(len(lines(out)), 2, out)

    def test_a_signal_on_one_node_ends_all_rounds(self):
        jobs = self.nodes("sh", "-c", "touch $F/$LOCKSTEP_RANK; exec sleep 1000")
        jobs[0].wait_for_files("0", "1")
        jobs[1].wait_for_files("2", "3")
        jobs[1].process.send_signal(signal.SIGTERM)
        for code, _, err in [job.finish() for job in jobs]:
            self.assertEqual(code, 128 + signal.SIGTERM, err)
            self.assertNotIn("round 1", err)


if __name__ == "__main__":
    main()
