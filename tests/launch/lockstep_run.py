"""Tests of lockstep-run.

usage: lockstep_run.py <lockstep-run> <lockstep-launch-rank> <lockstep-launch-drill> [<test class>...]
"""
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from support.jobs import clean_environment, free_port, processes_with  # noqa: E402

RUN, RANK, DRILL = sys.argv[1:4]
SOON = 120  # seconds, for what comes at once when it works


def environment(**variables):
    clean = clean_environment(OMP_NUM_THREADS="1")  # else lockstep-run says that it sets it
    clean.pop("PYTHONUNBUFFERED", None)
    return clean | variables


def run(*arguments, **variables):
    return subprocess.run([RUN, *arguments], capture_output=True, text=True, timeout=SOON, stdin=subprocess.DEVNULL,
                          env=environment(**variables))


def lines(text):
    return sorted(text.splitlines())


def wait_until(condition, what):
    end = time.monotonic() + SOON
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"never: {what}")
        time.sleep(0.005)


class Started:
    """A lockstep-run in the background, whose processes carry a marker."""

    def __init__(self, *arguments, **variables):
        self.folder = tempfile.TemporaryDirectory()
        self.marker = f"LAUNCH_TEST={uuid.uuid4()}"
        name, value = self.marker.split("=")
        self.process = subprocess.Popen([RUN, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env=environment(F=self.folder.name, **{name: value}, **variables))

    def wait_for_files(self, *names):
        wait_until(lambda: all((pathlib.Path(self.folder.name) / n).exists() for n in names), f"files {names}")

    def finish(self):
        out, err = self.process.communicate(timeout=SOON)
        self.folder.cleanup()
        return self.process.returncode, out, err

    def wait_until_gone(self):
        wait_until(lambda: not processes_with(self.marker), "no process is left")


def wait_until_gone(process):
    wait_until(lambda: not pathlib.Path(f"/proc/{process}").exists(), f"process {process} is gone")


class Arguments(unittest.TestCase):
    def test_help(self):
        result = run("--help")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        for word in ("--nnodes", "--node-rank", "--master", "--token-file", "--no-prefix", "--bind", "--grace", "--patience",
                     "--log-dir", "--tee", "--no-pty", "OMP_NUM_THREADS", "127"):
            self.assertIn(word, result.stdout)

    def test_wrong_arguments(self):
        for arguments, said in [
            ((), "expected a program"),
            (("-n", "0", "true"), "range"),
            (("-n", "two", "true"), "range"),
            (("--unknown", "true"), "unknown option --unknown"),
            (("--node-rank", "1", "true"), "--node-rank from 0 to 0, got 1"),
            (("--nnodes", "2", "true"), "--master"),
            (("--nnodes", "2", "--master", "here", "true"), "host:port"),
            (("--bind", "sockets", "true"), "bind"),
            (("--token-file", "/nowhere", "true"), "/nowhere"),
            (("--nnodes", "2", "--master", "192.0.2.1:29400", "true"), "token"),
        ]:
            with self.subTest(arguments):
                result = run(*arguments)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn(said, result.stderr)

    def test_program_not_found(self):
        result = run("-n", "2", "/no/such/program")
        self.assertEqual(result.returncode, 127)
        self.assertIn("cannot run '/no/such/program': No such file", result.stderr)
        self.assertEqual(run("/etc/passwd").returncode, 126)

    def test_arguments_of_the_program_are_its_own(self):
        result = run("-n", "1", "sh", "-c", 'echo "$0 $@"', "-n", "5", "--help")
        self.assertEqual((result.returncode, result.stdout), (0, "[0] -n 5 --help\n"))
        self.assertEqual(run("-n", "1", "--", "echo", "a").stdout, "[0] a\n")

    def test_token_file_of_others(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"a token for tests, 0123456789")
            file.flush()
            os.chmod(file.name, 0o644)
            result = run("--token-file", file.name, "true")
            self.assertEqual(result.returncode, 2)
            self.assertIn("only its owner", result.stderr)
            os.chmod(file.name, 0o600)
            self.assertEqual(run("--token-file", file.name, "true").returncode, 0)


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


class Environment(unittest.TestCase):
    def test_ranks_know_who_they_are(self):
        result = run("-n", "3", "sh", "-c", "echo $LOCKSTEP_RANK/$LOCKSTEP_WORLD_SIZE "
                     "$LOCKSTEP_LOCAL_RANK/$LOCKSTEP_LOCAL_SIZE ${LOCKSTEP_STORE%:*} ${#LOCKSTEP_TOKEN}")
        self.assertEqual(lines(result.stdout), [f"[{r}] {r}/3 {r}/3 127.0.0.1 64" for r in range(3)])

    def test_the_users_settings_stay(self):
        result = run("-n", "1", "sh", "-c", "echo $OMP_NUM_THREADS ${OMP_PROC_BIND-none} $LANG; cat", OMP_NUM_THREADS="3",
                     LANG="xyz")
        self.assertEqual(result.stdout, "[0] 3 none xyz\n")

    def test_several_ranks_get_a_thread_each(self):
        def threads(*options, **variables):
            variables = {k: v for k, v in environment(**variables).items() if v is not None}
            result = subprocess.run([RUN, *options, "sh", "-c", "echo ${OMP_NUM_THREADS-unset}"], capture_output=True,
                                    text=True, timeout=SOON, env=variables)
            return lines(result.stdout), result.stderr.count("OMP_NUM_THREADS is not set: each of the 2 ranks gets 1")

        self.assertEqual(threads("-n", "2", OMP_NUM_THREADS=None), (["[0] 1", "[1] 1"], 1))
        self.assertEqual(threads("-n", "2", OMP_NUM_THREADS="3"), (["[0] 3", "[1] 3"], 0))
        self.assertEqual(threads("-n", "1", OMP_NUM_THREADS=None), (["[0] unset"], 0))
        self.assertEqual(threads("-n", "2", "--bind", "cores", OMP_NUM_THREADS=None), (["[0] unset", "[1] unset"], 0))

    def test_the_token_file_becomes_the_token(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"a token for tests, 0123456789\n")
            file.flush()
            result = run("-n", "1", "--token-file", file.name, "sh", "-c", 'echo "$LOCKSTEP_TOKEN" $LOCKSTEP_TOKEN_FILE',
                         LOCKSTEP_TOKEN_FILE="/nowhere")
        self.assertEqual(result.stdout, "[0] a token for tests, 0123456789\n")

    def test_ranks_meet_in_the_store(self):
        for ranks in (1, 2, 5):
            result = run("-n", str(ranks), RANK)
            everybody = "".join(f" {r}/{ranks}:{r}/{ranks}" for r in range(ranks))
            self.assertEqual(lines(result.stdout), [f"[{r}] lockstep-run{everybody}" for r in range(ranks)], result.stderr)

    def test_cores_are_shared(self):
        program = "import os; print(*sorted(os.sched_getaffinity(0)))"
        cores = sorted(os.sched_getaffinity(0))
        result = run("-n", "2", "--bind", "cores", sys.executable, "-c", program)
        shares = [list(map(int, line.split()[1:])) for line in sorted(result.stdout.splitlines())]
        if len(cores) == 1:
            self.assertEqual(shares, [cores, cores])
        else:
            self.assertEqual(shares[0] + shares[1], cores)
            self.assertLessEqual(abs(len(shares[0]) - len(shares[1])), 1)
        result = run("-n", "1", sys.executable, "-c", program)
        self.assertEqual(result.stdout, f"[0] {' '.join(map(str, cores))}\n")

    def test_a_job_in_a_job(self):
        result = run("-n", "2", RUN, "-n", "2", "sh", "-c", "echo $LOCKSTEP_RANK of $LOCKSTEP_WORLD_SIZE")
        self.assertEqual(lines(result.stdout), [f"[{a}] [{b}] {b} of 2" for a in range(2) for b in range(2)])


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


class FailedFirst(unittest.TestCase):
    """What ranks say of each other is sent by hand here; tests/launch/drill.py has real ranks."""

    SAY = ("import os, socket, sys, time\n"
           "rank = int(os.environ['LOCKSTEP_RANK'])\n"
           "def say(text):\n"
           "    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
           "    s.sendto(f'{rank} {text}'.encode(), '\\0' + os.environ['LOCKSTEP_REPORTS'])\n"
           "def wait(*others):\n"
           "    while not all(os.path.exists(f'{os.environ[\"F\"]}/{o}') for o in others): time.sleep(0.005)\n"
           "def leave(code):\n"
           "    open(f'{os.environ[\"F\"]}/{rank}', 'w').close()\n"
           "    os._exit(code)\n")

    def first(self, ranks, program, patience=SOON):
        job = Started("-n", str(ranks), "--patience", str(patience), sys.executable, "-c", self.SAY + program)
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


class Logs(unittest.TestCase):
    PROGRAM = ("sh", "-c", "echo out $LOCKSTEP_RANK; echo err >&2; printf partial")

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.logs = pathlib.Path(self.folder.name) / "a folder" / "logs"

    def texts(self):
        return [lines((self.logs / f"rank{r}.log").read_text()) for r in range(2)]

    def test_a_file_for_each_rank(self):
        for _ in range(2):  # the files of before are replaced
            result = run("-n", "2", "--log-dir", str(self.logs), *self.PROGRAM)
            self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))
            self.assertEqual(self.texts(), [["err", f"out {r}", "partial"] for r in range(2)])
        self.assertEqual(len(list(self.logs.iterdir())), 2)

    def test_tee(self):
        for options, prefixes in (((), ("[0] ", "[1] ")), (("--no-prefix",), ("", ""))):
            result = run("-n", "2", "--log-dir", str(self.logs), "--tee", *options, *self.PROGRAM)
            self.assertEqual(self.texts(), [["err", f"out {r}", "partial"] for r in range(2)])
            self.assertEqual(lines(result.stdout),
                             sorted(f"{p}{word}" for r, p in enumerate(prefixes) for word in (f"out {r}", "partial")))
            self.assertEqual(result.stderr, "".join(f"{p}err\n" for p in prefixes))
        self.assertEqual(run("--tee", "true").returncode, 2)

    def test_a_folder_that_cannot_be_made(self):
        result = run("-n", "2", "--log-dir", "/proc/logs", "echo", "started")
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn("cannot make the folder '/proc/logs': No such file or directory", result.stderr)

    def test_a_file_that_cannot_be_written(self):
        self.logs.mkdir(parents=True)
        (self.logs / "rank1.log").mkdir()
        result = run("-n", "2", "--log-dir", str(self.logs), "echo", "started")
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn(f"cannot write '{self.logs}/rank1.log': Is a directory", result.stderr)

    def test_a_full_disk_does_not_end_the_job(self):
        self.logs.mkdir(parents=True)
        (self.logs / "rank1.log").symlink_to("/dev/full")
        result = run("-n", "2", "--log-dir", str(self.logs), "sh", "-c", "echo one; echo two")
        self.assertEqual((result.returncode, result.stdout), (0, "[1] one\n[1] two\n"))
        self.assertEqual(result.stderr, f"lockstep-run: cannot write '{self.logs}/rank1.log': No space left on device: "
                                        "the lines of rank 1 follow here\n")
        self.assertEqual((self.logs / "rank0.log").read_text(), "one\ntwo\n")


class LeftBehind(unittest.TestCase):
    CHILDREN = "sleep 1000 & setsid sleep 1000 & (setsid sh -c 'sleep 1000; true' &) ; touch $F/$LOCKSTEP_RANK; "

    def test_children_of_ranks_that_have_ended_well(self):
        job = Started("-n", "2", "sh", "-c", self.CHILDREN + "exit 0")
        self.assertEqual(job.finish()[0], 0)
        self.assertEqual(processes_with(job.marker), {})

    def test_children_of_ranks_that_fail(self):
        job = Started("-n", "2", "--grace", "0.1", "sh", "-c", self.CHILDREN + "exit 4")
        self.assertEqual(job.finish()[0], 4)
        self.assertEqual(processes_with(job.marker), {})

    def test_all_when_the_launcher_is_killed(self):
        job = Started("-n", "2", "sh", "-c", self.CHILDREN + "trap '' TERM HUP INT; exec sleep 1000")
        job.wait_for_files("0", "1")
        self.assertGreater(len(processes_with(job.marker)), 6)
        job.process.kill()
        self.assertEqual(job.finish()[0], -signal.SIGKILL)
        job.wait_until_gone()

    def test_all_when_the_launcher_is_killed_while_a_job_in_the_job_runs(self):
        job = Started("-n", "1", RUN, "-n", "2", "sh", "-c", self.CHILDREN + "exec sleep 1000")
        job.wait_for_files("0", "1")
        job.process.kill()
        job.finish()
        job.wait_until_gone()

    def test_what_was_written_while_somebody_else_holds_the_pipe(self):
        # Without the job's variables it is not known as one of its processes.
        job = Started("-n", "1", "sh", "-c", "printf partial; setsid env -i sh -c \"touch $F/there; exec sleep 10\" & "
                      "while [ ! -e $F/there ]; do sleep 0.01; done; exit 0")
        code, out, _ = job.finish()
        self.assertEqual((code, out), (0, "[0] partial\n"))

    def test_the_stores_port(self):
        job = Started("-n", "1", "sh", "-c", "echo $LOCKSTEP_STORE > $F/new; mv $F/new $F/0; exec sleep 1000")
        job.wait_for_files("0")
        host, port = (pathlib.Path(job.folder.name) / "0").read_text().strip().split(":")
        socket.create_connection((host, int(port))).close()
        job.process.terminate()
        job.finish()
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))


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
            jobs = self.nodes("sh", "-c", "touch $F/$LOCKSTEP_RANK; exec sleep 1000", options=("--timeout", "3"))
            jobs[0].wait_for_files("0", "1")
            jobs[1].wait_for_files("2", "3")
            jobs[killed].process.kill()
            jobs[killed].finish()
            code, _, err = jobs[1 - killed].finish()
            self.assertEqual(code, 1)
            self.assertIn("node 1 was silent for 3 s" if killed else "lost the other nodes: [store] rank", err.replace(
                "[store] the store", "[store] rank"))
            for job in jobs:
                job.wait_until_gone()

    def test_a_node_whose_launcher_is_killed_after_its_rank_has_failed(self):
        program = ("case $LOCKSTEP_RANK in 2) exit 9;; 3) exec sleep 1000;; esac; "
                   "while [ ! -e $F/go ]; do sleep 0.01; done")
        first, second = self.nodes("sh", "-c", program, options=("--timeout", "3", "--patience", str(SOON)))
        self.assertIn("a rank of another node has failed", first.process.stderr.readline())
        second.process.kill()
        second.finish()
        (pathlib.Path(first.folder.name) / "go").touch()
        code, _, err = first.finish()
        self.assertEqual(code, 1)
        self.assertIn("first failure: a rank has failed, and its node does not say which\n  node 1 was silent for 3 s", err)

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
        program = FailedFirst.SAY + (f"for r in range({ranks}):\n"
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
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
