"""Tests of lockstep-run: what it does with the output of ranks. See launcher.py for how it is started."""
import pathlib
import signal
import subprocess
import sys
import time
import unittest

from launcher import RUN, SOON, Started, environment, lines, main, run, wait_until, wait_until_gone
from support.jobs import processes_with


class Output(unittest.TestCase):
    def test_every_line_has_its_rank(self):
        result = run("-n", "3", "sh", "-c", "echo out; echo; echo err >&2; printf partial; printf last >&2")
        self.assertEqual(result.returncode, 0)
        self.assertEqual(lines(result.stdout), lines("".join(f"[{r}] out\n[{r}] \n[{r}] partial\n" for r in range(3))))
        self.assertEqual(lines(result.stderr), lines("".join(f"[{r}] err\n[{r}] last\n" for r in range(3))))

    def test_lines_stay_whole(self):
        program = "import sys\nfor i in range(3000): print(i, 'x' * (i % 300))"
        result = run("-n", "4", sys.executable, "-c", program)
        expected = [f"[{r}] {i} {'x' * (i % 300)}" for r in range(4) for i in range(3000)]
        self.assertEqual(lines(result.stdout), sorted(expected))

    def test_a_line_without_end_is_broken_and_all_there(self):
        result = run("-n", "1", sys.executable, "-c", "print('x' * 5_000_000)")
        self.assertEqual(sum(line.count("x") for line in result.stdout.splitlines()), 5_000_000)
        self.assertTrue(all(line.startswith("[0] ") for line in result.stdout.splitlines()))

    def test_what_a_killed_rank_wrote_is_there(self):
        program = "import os, sys; print('a line'); sys.stdout.write('tell'); sys.stdout.flush(); os.kill(os.getpid(), 9)"
        result = run("-n", "1", sys.executable, "-c", program)
        self.assertEqual((result.returncode, result.stdout), (137, "[0] a line\n[0] tell\n"))
        program = "import os; print('a line'); os.kill(os.getpid(), 9)"
        self.assertEqual(run("-n", "1", sys.executable, "-c", program).stdout, "[0] a line\n")
        self.assertEqual(run("-n", "1", "--no-pty", sys.executable, "-c", program).stdout, "")

    def test_bytes_are_passed_on_as_they_are(self):
        for option in ((), ("--no-pty",)):
            result = subprocess.run([RUN, "-n", "1", *option, "sh", "-c", r"printf 'a\rb\tc\033\004\177\377d\n'"],
                                    capture_output=True, timeout=SOON, env=environment())
            self.assertEqual(result.stdout, b"[0] a\rb\tc\033\004\177\377d\n")

    def test_no_prefix(self):
        result = run("-n", "2", "--no-prefix", "sh", "-c", "echo out; echo err >&2")
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "out\nout\n", "err\nerr\n"))

    def test_a_reader_that_goes_ends_the_job(self):
        job = Started("-n", "2", "sh", "-c", "while echo line; do :; done; sleep 1000")
        job.process.stdout.readline()
        job.process.stdout.close()
        job.process.stdout = None
        self.assertEqual(job.finish()[0], 128 + signal.SIGPIPE)
        job.wait_until_gone()

    # Writes to a standard error that takes all of it at once, and ends before anybody has read it.
    FULL = ("import fcntl, os, sys\n"
            "fcntl.fcntl(2, 1031, 1 << 20)  # F_SETPIPE_SZ\n"
            "def write(size, last):\n"
            "    text = ''.join(f'{i:06} {\"x\" * 90}\\n' for i in range(size // 98)) + last\n"
            "    if os.write(2, text.encode()) != len(text): os._exit(99)\n"
            "def leave(code):\n"
            "    open(f'{os.environ[\"F\"]}/new', 'w').write(str(os.getpid()))\n"
            "    os.rename(f'{os.environ[\"F\"]}/new', f'{os.environ[\"F\"]}/0')\n"
            "    os._exit(code)\n")

    def full(self, program):
        """A job whose one rank has gone while nothing of what it wrote is read."""
        job = Started("-n", "1", sys.executable, "-c", self.FULL + program)
        job.wait_for_files("0")
        wait_until_gone((pathlib.Path(job.folder.name) / "0").read_text())
        return job

    def check_whole(self, err, count):
        for line in err.splitlines():
            self.assertRegex(line, r"^(\[0\] ([0-9]{6} x{90}|the last line)$|lockstep-run: |  rank 0 on )")
        self.assertEqual(err.count("[0] "), count)

    def test_words_of_the_launcher_do_not_break_a_line(self):
        code, _, err = self.full("write(200_000, ''); leave(3)").finish()
        self.assertEqual(code, 3)
        self.check_whole(err, 200_000 // 98)
        self.assertIn("\nlockstep-run: rank 0 exited with code 3\n", err)

    def test_a_slow_reader_gets_all_lines_whole(self):
        # More than the launcher holds in memory and the pipe to the reader: the rest waits in the rank's own pipe.
        half = "write(900_000, '')\n"
        job = self.full(half + half.replace("''", "'the last line\\n'") + "leave(3)")
        time.sleep(3)  # longer than the launcher waits for others who hold the pipe
        code, _, err = job.finish()
        self.assertEqual(code, 3)
        self.check_whole(err, 2 * (900_000 // 98) + 1)
        self.assertRegex(err, "rank 0 on .*: exited with code 3: the last line\n")

    def test_a_slow_reader_does_not_keep_signals_away(self):
        job = Started("-n", "2", "sh", "-c", "touch $F/$LOCKSTEP_RANK; while :; do echo line; done")
        job.wait_for_files("0", "1")
        job.process.send_signal(signal.SIGTERM)
        job.process.send_signal(signal.SIGTERM)
        wait_until(lambda: len(processes_with(job.marker)) <= 2, "the ranks are gone")
        self.assertEqual(job.finish()[0], 128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
