"""Tests of lockstep-run: --restarts on several nodes, of which one cannot run the program. See launcher.py for how it is
started."""
import json
import socket

from coming_nodes import HOLD, ComingNodes
from launcher import SOON, main

HOST = socket.gethostname()
MOST = ("--max-ranks", "6")


class Unfit(ComingNodes):
    def nodes(self, *options, **how):
        return super().nodes(*options, **{"nnodes": 2, "silent": str(100 * SOON), **how})

    def file(self, name, text, mode):
        file = self.folder / name
        file.write_text(text)
        file.chmod(mode)
        return str(file)

    def goes_on(self, jobs, restarts_used, *said, size=4):
        """Round `restarts_used` + 1, after that of the newcomer."""
        self.wait_for_round(restarts_used + 1, size)
        self.end()
        for job in jobs:
            self.check(job, 0, *said)

    def test_a_newcomer_that_sees_it_does_not_come(self):
        jobs = self.nodes(*MOST, of=(0, 1))
        self.wait_for_round(0, 4)
        file = self.folder / "end.json"
        plain = self.file("plain", "text", 0o644)
        for program, code, why in (("/no/such/program", 127, "No such file or directory"),
                                   ("no-such-program", 127, "No such file or directory"),
                                   ("", 127, "No such file or directory"),
                                   (plain + "/program", 127, "Not a directory"),
                                   (plain, 126, "Permission denied"),
                                   (str(self.folder), 126, "Permission denied")):
            newcomer, = self.nodes(*MOST, "--json", str(file), of=(2,), command=(program,))
            self.check(newcomer, code, f"lockstep-run: node 2 does not take part: cannot run '{program}': {why}\n", out=[])
            self.assertEqual(json.loads(file.read_text())["code"], code)
        self.end()
        for job in jobs:
            self.check(job, 0)
            self.assertNotIn("has come", job.said)

    def test_a_newcomer_that_does_not_see_it_costs_one_restart(self):
        jobs = self.nodes(*MOST, of=(0, 1))
        self.wait_for_round(0, 4)
        script = self.file("script", "#!/no/such/interpreter\n", 0o755)
        newcomer, = self.nodes(*MOST, of=(2,), command=(script,))
        self.check(newcomer, 127, "round 1 begins with 6 ranks on nodes 0, 1, 2, after 0 of at most 3 restarts\n",
                   f"lockstep-run: node 2 takes part in no other round: cannot run '{script}': the interpreter that the file names is not there\n")
        self.goes_on(jobs, 1, f"lockstep-run: node 2 ({HOST}): cannot run '{script}': the interpreter that the file names is not there: ending the ranks\n",
                     "round 2 begins with 4 ranks on nodes 0, 1, after 1 of at most 3 restarts\n")

    def test_a_newcomer_whose_ranks_say_it_costs_one_restart(self):
        jobs = self.nodes(*MOST, of=(0, 1))
        self.wait_for_round(0, 4)
        newcomer, = self.nodes(*MOST, of=(2,), program="exec no-such-program")
        self.check(newcomer, 127)
        self.assertRegex(newcomer.said, "lockstep-run: node 2 takes part in no other round: rank [45] exited with code 127: its "
                                        "program was not found\n")
        self.goes_on(jobs, 1, "round 2 begins with 4 ranks on nodes 0, 1, after 1 of at most 3 restarts\n")
        for job in jobs:
            self.assertRegex(job.said, rf"first failure: rank [45] exited with code 127\n  rank [45] on node 2 \({HOST}\), process ")

    def test_logs_that_a_newcomer_cannot_write_cost_one_restart(self):
        jobs = self.nodes(*MOST, of=(0, 1))
        self.wait_for_round(0, 4)
        plain = self.file("plain", "text", 0o644)
        newcomer, = self.nodes(*MOST, "--log-dir", plain, of=(2,))
        self.check(newcomer, 1, "node 2 takes part in no other round: cannot make the folder")
        self.goes_on(jobs, 1, f"node 2 ({HOST}): cannot make the folder")

    def test_a_program_that_is_gone_when_a_round_has_ended(self):
        program = HOLD.replace("until [ -e $G/end ]", "until [ -e $G/end ] || [ $LOCKSTEP_ROUND.$LOCKSTEP_RANK = 0.0 -a -e $G/go ]")
        first, = self.nodes(of=(0,), program=program + "; [ -e $G/end ] || exit 5")
        script = self.file("script", "#!/bin/sh\n" + HOLD, 0o755)
        second, = self.nodes(of=(1,), command=(script,))
        self.wait_for_round(0, 4)
        (self.folder / "script").unlink()
        (self.folder / "go").touch()
        self.check(second, 127, "node 1 takes part in no other round: cannot run '")
        self.goes_on([first], 0, "round 1 begins with 2 ranks on nodes 0, after 1 of at most 3 restarts\n", size=2)

    def test_one_of_the_first_round(self):
        script = self.file("script", "#!/no/such/interpreter\n", 0o755)
        first, = self.nodes(of=(0,))
        second, = self.nodes(of=(1,), command=(script,))
        self.check(second, 127, "node 1 takes part in no other round: cannot run '")
        self.goes_on([first], 0, f"node 1 ({HOST}): cannot run '{script}': the interpreter that the file names is not there: ending the ranks\n", size=2)

    def test_ranks_of_the_first_round_that_say_it_fail_as_any_others(self):
        for job in self.nodes(of=(0, 1), restarts=1, program="[ $LOCKSTEP_RANK = 3 ] && exit 127; exec sleep 1000"):
            self.check(job, 127, "round 1 begins with 4 ranks on nodes 0, 1, after 1 of at most 1 restarts\n")
            self.assertNotIn("no other round", job.said)

    def test_node_0_ends_the_job(self):
        second, = self.nodes(of=(1,))
        first, = self.nodes(of=(0,), command=("/no/such/program",))
        for job in (first, second):
            self.check(job, 127, f"lockstep-run: node 0 ({HOST}): cannot run '/no/such/program': No such file or directory: ending the ranks\n")
            self.assertNotIn("round 1", job.said)


if __name__ == "__main__":
    main()
