"""Tests of lockstep-run: --restarts on several nodes, which come and go. See launcher.py for how it is started."""
import pathlib
import signal
import socket
import sys

from coming_nodes import HOLD, ComingNodes
from launcher import RANK, SOON, main, wait_until


class Membership(ComingNodes):
    def test_too_few_are_left(self):
        first, *others = self.nodes("--join-timeout", "2", least=3)  # of 2 ranks per node: 4
        self.wait_for_round(0, 6)
        self.kill(*others)
        self.check(first, 1, "round 1 waits for nodes: it has 2 ranks (nodes 0), at least 4 are asked for\n",
                   "round 1 has 2 ranks (nodes 0), at least 4 are asked for, and no others came within 2 s (--join-timeout)\n")
        self.assertNotIn("round 1 begins", first.said)

    def test_restarts_are_used_up(self):
        program = "[ $LOCKSTEP_RANK = 3 ] && exit 7; exec sleep 1000"
        for job in self.nodes(of=(0, 1), nnodes=2, restarts=1, program=program):
            self.check(job, 7, "round 1 begins with 4 ranks on nodes 0, 1, after 1 of at most 1 restarts\n")
            self.assertNotIn("round 2", job.said)

    def test_a_node_goes_while_a_round_is_formed(self):
        first, third = self.nodes(of=(0, 2), least=6)
        self.until_it_says(first, "round 0 waits for nodes: it has 4 ranks (nodes 0, 2), at least 6 are asked for\n")
        self.kill(third)
        self.until_it_says(first, "round 0 waits for nodes: it has 2 ranks (nodes 0), at least 6 are asked for\n")
        second = self.node(1, least=6)
        self.until_it_says(first, "round 0 waits for nodes: it has 4 ranks (nodes 0, 1), at least 6 are asked for\n")
        third = self.node(2, least=6)
        self.wait_for_round(0, 6)
        self.end()
        for job in (first, second, third):
            self.check(job, 0)
            self.assertNotIn("begins with", job.said)  # it is the first round, of all

    def test_a_node_of_an_earlier_round_comes_late(self):
        # Its launcher sleeps through a round. What its ranks knew is of no use then.
        late = ("[ $LOCKSTEP_ROUND.$LOCKSTEP_RANK = 0.2 ] && echo $LOCKSTEP_TOKEN >$G/token; "
                "[ $LOCKSTEP_ROUND.$LOCKSTEP_RANK = 1.0 ] && LOCKSTEP_TOKEN=$(cat $G/token) LOCKSTEP_ROUND=0 "
                f"LOCKSTEP_REPORTS= {RANK} 5000 >$G/refused 2>&1; ")
        first, second = self.nodes(of=(0, 1), nnodes=2, program=late + HOLD)
        self.wait_for_round(0, 4)
        second.process.send_signal(signal.SIGSTOP)
        try:
            self.wait_for_round(1, 2)
        finally:
            second.process.send_signal(signal.SIGCONT)
        self.wait_for_round(2, 4)
        self.end()
        self.check(first, 0, "node 1 was silent for 3 s", "round 2 begins with 4 ranks on nodes 0, 1, after 1 of at most 3 restarts\n")
        self.check(second, 0, "lost the other nodes: ", "round 2 begins with 4 ranks on nodes 0, 1",
                   out=["[2] 2: 2 of 4", "[3] 2: 3 of 4"])
        self.assertNotIn("0 2 4", second.said)
        self.assertIn("has another token than this rank, which is of round 0 of its job: has a later one begun?",
                      (self.folder / "refused").read_text())

    def test_more_than_are_asked_for(self):
        options = ("--max-ranks", "5")  # of 2 ranks per node: 4
        program = HOLD.replace("until [ -e $G/end ]", "until [ -e $G/end ] || [ $LOCKSTEP_ROUND.$LOCKSTEP_RANK = 0.3 -a -e $G/go ]")
        how = {"nnodes": 2, "program": program + "; [ -e $G/end ] || exit 5"}
        first, second = self.nodes(*options, of=(0, 9), **how)
        self.wait_for_round(0, 4)
        spare = self.node(7, *options, **how)
        self.until_it_says(spare, "round 0 is under way with 4 ranks (nodes 0, 9): node 7 waits for one of them to go, since "
                           "more than 4 are not asked for\n")
        (self.folder / "go").touch()  # a rank fails: those of the round before come first
        self.wait_for_round(1, 4)
        self.until_it_says(spare, "round 1 is under way with 4 ranks (nodes 0, 9): node 7 waits")
        impatient = self.node(8, *options, **how)
        self.until_it_says(impatient, "node 8 waits")
        impatient.process.terminate()
        self.check(impatient, 128 + signal.SIGTERM, "ended by signal 15 (SIGTERM)\n")
        self.kill(second)
        self.wait_for_round(2, 4)
        another = self.node(8, *options, **how)
        self.until_it_says(another, "(nodes 0, 7): node 8 waits")
        self.end()
        self.check(another, 0, "the job has ended while this node waited: well\n", out=[])
        self.check(spare, 0, "round 2 begins with 4 ranks on nodes 0, 7, after 2 of at most 3 restarts\n",
                   out=["[2] 2: 2 of 4", "[3] 2: 3 of 4"])
        self.check(first, 0, "first failure: rank 3 exited with code 5", "node 9 is gone: its lockstep-run has ended")

    def test_those_that_are_expected_come_before_spares(self):
        how = {"nnodes": 2, "least": None, "silent": str(100 * SOON)}
        first = self.node(0, **how)
        spare = self.one_that_has_come(7, **how)
        second = self.node(1, **how)
        self.until_it_says(spare, "round 0 is under way with 4 ranks (nodes 0, 1): node 7 waits for one of them to go, since "
                           "more than 4 are not asked for\n")
        self.end()
        for job in (first, second, spare):
            self.check(job, 0)

    def test_a_round_that_ends_is_left_alone(self):
        options = ("--max-ranks", "6")
        first, second = self.nodes(*options, of=(0, 1), nnodes=2, program="[ $LOCKSTEP_RANK = 3 ] && exit 0; "
                                   f"[ $LOCKSTEP_RANK = 0 ] && {RANK} told && touch $G/told; " + HOLD)
        wait_until(lambda: (self.folder / "told").exists(), "node 0 knows of a rank that has ended")
        spare = self.node(2, *options, nnodes=2)
        self.until_it_says(spare, "node 2 waits for the next round")
        self.check(self.node(2, *options, nnodes=2, silent=str(SOON)), 2, "got two with --node-rank 2")  # some beats later
        self.end()
        self.check(spare, 0, "the job has ended while this node waited: well\n", out=[])
        for job in (first, second):
            self.check(job, 0)
            self.assertNotIn("has come", job.said)

    def test_one_node_grows(self):
        options, how = ("--max-ranks", "4"), {"nnodes": 1, "ranks": 1, "least": 1}
        first = self.node(0, *options, **how)
        self.wait_for_round(0, 1)
        second = self.node(1, *options, **how)
        self.wait_for_round(1, 2)
        self.end()
        for job in (first, second):
            self.check(job, 0, "round 1 begins with 2 ranks on nodes 0, 1, after 0 of at most 3 restarts\n")

    def test_a_number_that_is_taken(self):
        first, second = self.nodes(of=(0, 1), nnodes=2, silent=str(SOON))
        self.wait_for_round(0, 4)
        self.check(self.node(1, nnodes=2, silent=str(SOON)), 2, "expected one lockstep-run per node, got two with --node-rank 1")
        second.process.send_signal(signal.SIGSTOP)  # it does not show that it is alive
        third = self.node(1, nnodes=2, silent=str(SOON))
        self.until_it_says(third, "another lockstep-run came with --node-rank 1: this one waits until that one has gone, or is silent for "
                           "120 s\n")
        third.process.terminate()
        self.check(third, 128 + signal.SIGTERM, out=[])
        second.process.send_signal(signal.SIGCONT)
        self.end()
        for job in (first, second):
            self.check(job, 0)

    def test_nodes_that_do_not_fit(self):
        first = self.node(0, nnodes=2)
        self.check(self.node(1, nnodes=2, least=3), 2, "2 nodes of 2 ranks with 3 restarts, at least 3 on node 1 and 2 nodes of "
                   "2 ranks with 3 restarts, at least 2 on another")
        first.process.terminate()
        self.check(first, 128 + signal.SIGTERM, "ended by signal 15 (SIGTERM)\n")

    def test_node_0_goes(self):
        first, second, spare = self.nodes("--max-ranks", "4", nnodes=2, silent=str(100 * SOON))
        self.wait_for_round(0, 4)
        self.until_it_says(spare, "node 2 waits")
        self.kill(first)
        for job in (second, spare):
            if job is second:
                self.until_it_says(job, " (node 0 has the job's store: nobody goes on without it): ending the ranks\n")
            self.check(job, 1, "lost node 0, which has the job's store: nobody goes on without it: nobody listens at "
                       f"{self.master} any more\n")
            job.wait_until_gone()

    def test_node_0_is_started_anew(self):
        how = {"nnodes": 2, "silent": str(SOON), "grace": str(SOON), "program": "trap '' TERM; " + HOLD}
        first, second = self.nodes(of=(0, 1), **how)
        self.wait_for_round(0, 4)
        self.kill(first)
        self.until_it_says(second, "nobody goes on without it): ending the ranks\n")  # which takes them until it is there anew
        first = self.node(0, **how)
        wait_until(lambda: listens(self.master), "node 0 is there anew")
        self.end()
        self.check(second, 1, "node 0 was started anew, and has another job: nobody goes on without the first\n")
        first.process.terminate()
        self.check(first, 128 + signal.SIGTERM)

    def test_a_signal_ends_the_job_in_a_later_round_and_while_one_is_formed(self):
        jobs = self.nodes(of=(0, 1), nnodes=2, program="[ $LOCKSTEP_ROUND.$LOCKSTEP_RANK = 0.0 ] && exit 5; " + HOLD)
        self.wait_for_round(1, 4)
        jobs[1].process.terminate()
        for job in jobs:
            self.check(job, 128 + signal.SIGTERM, "ended by signal 15 (SIGTERM)")
            self.assertNotIn("round 2", job.said)
        waiting = self.nodes(of=(0, 2), least=6)
        self.until_it_says(waiting[0], "nodes 0, 2")
        waiting[1].process.terminate()
        for job in waiting:
            self.check(job, 128 + signal.SIGTERM, "ended by signal 15 (SIGTERM)\n", out=[])

    def test_a_signal_while_a_round_ends(self):
        # The ranks do not heed SIGTERM, so that the round is still ending when the signal comes.
        program = ("trap '' TERM; echo $LOCKSTEP_ROUND $LOCKSTEP_RANK $LOCKSTEP_WORLD_SIZE >>$G/ranks; "
                   "[ $LOCKSTEP_RANK = 0 ] && until [ -e $G/go ]; do sleep 0.02; done && exit 5; "
                   "until [ -e $G/end ]; do sleep 0.02; done; exit 6")
        jobs = self.nodes(of=(0, 1), nnodes=2, program=program, grace=str(SOON))
        self.wait_for_round(0, 4)
        (self.folder / "go").touch()
        self.until_it_says(jobs[1], "a rank of another node has failed")
        jobs[1].process.terminate()
        wait_until(lambda: not signal_pending(jobs[1].process.pid, signal.SIGTERM), "the signal is taken")
        self.end()
        for job in jobs:
            self.check(job, 128 + signal.SIGTERM, "first failure: rank 0 exited with code 5", "ended by signal 15 (SIGTERM)\n")
            self.assertNotIn("round 1", job.said)

    def test_signals_for_the_user_are_passed_on_and_one_grace_is_for_all(self):
        # The first round ends by SIGKILL: its ranks do not heed SIGTERM.
        program = ("import os, pathlib, signal, time\n"
                   "here, name = pathlib.Path(os.environ['G']), os.environ['LOCKSTEP_RANK']\n"
                   "got = []\n"
                   "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                   "for each in 'SIGUSR1', 'SIGUSR2':\n"
                   "    signal.signal(getattr(signal, each), lambda *_, each=each: got.append(each))\n"
                   "with (here / 'ranks').open('a') as file:\n"
                   "    file.write(f'{os.environ[\"LOCKSTEP_ROUND\"]} {name} 4\\n')\n"
                   "if os.environ['LOCKSTEP_ROUND'] == '0':\n"
                   "    while name != '0' or not (here / 'go').exists(): time.sleep(0.01)\n"
                   "    os._exit(5)\n"
                   "while len(got) < 2 and not (here / 'end').exists(): time.sleep(0.01)\n"
                   "print('got', *sorted(got))\n")
        (self.folder / "program.py").write_text(program)
        jobs = self.nodes(of=(0, 1), nnodes=2, program=f"exec {sys.executable} $G/program.py")
        self.wait_for_round(0, 4)
        (self.folder / "go").touch()
        self.wait_for_round(1, 4)
        jobs[1].process.send_signal(signal.SIGUSR2)
        jobs[1].process.send_signal(signal.SIGUSR1)
        got = "got SIGUSR1 SIGUSR2"
        self.assertEqual({jobs[1].process.stdout.readline() for _ in range(2)}, {f"[2] {got}\n", f"[3] {got}\n"})
        self.end()
        self.check(jobs[0], 0, "rank 1 did not end within 1 s: killed", out=["[0] got", "[1] got"])
        self.check(jobs[1], 0, "rank 2 did not end within 1 s: killed", "rank 3 did not end within 1 s: killed")


def listens(address):
    host, port = address.split(":")
    with socket.socket() as caller:
        return caller.connect_ex((host, int(port))) == 0


def signal_pending(process, number):
    """Whether it was sent, and has not been taken."""
    status = pathlib.Path(f"/proc/{process}/status").read_text()
    pending = next(line for line in status.splitlines() if line.startswith("ShdPnd:")).split()[1]
    return bool(int(pending, 16) >> (number - 1) & 1)


if __name__ == "__main__":
    main()
