"""Tests of lockstep-run: the end of a job for people and, with --json, for programs. See launcher.py."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from launcher import RUN, SAY, SOON, Started, environment, main, run
from support.jobs import free_port


class Summary(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.path = self.folder / "end.json"

    def read(self):
        return json.loads(self.path.read_text())

    # Rank 1 dies when 4 has ended well; after that 2 fails for itself, then 0 because of 1; 3 ends the others' patience.
    PROGRAM = SAY + (
        "def enter(): open(f'{os.environ[\"F\"]}/new{rank}', 'w').write(str(os.getpid())); "
        "os.rename(f'{os.environ[\"F\"]}/new{rank}', f'{os.environ[\"F\"]}/here{rank}')\n"
        "def wait_until_gone(other):\n"
        "    wait(f'here{other}')\n"
        "    process = open(f'{os.environ[\"F\"]}/here{other}').read()\n"
        "    while os.path.exists(f'/proc/{process}'): time.sleep(0.005)\n"
        "enter()\n"
        "if rank == 1:\n"
        "    wait_until_gone(4); wait('here3')\n"
        "    print('no memory', file=sys.stderr, flush=True); os.kill(os.getpid(), 9)\n"
        "if rank == 2: wait_until_gone(1); print('mine', file=sys.stderr, flush=True); os._exit(139)\n"
        "if rank == 0: wait_until_gone(2); time.sleep(0.005); say('1 [all_reduce] rank 1 died'); sys.exit(5)\n"
        "if rank == 3: wait_until_gone(0); os.kill(os.getppid(), 15); time.sleep(1000)\n")

    def check_failure(self, folder, found, began):
        self.assertEqual((found["code"], found["message"], found["first_failure"], found["keep_going"]),
                         (137, "rank 1 was killed by signal 9 (SIGKILL)", 1, False))
        self.assertLessEqual(began, found["began_ms"])
        self.assertLessEqual(found["began_ms"], found["ended_ms"])
        parts = {each["rank"]: each for each in found["ranks"]}
        self.assertEqual([parts[r]["part"] for r in range(5)], ["follower", "first", "failed", "ended", "well"])
        self.assertEqual([parts[r]["how"] for r in range(5)], ["exited", "killed", "exited", "cut", "exited"])
        self.assertEqual([parts[r]["code"] for r in range(5)], [5, None, 139, None, 0])
        self.assertEqual([parts[r]["signal"] for r in range(5)], [None, 9, None, None, None])
        self.assertEqual([parts[r]["because_of"] for r in range(5)], [1, None, None, None, None])
        self.assertEqual([parts[r]["error"] for r in range(5)],
                         ["[all_reduce] rank 1 died", "no memory", "mine", None, None])
        for rank, each in parts.items():
            self.assertEqual((each["log"], each["host"]), (f"{folder}/rank{rank}.log", os.uname().nodename))
            self.assertGreater(each["process"], 0)

    def test_who_failed_and_how(self):
        began = time.time_ns() // 1_000_000
        logs = self.folder / "the logs"
        code, out, err = Started("-n", "5", "--patience", str(SOON), "--log-dir", str(logs), "--json", str(self.path),
                                 sys.executable, "-c", self.PROGRAM).finish()
        self.assertEqual((code, out), (137, ""))
        self.check_failure(logs, self.read(), began)
        summary = err.split("first failure: ")[1]
        self.assertRegex(summary, rf"(?s)^rank 1 was killed by signal 9 \(SIGKILL\)\n"
                                  rf"  rank 1 on .*: no memory\n    log: {logs}/rank1.log\n"
                                  rf"  rank 2 on .*: exited with code 139, as a shell says of signal 11 \(SIGSEGV\): mine\n"
                                  rf"    log: {logs}/rank2.log\n"
                                  rf"  rank 0 on .* because of rank 1: .*\n  ended by lockstep-run: 3\n$")

    def test_all_nodes_write_the_same(self):
        master = f"127.0.0.1:{free_port()}"
        jobs = [Started("-n", "2", "--nnodes", "2", "--node-rank", str(node), "--master", master, "--patience", "0.1",
                        "--json", str(self.folder / f"{node}.json"), "--log-dir", str(self.folder / "a b"), "sh", "-c",
                        "[ $LOCKSTEP_RANK = 3 ] && printf 'gone\\tfor good\\n' >&2 && exit 9; exec sleep 1000") for node in (0, 1)]
        for code, _, err in [job.finish() for job in jobs]:
            self.assertEqual(code, 9)
            self.assertTrue(re.search(rf"exited with code 9: gone for good\n    log: {self.folder}/a b/rank3.log\n", err), err)
        found = [json.loads((self.folder / f"{node}.json").read_text()) for node in (0, 1)]
        for each in found:
            self.assertEqual((each["code"], each["first_failure"], each["nodes"], each["ranks_per_node"]), (9, 3, 2, 2))
            self.assertEqual([(rank["rank"], rank["node"]) for rank in each["ranks"]], [(0, 0), (1, 0), (2, 1), (3, 1)])
            self.assertEqual([rank["log"] for rank in each["ranks"]],
                             [f"{self.folder}/a b/rank{rank}.log" for rank in range(4)])
            self.assertEqual(each["ranks"][3]["error"], "gone for good")
        self.assertEqual(found[0]["ranks"], found[1]["ranks"])

    def test_a_signal_on_two_nodes(self):
        master = f"127.0.0.1:{free_port()}"
        jobs = [Started("-n", "1", "--nnodes", "2", "--node-rank", str(node), "--master", master, "--json",
                        str(self.folder / f"{node}.json"), "sh", "-c", "touch $F/$LOCKSTEP_RANK; exec sleep 1000")
                for node in (0, 1)]
        for node, job in enumerate(jobs):
            job.wait_for_files(str(node))
        jobs[0].process.send_signal(signal.SIGTERM)
        self.assertEqual([job.finish()[0] for job in jobs], [128 + signal.SIGTERM] * 2)
        for node in (0, 1):
            found = json.loads((self.folder / f"{node}.json").read_text())
            self.assertEqual((found["code"], found["first_failure"]), (128 + signal.SIGTERM, None))
            self.assertIn((node, "ended"), [(rank["rank"], rank["part"]) for rank in found["ranks"]])
            if node == 0:  # it waits for the others
                self.assertEqual([rank["rank"] for rank in found["ranks"]], [0, 1])

    def test_what_others_have_written_to_the_file_goes(self):
        result = run("--json", str(self.path), "sh", "-c", f"head -c 100000 /dev/zero > '{self.path}'")
        self.assertEqual((result.returncode, self.read()["code"]), (0, 0))

    def test_a_job_that_cannot_begin(self):
        master = f"127.0.0.1:{free_port()}"
        result = run("--nnodes", "2", "--node-rank", "1", "--master", master, "--timeout", "0.2", "--json", str(self.path),
                     "true")
        self.assertEqual((result.returncode, self.read()["code"], self.read()["ranks"]), (1, 1, []))
        self.assertIn("cannot reach the store", self.read()["message"])

    def test_a_good_end(self):
        result = run("-n", "2", "--json", str(self.path), "sh", "-c", "echo all is well >&2")
        self.assertEqual(result.returncode, 0)
        found = self.read()
        self.assertEqual((found["code"], found["message"], found["first_failure"]), (0, None, None))
        self.assertEqual([(each["part"], each["what"], each["error"]) for each in found["ranks"]],
                         [("well", "exited with code 0", None)] * 2)

    def test_an_end_that_is_no_ranks(self):
        self.assertEqual(run("--json", str(self.path), "/no/such/program").returncode, 127)
        self.assertEqual((self.read()["code"], self.read()["first_failure"]), (127, None))
        self.assertIn("cannot run '/no/such/program'", self.read()["message"])

    def test_what_ranks_write_may_be_anything(self):
        subprocess.run([RUN, "--json", self.path, "sh", "-c", r"""printf '\377"\\\t\033[0m\n' >&2; exit 3"""],
                       capture_output=True, timeout=SOON, env=environment())
        self.assertEqual(self.read()["ranks"][0]["error"], '\ufffd"\\ \x1b[0m'.replace(" ", "\t"))

    def test_a_file_that_cannot_be_written(self):
        for path, why in ((str(self.folder), "Is a directory"), ("/no/such/folder/file", "No such file or directory")):
            result = run("--json", path, "echo", "started")
            self.assertEqual((result.returncode, result.stdout), (1, ""))
            self.assertIn(f"cannot write '{path}': {why}", result.stderr)
        result = run("--json", "/dev/full", "echo", "done")
        self.assertEqual((result.returncode, result.stdout), (0, "[0] done\n"))
        self.assertIn("cannot write '/dev/full': No space left on device", result.stderr)


if __name__ == "__main__":
    main()
