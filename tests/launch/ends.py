"""Tests of lockstep-run: how a job ends. See launcher.py for how it is started."""
import signal
import subprocess
import unittest

from launcher import RUN, SOON, Started, environment, lines, main, run


class Ends(unittest.TestCase):
    def test_the_code_of_the_rank_that_failed_first(self):
        for code in (1, 2, 77, 255):
            result = run("-n", "3", "--patience", "0.1", "sh", "-c",
                         f"[ $LOCKSTEP_RANK = 1 ] && exit {code}; exec sleep 1000")
            self.assertEqual(result.returncode, code)
            self.assertIn(f"rank 1 exited with code {code}", result.stderr)

    def test_a_rank_that_is_killed(self):
        for name in ("KILL", "SEGV", "TERM"):
            result = run("-n", "3", "--patience", "0.1", "sh", "-c",
                         f"[ $LOCKSTEP_RANK = 2 ] && kill -{name} $$; exec sleep 1000")
            number = getattr(signal, "SIG" + name)
            self.assertEqual(result.returncode, 128 + number)
            self.assertIn(f"rank 2 was killed by signal {int(number)}", result.stderr)

    def test_ranks_may_end_at_different_times(self):
        result = run("-n", "3", "sh", "-c", "[ $LOCKSTEP_RANK = 0 ] || sleep 0.1; echo done")
        self.assertEqual((result.returncode, lines(result.stdout)), (0, [f"[{r}] done" for r in range(3)]))

    def test_the_others_are_asked_before_they_are_killed(self):
        job = Started("-n", "2", "--patience", "0.1", "--grace", "100", "sh", "-c",
                      "if [ $LOCKSTEP_RANK = 1 ]; then while [ ! -e $F/0 ]; do sleep 0.01; done; exit 5; fi; "
                      "trap 'echo saved; exit 0' TERM; touch $F/0; while :; do sleep 0.01; done")
        code, out, _ = job.finish()
        self.assertEqual((code, out), (5, "[0] saved\n"))

    def test_a_rank_that_ignores_the_signal(self):
        job = Started("-n", "2", "--patience", "0.1", "--grace", "0.2", "sh", "-c",
                      "if [ $LOCKSTEP_RANK = 1 ]; then while [ ! -e $F/0 ]; do sleep 0.01; done; exit 5; fi; "
                      "trap '' TERM; touch $F/0; while :; do sleep 0.01; done")
        code, _, err = job.finish()
        self.assertEqual(code, 5)
        self.assertIn("rank 0 did not end within 0.2 s: killed", err)
        job.wait_until_gone()

    def test_a_rank_that_is_stopped_ends_too(self):
        job = Started("-n", "2", "--patience", "0.1", "--grace", "100", "sh", "-c",
                      "if [ $LOCKSTEP_RANK = 1 ]; then while [ ! -e $F/0 ]; do sleep 0.01; done; exit 5; fi; "
                      "touch $F/0; kill -STOP $$")
        self.assertEqual(job.finish()[0], 5)

    def test_signals_end_the_job(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            job = Started("-n", "2", "sh", "-c", "touch $F/$LOCKSTEP_RANK; exec sleep 1000")
            job.wait_for_files("0", "1")
            job.process.send_signal(number)
            code, _, err = job.finish()
            self.assertEqual(code, 128 + number)
            self.assertIn(f"ended by signal {int(number)}", err)
            job.wait_until_gone()

    def test_the_second_signal_ends_it_at_once(self):
        job = Started("-n", "1", "--grace", "100000", "sh", "-c",
                      "trap 'touch $F/again' INT; touch $F/0; while :; do sleep 0.01; done")
        job.wait_for_files("0")
        job.process.send_signal(signal.SIGINT)
        job.wait_for_files("again")
        job.process.send_signal(signal.SIGINT)
        self.assertEqual(job.finish()[0], 130)
        job.wait_until_gone()

    def test_a_parent_that_ignores_the_ends_of_its_children(self):
        result = subprocess.run([RUN, "-n", "2", "sh", "-c", "exit 7"], capture_output=True, text=True, timeout=SOON,
                                env=environment(), preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        self.assertEqual(result.returncode, 7)

    def test_other_signals_are_passed_on(self):
        job = Started("-n", "2", "sh", "-c", "trap 'echo got it; exit 0' USR1; touch $F/$LOCKSTEP_RANK; "
                      "while :; do sleep 0.01; done")
        job.wait_for_files("0", "1")
        job.process.send_signal(signal.SIGUSR1)
        code, out, _ = job.finish()
        self.assertEqual((code, lines(out)), (0, ["[0] got it", "[1] got it"]))


if __name__ == "__main__":
    main()
