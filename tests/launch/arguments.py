"""Tests of lockstep-run: its arguments. See launcher.py for how it is started."""
import os
import tempfile
import unittest

from launcher import main, run


NODES = ("-n", "4", "--nnodes", "2", "--master", "127.0.0.1:1")


class Arguments(unittest.TestCase):
    def test_help(self):
        result = run("--help")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        for word in ("--nnodes", "--node-rank", "--master", "--token-file", "--no-prefix", "--bind", "--grace", "--patience",
                     "--log-dir", "--tee", "--show", "--json", "--keep-going", "--min-ranks", "--health", "--min-free", "--restarts", "--max-ranks",
                     "--join-timeout",
                     "--no-pty", "OMP_NUM_THREADS", "127"):
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
            (("--min-ranks", "1", "true"), "--keep-going or --restarts along with --min-ranks"),
            (("--keep-going", "--min-ranks", "2", "true"), "--min-ranks from 1 to 1, got 2"),
            (("--keep-going", "--min-ranks", "0", "true"), "range"),
            (("--restarts", "1", "--keep-going", "true"), "--keep-going or --restarts, got both"),
            (("--restarts", "-1", "true"), "range"),
            (("--restarts", "1", "--min-ranks", "2", "true"), "--min-ranks from 1 to 1, got 2"),
            (("-n", "4", "--max-ranks", "2", "true"), "--restarts along with --max-ranks"),
            (("-n", "4", "--restarts", "1", "--min-ranks", "3", "--max-ranks", "2", "true"), "at least the 3 of --min-ranks, got 2"),
            (("--join-timeout", "1", "true"), "--restarts on several machines along with --join-timeout"),
            ((*NODES, "--join-timeout", "1", "true"), "--restarts on several machines along with --join-timeout"),
            ((*NODES, "--restarts", "1", "--join-timeout", "0", "true"), "range"),
            ((*NODES, "--node-rank", "2", "true"), "--node-rank from 0 to 1, got 2"),
            ((*NODES, "--restarts", "1", "--node-rank", "4096", "true"), "--node-rank from 0 to 4095, got 4096"),
            ((*NODES, "--restarts", "1", "--min-ranks", "9", "true"), "--min-ranks from 1 to 8, got 9"),
            ((*NODES, "--restarts", "1", "--max-ranks", "3", "true"),
             "--max-ranks for machines of 4 ranks with at least the 4 of one machine, got 3"),
            ((*NODES, "--restarts", "1", "--min-ranks", "5", "--max-ranks", "7", "true"),
             "--max-ranks for machines of 4 ranks with at least the 5 of --min-ranks, got 7"),
            ((*NODES, "--restarts", "1", "--min-ranks", "4", "--keep-going", "true"), "--keep-going or --restarts, got both"),
            (("-n", "1", "--nnodes", "2", "--master", "192.0.2.1:29400", "--restarts", "1", "true"), "expected a token"),
            (("-n", "1", "--nnodes", "1", "--max-ranks", "2", "--master", "here", "--restarts", "1", "true"), "host:port"),
            (("--min-free", "1", "true"), "--health along with --min-free"),
            (("--health", "true"), "no program along with --health, got true"),
            (("--health", "--min-free", "-1"), "range"),
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


if __name__ == "__main__":
    main()
