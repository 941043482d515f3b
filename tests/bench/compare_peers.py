"""scripts/compare_peers without any peer: our side runs and checks itself, every peer is reported as not compared; and
what it computes of its figures, with programs that are made up.

usage: compare_peers.py <lockstep-works>
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "peers"), str(HERE.parent)]
import programs  # noqa: E402
import report  # noqa: E402
import rounds  # noqa: E402
import works  # noqa: E402
from support.jobs import clean_environment  # noqa: E402

SCRIPT, WORKS = HERE.parents[1] / "scripts" / "compare_peers", sys.argv[1]


def run(*arguments):
    return subprocess.run([sys.executable, "-B", str(SCRIPT), *arguments], capture_output=True, text=True, timeout=120,
                          stdin=subprocess.DEVNULL, env=clean_environment())


class Script(unittest.TestCase):
    def test_without_peers_ours_runs_and_all_peers_are_not_compared(self):
        with tempfile.TemporaryDirectory() as folder:
            python = ("pytorch", "libtorch", "onnxruntime", "openvino")
            chosen = [word for name in python for word in ("--peer", name)]
            done = run("--quick", "--works", WORKS, "--peers", folder, "--json", "-", *chosen)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            told = json.loads(done.stdout)
            self.assertEqual([row["work"] for row in told["rows"]], [work["name"] for work in works.quick()])
            for row in told["rows"]:
                self.assertGreater(row["ours"], 0)
                self.assertIsNone(row["peer"])
                self.assertIsNone(row["ratio"])
            absent = {entry["peer"]: entry["reason"] for entry in told["not_compared"] if entry["work"] is None}
            self.assertEqual(set(python), set(absent))
            for name in python:
                self.assertIn("--install", absent[name])
            self.assertEqual(list(pathlib.Path(folder).iterdir()), [], "nothing is fetched that nobody asked for")
            table = run("--quick", "--only", "tiny", "--works", WORKS, "--peers", folder)
            self.assertIn("(no peer)", table.stdout)
            self.assertIn("0 rows, 0 behind", table.stdout)
            self.assertIn("not compared:\n  pytorch: torch not in", table.stdout)

    def test_works_have_names_of_their_own_and_drawn_shapes_are_those_of_their_seed(self):
        done = run("--list")
        names = done.stdout.splitlines()
        self.assertEqual(len(set(names)), len(names))
        self.assertEqual(sum("drawn" in name for name in names), 20)
        self.assertEqual(run("--list").stdout, done.stdout)
        self.assertNotEqual(run("--list", "--seed", "18").stdout, done.stdout)
        self.assertEqual(len(run("--list", "--only", "drawn", "--drawn", "7").stdout.splitlines()), 7)

    def test_a_wrong_argument_is_named(self):
        for arguments, part in ((["--threads", "999"], "999"), (["--rounds", "0"], "0"), (["--only", "("], "regular"),
                                (["--peer", "nobody"], "nobody")):
            done = run(*arguments)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(part, done.stderr)
        done = run("--only", "no such work", "--works", WORKS)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("no such work", done.stderr)
        done = run("--install", "--peers", str(SCRIPT.parents[1] / "build" / "peers"))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("outside", done.stderr)

    def test_our_side_does_all_operations(self):
        """Those whose inputs are small; the others differ in nothing but their shapes."""
        ours = programs.Program("lockstep", [WORKS], [0])
        seen = set()
        with tempfile.TemporaryDirectory() as folder:
            for work in works.listed(1):
                elements = sum(elements_of(one["shape"]) for one in work["inputs"])
                if work["group"] == "network" or elements > 1 << 18 or (work["op"], work["kind"]) in seen:
                    continue
                seen.add((work["op"], work["kind"]))
                with self.subTest(work["name"]):
                    self.assertIn("ways", ours.prepare(work, folder))
            ours.stop()
        self.assertGreater(len(seen), 10)

    def test_our_side_says_what_it_cannot_do(self):
        ours = programs.Program("lockstep", [WORKS], [0])
        with tempfile.TemporaryDirectory() as folder:
            for kind in ("call", "train"):
                self.assertIn("nothing", ours.prepare(works.work("x", "nothing", [], "op", kind), folder)["unsupported"])
            self.assertIn("error", ours.prepare(works.work("x", "add", [works.tensor(2), works.tensor(3)], "op"), folder))
            self.assertIn("ways", ours.prepare(works.quick()[0], folder))  # and goes on
        ours.stop()


def elements_of(shape):
    count = 1
    for size in shape:
        count *= size
    return count


class MadeUp:
    """A program whose times are given: by way, one for each round, over and over."""
    order = []  # in which programs were measured

    def __init__(self, name, times, **reports):
        self.name, self.version, self.times, self.reports, self.calls = name, "1", times, reports, {}

    def prepare(self, _work, _folder):
        return {"ways": {way: self.reports.get(way, {}) for way in self.times}}

    def measure(self, way, _least):
        self.calls[way] = self.calls.get(way, 0) + 1
        MadeUp.order.append(self.name)
        values = self.times[way]
        if values is None:
            raise programs.Lost("ended: it said nothing")
        return values[(self.calls[way] - 1) % len(values)]


class Figures(unittest.TestCase):
    def compare(self, *peers, ours=(1.0, 2.0, 3.0), count=3):
        work = works.quick()[0]
        comparison = rounds.Comparison(work, MadeUp("lockstep", {"plain": list(ours)}), peers, "")
        return comparison.rows(count, 0), comparison.failures

    def test_the_median_of_the_fastest_way_counts(self):
        peer = MadeUp("pytorch", {"eager": [4.0, 4.0, 9.0], "compiled": [5.0, 3.0, 3.0]})
        (row,), failures = self.compare(peer)
        self.assertEqual((row["theirs"], row["peer_way"], row["ours"], row["ratio"]), (3.0, "compiled", 2.0, 1.5))
        self.assertFalse(row["behind"])
        self.assertNotIn("repeated", row)
        self.assertEqual(failures, {})

    def test_each_round_begins_with_another_program(self):
        MadeUp.order.clear()
        self.compare(MadeUp("a", {"x": [9.0]}), MadeUp("b", {"x": [9.0]}))
        self.assertEqual(MadeUp.order, ["lockstep", "a", "b", "a", "b", "lockstep", "b", "lockstep", "a"])

    def test_a_way_that_is_far_slower_is_measured_once(self):
        peer = MadeUp("pytorch", {"eager": [4.0], "compiled": [6.1]})
        self.compare(peer)
        self.assertEqual(peer.calls, {"eager": 3, "compiled": 1})

    def test_behind_is_what_is_so_twice(self):
        (row,), _ = self.compare(MadeUp("pytorch", {"eager": [1.0]}))
        self.assertEqual((row["ratio"], row["repeated"], row["behind"]), (0.5, 0.5, True))
        (row,), _ = self.compare(MadeUp("pytorch", {"eager": [1.0, 1.0, 1.0, 9.0, 9.0, 9.0]}))
        self.assertEqual((row["ratio"], row["repeated"], row["behind"]), (0.5, 4.5, False))

    def test_results_that_differ_are_not_compared(self):
        wrong = {"difference": 1e-2}
        rows, failures = self.compare(MadeUp("pytorch", {"eager": [9.0], "compiled": [1.0]}, compiled=wrong))
        self.assertEqual([row["peer_way"] for row in rows], ["eager"])
        self.assertIn("differ by 1.0e-02", failures["pytorch, compiled"])
        rows, failures = self.compare(MadeUp("pytorch", {"eager": [1.0]}, eager={"difference": float("nan")}))
        self.assertIsNone(rows[0]["peer"])
        self.assertIn("differ", failures["pytorch, eager"])

    def test_a_program_that_ends_leaves_the_others(self):
        rows, failures = self.compare(MadeUp("onednn", {"alone": None}), MadeUp("pytorch", {"eager": [4.0]}))
        self.assertEqual([row["peer"] for row in rows], ["pytorch"])
        self.assertEqual(failures, {"onednn": "ended: it said nothing"})

    def test_a_program_that_cannot_be_started_is_lost_with_what_it_said(self):
        program = programs.Program("lockstep", [sys.executable, "-c", "raise SystemExit('no such thing')"], [0])
        with self.assertRaisesRegex(programs.Lost, "no such thing"):
            program.ask(do="prepare")
        program.stop()

    def test_the_summary_tells_reasons_once(self):
        entries = [{"peer": "onednn", "work": work, "reason": "products alone"} for work in ("a", "b")]
        entries.append({"peer": "gloo", "work": None, "reason": "not installed"})
        told = report.summary([], entries)
        self.assertEqual(told[-2:], ["  onednn: products alone (2 works, first a)", "  gloo: not installed"])

    def test_rows_bound_by_memory_have_their_share_of_a_copy(self):
        rows = [{"work": "big exp", "bytes_per_second": 5.0}, {"work": "big clone", "bytes_per_second": 10.0}, {"work": "mm"}]
        self.assertEqual([row.get("share_of_copy") for row in report.with_shares(rows)], [0.5, 1.0, None])
        self.assertEqual(report.with_shares(rows[:1]), rows[:1])

    def test_spread_and_units(self):
        self.assertEqual(rounds.percentile([3, 1, 2], 50), 2)
        self.assertAlmostEqual(rounds.percentile([0, 10], 95), 9.5)
        self.assertAlmostEqual(rounds.spread([10, 10, 10]), 0)
        self.assertAlmostEqual(rounds.spread([0, 10, 20]), 0.9)
        self.assertEqual([report.duration(x) for x in (2, 3e-3, 4e-6, 5e-9)], ["2 s", "3 ms", "4 us", "5 ns"])


unittest.main(argv=sys.argv[:1], verbosity=2)
