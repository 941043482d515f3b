"""Tests of lockstep-run.

usage: lockstep_run.py <lockstep-run> <lockstep-launch-rank> [<test class>...]
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

RUN, RANK = sys.argv[1:3]
SOON = 120  # seconds, for what comes at once when it works
LAUNCHERS = ("LOCKSTEP_", "OMPI_", "PMI_", "SLURM_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "MPI_")


def environment(**variables):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    return clean | variables


def run(*arguments, **variables):
    return subprocess.run([RUN, *arguments], capture_output=True, text=True, timeout=SOON, stdin=subprocess.DEVNULL,
                          env=environment(**variables))


def lines(text):
    return sorted(text.splitlines())


def processes_with(marker):
    """The processes that have `marker` in their environment."""
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and marker.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            pass
    return found


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


class Arguments(unittest.TestCase):
    def test_help(self):
        result = run("--help")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        for word in ("--nnodes", "--node-rank", "--master", "--token-file", "--no-prefix", "--bind", "--grace", "127"):
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
            result = run("-n", "3", "sh", "-c", f"[ $LOCKSTEP_RANK = 1 ] && exit {code}; exec sleep 1000")
            self.assertEqual(result.returncode, code)
            self.assertIn(f"rank 1 exited with code {code}", result.stderr)

    def test_a_rank_that_is_killed(self):
        for name in ("KILL", "SEGV", "TERM"):
            result = run("-n", "3", "sh", "-c", f"[ $LOCKSTEP_RANK = 2 ] && kill -{name} $$; exec sleep 1000")
            number = getattr(signal, "SIG" + name)
            self.assertEqual(result.returncode, 128 + number)
            self.assertIn(f"rank 2 was killed by signal {int(number)}", result.stderr)

    def test_ranks_may_end_at_different_times(self):
        result = run("-n", "3", "sh", "-c", "[ $LOCKSTEP_RANK = 0 ] || sleep 0.1; echo done")
        self.assertEqual((result.returncode, lines(result.stdout)), (0, [f"[{r}] done" for r in range(3)]))

    def test_the_others_are_asked_before_they_are_killed(self):
        job = Started("-n", "2", "--grace", "100", "sh", "-c",
                      "if [ $LOCKSTEP_RANK = 1 ]; then while [ ! -e $F/0 ]; do sleep 0.01; done; exit 5; fi; "
                      "trap 'echo saved; exit 0' TERM; touch $F/0; while :; do sleep 0.01; done")
        code, out, _ = job.finish()
        self.assertEqual((code, out), (5, "[0] saved\n"))

    def test_a_rank_that_ignores_the_signal(self):
        job = Started("-n", "2", "--grace", "0.2", "sh", "-c",
                      "if [ $LOCKSTEP_RANK = 1 ]; then while [ ! -e $F/0 ]; do sleep 0.01; done; exit 5; fi; "
                      "trap '' TERM; touch $F/0; while :; do sleep 0.01; done")
        code, _, err = job.finish()
        self.assertEqual(code, 5)
        self.assertIn("rank 0 did not end within 0.2 s: killed", err)
        job.wait_until_gone()

    def test_a_rank_that_is_stopped_ends_too(self):
        job = Started("-n", "2", "--grace", "100", "sh", "-c",
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

    def test_other_signals_are_passed_on(self):
        job = Started("-n", "2", "sh", "-c", "trap 'echo got it; exit 0' USR1; touch $F/$LOCKSTEP_RANK; "
                      "while :; do sleep 0.01; done")
        job.wait_for_files("0", "1")
        job.process.send_signal(signal.SIGUSR1)
        code, out, _ = job.finish()
        self.assertEqual((code, lines(out)), (0, ["[0] got it", "[1] got it"]))


class LeftBehind(unittest.TestCase):
    CHILDREN = "sleep 1000 & setsid sleep 1000 & (setsid sh -c 'sleep 1000; true' &) ; touch $F/$LOCKSTEP_RANK; "

    def test_children_of_ranks_that_have_ended_well(self):
        job = Started("-n", "2", "sh", "-c", self.CHILDREN + "exit 0")
        self.assertEqual(job.finish()[0], 0)
        self.assertEqual(processes_with(job.marker), [])

    def test_children_of_ranks_that_fail(self):
        job = Started("-n", "2", "--grace", "0.1", "sh", "-c", self.CHILDREN + "exit 4")
        self.assertEqual(job.finish()[0], 4)
        self.assertEqual(processes_with(job.marker), [])

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

    def test_the_stores_port(self):
        job = Started("-n", "1", "sh", "-c", "echo $LOCKSTEP_STORE > $F/new; mv $F/new $F/0; exec sleep 1000")
        job.wait_for_files("0")
        host, port = (pathlib.Path(job.folder.name) / "0").read_text().strip().split(":")
        socket.create_connection((host, int(port))).close()
        job.process.terminate()
        job.finish()
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


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
                              f"[ $LOCKSTEP_RANK = {failing} ] && exit 9; exec sleep 1000")
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
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
