"""lockstep-bench simulate, as people and scripts use it.

usage: simulate.py <lockstep-bench> <folder of machine files>
"""
import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BENCH, MACHINES = sys.argv[1], pathlib.Path(sys.argv[2])
H200 = str(MACHINES / "8xh200-nvswitch.json")
TWO_HOSTS = str(MACHINES / "8x8-h200-400gb.json")  # the first 16 ranks are on two of its hosts


def recording(devices=1, steps=3, elements=1_000_000_000):
    """Steps of one rank: a kernel of so many f32, an all_reduce beside a second kernel, and a copy between devices."""
    lines = ["lockstep-recording 1"] + [f"stream {i} cuda:{i} default" for i in range(devices)]
    lines += [f"stream {devices} cuda:0 reducer", "thread 0 host"]
    number = 0
    for step in range(steps + 1):
        lines.append("mark step")
        number += 1
        if step == steps:
            break
        kernel = f"kernel 0 binary f32 {8 * elements} {4 * elements} {elements} -"
        lines += [kernel, "record 0", f"wait {devices} 0:{number + 1}",
                  f"collective {devices} all_reduce f32 100000000 world 0 8 -1", kernel, f"record {devices}",
                  f"wait 0 0:{number + 5}"]
        number += 7
        for i in range(1, devices):
            lines.append(f"copy 0 cuda:0 cuda:{i} 50000000")
            number += 1
    return "\n".join(lines + ["end", ""])


def run(*arguments, code=0):
    done = subprocess.run([BENCH, "simulate", *arguments], capture_output=True, text=True, timeout=120,
                          stdin=subprocess.DEVNULL, env=dict(os.environ, LOCKSTEP_HOST_DEVICES="2"))
    assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout if code == 0 else done.stderr


class Simulate(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.step = str(self.folder / "step.rec")
        pathlib.Path(self.step).write_text(recording())

    def test_text_says_that_it_is_predicted_and_for_which_machine(self):
        text = run(self.step, "--machine", H200)
        self.assertIn("Predicted, not measured", text)
        self.assertIn("8xh200-nvswitch.json", text)
        self.assertIn("last two of 4 marks", text)
        self.assertRegex(text, r"step +\d+\.\d+ +100\.0")

    def test_json_adds_up_and_says_which_machine(self):
        report = json.loads(run(self.step, "--machine", H200, "--json"))
        self.assertEqual(report["prediction"], [{"recording": self.step, "machine": "8x H200 SXM, NVSwitch",
                                                 "file": H200, "compute": "vendor", "as": ""}])
        *parts, step = report["predicted_step"]
        self.assertAlmostEqual(sum(part["ms"] for part in parts), step["ms"])
        # Two kernels of 12 GB at 88% of 4.8 TB/s.
        self.assertAlmostEqual(report["predicted_devices"][0]["kernels ms"], 2 * 12e9 / (0.88 * 4.8e12) * 1e3, delta=0.5)
        own = json.loads(run(self.step, "--machine", H200, "--json", "--compute", "own"))
        self.assertGreater(own["predicted_step"][-1]["ms"], step["ms"])
        self.assertEqual(own["prediction"][0]["compute"], "own")

    def test_a_sweep_of_one_rank_and_its_picture(self):
        picture = self.folder / "scaling.png"
        text = run(self.step, "--machine", H200, "--sweep", "devices=1..8", "--json")
        rows = json.loads(text)["predicted_scaling"]
        self.assertEqual([row["devices"] for row in rows], ["1", "2", "4", "8"])
        self.assertEqual(rows[0]["efficiency %"], 100)
        self.assertGreater(rows[3]["step ms"], rows[0]["step ms"])
        arguments = [self.step, "--machine", H200, "--sweep", "devices=1..8", "--plot", str(picture)]
        done = subprocess.run([BENCH, "simulate", *arguments], capture_output=True, text=True, check=False)
        if "expected a build with libpng" in done.stderr:
            self.assertEqual(done.returncode, 2)
        else:
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(picture.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")

    def test_a_sweep_over_recordings(self):
        for devices in (1, 2, 4):
            (self.folder / f"step-{devices}.rec").write_text(recording(devices))
        pattern = str(self.folder / "step-{}.rec")
        rows = json.loads(run(pattern, "--machine", H200, "--sweep", "devices=1,2,4", "--json"))["predicted_scaling"]
        copies = [rows[i]["not hidden ms"] - rows[0]["not hidden ms"] for i in (1, 2)]
        self.assertGreater(copies[0], 50e6 / 450e9 * 1e3)
        self.assertAlmostEqual(copies[1], 3 * copies[0], delta=0.01)
        self.assertIn("step-8.rec", run(pattern, "--machine", H200, "--sweep", "devices=1..8", code=1))
        self.assertIn("expected --sweep", run(pattern, "--machine", H200, code=2))

    def test_pytorchs_schedules_are_marked_as_models(self):
        lines = ["lockstep-recording 1", "stream 0 cuda:0 default", "thread 0 host", "mark step"]
        for _ in range(2):
            lines += ["kernel 0 relu f32 4000000 4000000 1000000 -", "kernel 0 relu_grad f32 8000000 4000000 1000000 -",
                      "kernel 0 sgd f32 300000000 200000000 50000000 -", "mark step"]
        path = self.folder / "one.rec"
        path.write_text("\n".join(lines + ["end", ""]))
        self.assertIn("a model of what pytorch-dp would enqueue", run(str(path), "--machine", H200, "--as", "pytorch-dp"))
        steps = {}
        for schedule in ("pytorch-dp", "pytorch-ddp"):
            report = json.loads(run(str(path), "--machine", H200, "--as", schedule, "--sweep", "devices=1,8", "--json"))
            self.assertEqual(report["prediction"][0]["as"], schedule)
            steps[schedule] = report["predicted_scaling"][1]["step ms"]
        self.assertGreater(steps["pytorch-dp"], steps["pytorch-ddp"])
        self.assertIn("expected a step with a forward", run(self.step, "--machine", H200, "--as", "pytorch-dp", code=2))

    def test_a_timeline(self):
        trace = self.folder / "trace.json"
        run(self.step, "--machine", H200, "--trace", str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
        self.assertEqual(len([event for event in events if event["ph"] == "X" and event["name"] == "all_reduce"
                              and event["pid"] == 2]), 3)

    def test_mistakes_are_told(self):
        self.assertIn("expected a recording", run(code=2))
        self.assertIn("[--machine] expected the file of a machine", run(self.step, code=2))
        self.assertIn("'nowhere.json'", run(self.step, "--machine", "nowhere.json", code=2))
        self.assertIn("'nowhere.rec'", run("nowhere.rec", "--machine", H200, code=1))
        self.assertIn("--sweep", run(self.step, "--machine", H200, "--plot", "x.png", code=2))
        self.assertIn("--compute", run(self.step, "--machine", H200, "--compute", "fast", code=2))
        self.assertIn("8 devices", run(str(self.nine()), "--machine", H200, code=2))

    def nine(self):
        path = self.folder / "nine.rec"
        path.write_text(recording(9))
        return path


class Record(unittest.TestCase):
    """Known networks are recorded without their memory or their arithmetic, and replayed."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def record(self, name, *arguments):
        path = self.folder / name
        done = subprocess.run([BENCH, "record", *arguments, "--output", str(path)], capture_output=True, text=True,
                              timeout=300, stdin=subprocess.DEVNULL, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return path

    @staticmethod
    def last_step(path):
        lines = path.read_text().split("thread 0 main\n")[1].splitlines()
        marks = [i for i, line in enumerate(lines) if line == "mark step"]
        return lines[marks[-2]:marks[-1]]

    def test_the_same_step_is_the_same_file_and_scales(self):
        steps = {n: self.record(f"step-{n}.rec", "--devices", str(n), "--batch", "4") for n in (1, 3, 8)}
        self.assertEqual(steps[8].read_bytes(), self.record("again.rec", "--devices", "8", "--batch", "4").read_bytes())
        report = json.loads(run(str(self.folder / "step-{}.rec"), "--machine", H200, "--sweep", "devices=1,3,8", "--json"))
        milliseconds = [row["step ms"] for row in report["predicted_scaling"]]
        self.assertEqual(milliseconds, sorted(milliseconds))
        self.assertLess(milliseconds[2], 2 * milliseconds[0])

    def test_copies_go_the_ways_of_the_machine(self):
        mesh = str(MACHINES / "dgx-1v.json")
        arguments = ("--devices", "8", "--batch", "4")
        blind = self.record("blind.rec", *arguments)
        seeing = self.record("mesh.rec", *arguments, "--machine", mesh)
        self.assertEqual(blind.read_bytes(), self.record("h200.rec", *arguments, "--machine", H200).read_bytes())

        def bytes_over(path):
            found = collections.Counter()
            for line in path.read_text().splitlines():  # of all threads: gradients have one of their own
                if line.startswith("copy "):
                    _, _, source, destination, count = line.split()
                    found[source, destination] += int(count)
            return found
        blind, seeing = bytes_over(blind), bytes_over(seeing)
        # Where all links are alike parameters go from neighbour to neighbour in the list, and gradients from each to each.
        # On the mesh parameters go from home to its neighbours there, and nothing goes where there is no line.
        self.assertGreater(blind["host:3", "host:4"], 100_000_000)
        self.assertEqual(seeing["host:3", "host:4"], 0)
        self.assertGreater(blind["host:6", "host:2"], 0)
        self.assertGreater(seeing["host:0", "host:3"], 2 * blind["host:0", "host:3"])

    def test_machines_that_do_not_fit_are_refused(self):
        def refused(*arguments):
            done = subprocess.run([BENCH, "record", *arguments, "--output", str(self.folder / "none.rec")],
                                  capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, check=False)
            self.assertNotEqual(done.returncode, 0)
            return done.stderr
        self.assertIn("expected at least the 8 devices that are recorded, got the 4 of 4x L40S, PCIe 4, P2P",
                      refused("--devices", "8", "--machine", str(MACHINES / "4xl40s-p2p.json")))
        (self.folder / "bad.json").write_text("{}")
        self.assertRegex(refused("--machine", str(self.folder / "bad.json")), "expected a text, got nothing .*bad.json")

    def test_ranks_reduce_each_gradient_once(self):
        rank = self.record("rank.rec", "--wrapper", "ddp", "--devices", "64", "--batch", "4")
        reduced = [line.split() for line in self.last_step(rank) if line.startswith("collective ")]
        # Besides, the statistics of its norms are rank 0's.
        self.assertEqual({(each[2], each[7]) for each in reduced}, {("all_reduce", "64"), ("broadcast", "64")})
        # 25,557,032 elements (torchvision's ResNet-50), and what aligns the parameters in their buckets.
        total = sum(int(each[4]) for each in reduced if each[2] == "all_reduce")
        self.assertGreaterEqual(total, 4 * 25_557_032)
        self.assertLess(total, 4 * 25_557_032 + 161 * 256)

    def test_what_shards_move_hides_behind_the_computation_on_one_host_and_on_two(self):
        for ranks, machine in ((8, H200), (16, TWO_HOSTS)):
            with self.subTest(ranks=ranks):
                step = self.record(f"sharded-{ranks}.rec", "--model", "gpt3-xl", "--wrapper", "fsdp", "--devices", str(ranks),
                                   "--batch", "2", "--steps", "1", "--dtype", "bf16")
                calls = [line.split() for line in self.last_step(step) if line.startswith("collective ")]
                gathers = [int(each[4]) for each in calls if each[2] == "all_gather"]
                scatters = [int(each[4]) for each in calls if each[2] == "reduce_scatter"]
                # 24 blocks for the forward and again for the backward; what is outside of them once; a sum of each.
                self.assertEqual((len(gathers), len(scatters)), (2 * 24 + 1, 24 + 1))
                self.assertEqual({each[7] for each in calls}, {str(ranks)})
                device = json.loads(run(str(step), "--machine", machine, "--json"))["predicted_devices"][0]
                self.assertGreater(device["copies and collectives ms"], 5)
                self.assertLess(device["not hidden ms"], 0.2 * device["copies and collectives ms"])

    def test_a_billion_parameters_on_two_devices(self):
        step = self.record("gpt.rec", "--model", "gpt3-xl", "--devices", "2", "--batch", "1", "--steps", "1",
                           "--dtype", "bf16")
        sent = sum(int(line.split()[4]) for line in self.last_step(step) if line.startswith("copy ")
                   and line.split()[2:4] == ["host:0", "host:1"])
        self.assertGreater(sent, 2 * 1.3e9)
        self.assertIn("kernel", run(str(step), "--machine", H200))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
