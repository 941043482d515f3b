"""Tests of lockstep-run: --health. See launcher.py for how it is started; one program more: <lockstep-launch-health>."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from launcher import SOON, Started, main
from launcher import run as run_on_its_devices
from support.jobs import free_port

TABLE = sys.argv.pop(4)
HOST = {"LOCKSTEP_DEVICES": "host:all"}  # any number of ranks, whatever GPUs there are


def run(*arguments, **variables):
    return run_on_its_devices(*arguments, **(HOST | variables))


class Health(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_one_node(self):
        path = self.folder / "health.json"
        result = run("--health", "-n", "2", "--json", str(path), "--log-dir", str(self.folder / "not" / "yet"), "--min-free",
                     "0")
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        head, row, build, verdict = result.stdout.splitlines()
        for name in ("node", "host", "devices", "free memory", "logs", "/dev/shm", "clock", "latency", "bandwidth"):
            self.assertIn(name, head)
        self.assertRegex(build, r"^node 0: Lockstep [0-9]")
        self.assertEqual(verdict, "the node is fit")
        found = json.loads(path.read_text())
        node = found["nodes"][0]
        self.assertEqual((found["fit"], found["unfit"], node["node"], node["ranks"]), (True, [], 0, 2))
        self.assertIn(node["host"], row)
        self.assertGreater(node["memory_bytes"], node["memory_free_bytes"])
        for number in ("memory_free_bytes", "latency_us", "megabytes_per_second", "device_count"):
            self.assertGreater(node[number], 0, number)
        self.assertGreater(node["logs"]["free_bytes"], 0)
        self.assertEqual([each.name for each in self.folder.iterdir()], ["health.json"])  # no folder was made

    def test_what_is_unfit(self):
        result = run("--health", "--min-free", "1e12")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, r"unfit: node 0 \(.*\): expected .* free in memory, got ")
        (self.folder / "file").touch()
        result = run("--health", "--log-dir", str(self.folder / "file" / "logs"), "--min-free", "0")
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"cannot write in {self.folder}/file/logs: Not a directory", result.stdout)
        result = run("--health", "--min-free", "0", LOCKSTEP_DEVICES="host:77")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, r"unfit: node 0 \(.*\): expected devices, got .*host:77")

    def start(self, node, *options, nodes=2, master):
        return Started("--health", "--nnodes", str(nodes), "--node-rank", str(node), "--master", master, "--min-free", "0",
                       *options, **HOST)

    def test_nodes_say_the_same(self):
        master = f"127.0.0.1:{free_port()}"
        jobs = [self.start(node, "--json", str(self.folder / f"{node}.json"), nodes=3, master=master) for node in range(3)]
        results = [job.finish() for job in jobs]
        for node, (code, out, err) in enumerate(results):
            self.assertEqual((code, out, err), (0, results[0][1], ""))
            found = json.loads((self.folder / f"{node}.json").read_text())
            self.assertEqual([each["node"] for each in found["nodes"]], [0, 1, 2])
            for each in found["nodes"][1:]:  # the same clock
                self.assertLessEqual(abs(each["clock_ms"]), each["clock_error_ms"] + 1)
                self.assertGreater(each["clock_error_ms"], 0)
        self.assertEqual(results[0][1].splitlines()[-1], "all nodes are fit")

    def test_a_node_that_is_unfit(self):
        master = f"127.0.0.1:{free_port()}"
        for code, out, _ in [job.finish() for job in (self.start(0, master=master), self.start(1, "-n", "3", master=master))]:
            self.assertEqual(code, 1)
            self.assertRegex(out, r"unfit: node 1 \(.*\): expected the ranks of node 0, 1, got 3\n$")

    def test_a_node_that_does_not_come(self):
        master = f"127.0.0.1:{free_port()}"
        code, out, _ = self.start(0, "--timeout", "2", master=master).finish()
        self.assertEqual(code, 1)
        self.assertIn("unfit: node 1: did not come within 2 s", out)
        path = self.folder / "unfit.json"
        code, _, err = self.start(1, "--timeout", "0.2", "--json", str(path), master=master).finish()
        self.assertEqual(code, 1)
        self.assertIn(f"cannot reach the store at {master}", err)
        found = json.loads(path.read_text())
        self.assertEqual((found["fit"], found["nodes"], len(found["unfit"])), (False, [], 1))
        self.assertIn(f"cannot reach the store at {master}", found["unfit"][0])

    def judge(self, what):
        result = subprocess.run([TABLE, what], capture_output=True, text=True, timeout=SOON)
        text, found = result.stdout.split("{", 1)
        return result.returncode, text, json.loads("{" + found)

    def test_nodes_that_differ(self):
        for what, *said in [
            ("build", "node 1 (second): expected the build of node 0, Lockstep 1, got Lockstep 2"),
            ("devices", "node 1 (second): expected the devices of node 0, 4 x GPU (80 GiB), got 4 x GPU (40 GiB)"),
            ("few", "node 0 (first): expected a GPU for each of 8 ranks, got 4 x GPU (80 GiB)",
             "node 1 (second): expected a GPU for each of 8 ranks, got 4 x GPU (80 GiB)"),
            ("none", "node 1 (second): expected devices, got none"),
            ("ranks", "node 1 (second): expected the ranks of node 0, 4, got 2"),
            ("memory", "node 1 (second): expected 64 MiB free in memory, got 1 MiB"),
            ("logs", "node 1 (second): expected 64 MiB free in /logs, got 0 bytes"),
            ("unwritable", "node 1 (second): cannot write in /logs: Permission denied"),
            ("shared", "node 1 (second): expected 64 MiB free in /dev/shm, got 4 KiB"),
            ("ahead", "node 1 (second): expected the clock of node 0, got one that is 2.5 s ahead"),
            ("behind", "node 1 (second): expected the clock of node 0, got one that is 2.5 s behind"),
            ("silent", "node 1: did not come within 3 s"),
            ("other version", "node 1: it runs a lockstep-run of another version"),
        ]:
            with self.subTest(what):
                code, text, found = self.judge(what)
                self.assertEqual((code, found["fit"], found["unfit"]), (1, False, said))
                self.assertIn("".join(f"unfit: {each}\n" for each in said), text)
                self.assertNotIn("fit\n", text.replace("unfit: ", ""))
        for what in ("", "unsure", "bytes"):  # a clock that nobody can read that well
            code, text, found = self.judge(what)
            self.assertEqual((code, found["fit"]), (0, True), text)
            self.assertTrue(text.endswith("all nodes are fit\n"))


if __name__ == "__main__":
    main()
