"""Tests of lockstep-run: which rank it names when several have failed. See launcher.py for how it is started."""
import sys
import unittest

from launcher import DRILL, SAY, SOON, Started, main


class FailedFirst(unittest.TestCase):
    """What ranks say of each other is sent by hand here; tests/launch/drill.py has real ranks."""

    def first(self, ranks, program, patience=SOON):
        job = Started("-n", str(ranks), "--patience", str(patience), sys.executable, "-c", SAY + program)
        code, _, err = job.finish()
        return code, err.split("first failure: ")[1].splitlines()[0], err

    def test_who_is_named_comes_before_who_was_sooner(self):
        code, name, err = self.first(3, "if rank == 1: wait(0, 2); time.sleep(0.1); sys.exit(9)\n"
                                        "say('1 [all_reduce] rank 1 died'); leave(40 + rank)")
        self.assertEqual((code, name), (9, "rank 1 exited with code 9"))
        for rank in (0, 2):
            self.assertRegex(err, rf"rank {rank} on .*, process [0-9]+, .*: exited with code {40 + rank} because of "
                                  r"rank 1: \[all_reduce\] rank 1 died")

    def test_names_are_followed(self):
        code, name, _ = self.first(3, "if rank == 2: wait(0, 1); os.kill(os.getpid(), 9)\n"
                                      "say(f'{rank + 1} it died'); leave(40 + rank)")
        self.assertEqual((code, name), (137, "rank 2 was killed by signal 9 (SIGKILL)"))

    def test_in_a_circle_who_spoke_first_is_right(self):
        code, name, _ = self.first(2, "if rank == 0: say('1 it died'); leave(40)\n"
                                      "wait(0); say('0 it died'); sys.exit(41)")
        self.assertEqual((code, name), (41, "rank 1 exited with code 41"))

    def test_one_who_does_not_know_is_not_the_first(self):
        code, name, _ = self.first(2, "if rank == 0: say('? the store is gone'); leave(40)\nwait(0); sys.exit(7)")
        self.assertEqual((code, name), (7, "rank 1 exited with code 7"))

    def test_what_was_overcome_does_not_count(self):
        code, name, _ = self.first(2, "if rank == 0: say('1 it died'); say('well'); leave(40)\nwait(0); sys.exit(7)")
        self.assertEqual((code, name), (40, "rank 0 exited with code 40"))

    def test_one_who_ended_well_too_early(self):
        code, name, _ = self.first(2, "if rank == 1: leave(0)\nwait(1); say('1 it left'); sys.exit(40)")
        self.assertEqual((code, name), (40, "rank 1 exited with code 0"))

    def test_one_who_is_stopped_or_silent(self):
        for late in ("1", "0", "?"):  # who was late may have waited for one that is stopped
            code, name, _ = self.first(2, f"if rank == 1: os.kill(os.getpid(), 19)\nsay('{late} it is late'); sys.exit(40)")
            self.assertEqual((code, name), (147, "rank 1 was stopped by signal 19 (SIGSTOP)"))
        code, name, err = self.first(2, "if rank == 1: time.sleep(1000)\nsay('1 it is late'); sys.exit(40)",
                                     patience=0.1)
        self.assertEqual((code, name), (40, "rank 1 did not end by itself"))

    def test_the_last_error_of_one_who_says_nothing(self):
        _, _, err = self.first(1, "print('first', file=sys.stderr); print('then\\n', file=sys.stderr); sys.exit(3)")
        self.assertRegex(err, "rank 0 on .*: exited with code 3: then\n")

    def test_a_rank_that_exits_before_it_joins_is_named_at_once(self):
        for how, number, said in (("exit", 0, "exited with code 0"), ("quick", 7, "exited with code 7"),
                                  ("raise", 9, "was killed by signal 9 (SIGKILL)")):
            for rank in (0, 2):
                job = Started("-n", "3", "--patience", str(SOON), DRILL, "joining", how, str(rank), "0", str(number),
                              "60000", "0")
                code, _, err = job.finish()
                self.assertIn(code, {0: (40, 41, 42), 7: (7,), 9: (137,)}[number])
                self.assertIn(f"first failure: rank {rank} {said}", err)
                for other in {0, 1, 2} - {rank}:
                    self.assertIn(f"[{other}] rank {other} noticed: [make_communicator] rank {rank} {said} before it "
                                  "joined", err)

    def test_ranks_of_a_split_have_their_numbers_in_the_job(self):
        job = Started("-n", "4", "--patience", str(SOON), DRILL, "chain", "throw", "3", "5", "7", "60000", "500")
        code, _, err = job.finish()
        self.assertEqual(code, 7)
        self.assertIn("first failure: rank 3 exited with code 7", err)

    def test_the_others_get_a_moment(self):
        code, _, err = self.first(2, "if rank == 1: sys.exit(9)\ntime.sleep(0.5); print('my word', file=sys.stderr)")
        self.assertEqual(code, 9)
        self.assertIn("[0] my word\n", err)
        self.assertIn(f"rank 1 exited with code 9: the others have {SOON} s to end by themselves", err)


if __name__ == "__main__":
    main()
