"""lockstep-bench's command line and output formats, as people and scripts use them.

usage: report.py <lockstep-bench>
"""
import csv
import io
import json
import os
import subprocess
import sys
import unittest

BENCH = sys.argv[1]


def run(*arguments, code=0, **variables):
    environment = dict(os.environ, LOCKSTEP_HOST_DEVICES="2", **variables)
    done = subprocess.run([BENCH, *arguments], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
                          env=environment)
    assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


class Report(unittest.TestCase):
    FAST = ["--repetitions", "3", "--min-time", "0.0005"]

    def test_list_names_the_figures_of_all_benchmarks_and_measures_none(self):
        names = run("--list").stdout.splitlines()
        for name in ["ops/small/add, 16 floats", "ops/large/softmax", "dispatch/resources/ordinal",
                     "engine/empty_call/2 spinning", "kernels/memory/copy", "topology/copy_of_8_bytes/host:0 to host:1",
                     "transfers/transfers/1 refresh", "threads/serial/mlp training", "threads/serial/lstm inference", "serving/pool/mlp",
                     "ddp/own_cost/step", "overlap/overlap/step", "allreduce/all/sizes"]:
            self.assertIn(name, names)
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(run("ops", "--list", "--filter", "small/add").stdout.splitlines(),
                         ["ops/small/add, 16 floats", "ops/small/add, 16 floats, recorded"])

    def test_json_has_the_context_and_the_samples(self):
        report = json.loads(run("ops", "--json", "--filter", "small/add|start", *self.FAST, LOCKSTEP_HOST_MODE="inline").stdout)
        context = report["context"]
        self.assertEqual(context["program"], "lockstep-bench")
        self.assertEqual(context["repetitions"], 3)
        self.assertEqual(context["min_seconds"], 0.0005)
        self.assertEqual(context["environment"]["LOCKSTEP_HOST_MODE"], "inline")
        self.assertRegex(context["date"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertEqual(context["cores"], os.cpu_count())
        self.assertEqual([row["operation"] for row in report["small"]], ["add, 16 floats", "add, 16 floats, recorded"])
        for row in report["small"]:
            figure = row["microseconds"]
            self.assertEqual(len(figure["samples"]), 3)
            self.assertEqual(figure["min"], min(figure["samples"]))
            self.assertEqual(figure["median"], sorted(figure["samples"])[1])
            self.assertLessEqual(figure["p95"], figure["max"])
            self.assertGreater(figure["min"], 0)
            self.assertIsInstance(row["at most"], float)
        self.assertEqual(len(report["start"]), 1)

    def test_keys_hold_no_parameters_and_numbers_are_numbers(self):
        reports = [json.loads(run("topology", "--json", "--devices", "host:0,host:1", "--bytes", size,
                                  "--repetitions", "2").stdout) for size in ["64KB", "1MB"]]
        for report in reports:
            self.assertEqual(set(report), {"context", "devices", "peer_access", "copy_gb_per_second", "copy_of_8_bytes"})
            self.assertIs(type(report["devices"][1]["memory"]), int)
            self.assertIs(type(report["devices"][1]["synchronous"]), bool)
            self.assertEqual(len(report["copy_gb_per_second"][0]["host:1"]["samples"]), 2)

    def test_overlap_measures_either_wrapper(self):
        small = ["--width", "16", "--batch", "2", "--layers", "2", "--repetitions", "2"]
        for wrapper, own in (("ddp", "a bucket"), ("fsdp", "no prefetch")):
            rows = json.loads(run("overlap", "--wrapper", wrapper, "--json", *small).stdout)["overlap"]
            self.assertEqual([row["rank"] for row in rows], [0, 1])
            for row in rows:
                self.assertAlmostEqual(row["sequential"], row["computing"] + row["communicating"])
                self.assertIn(own, row)
                self.assertEqual(len(row["measured"]["samples"]), 2)

    def test_csv(self):
        rows = list(csv.DictReader(io.StringIO(run("dispatch", "--csv", "--filter", "resources/event", *self.FAST).stdout)))
        self.assertEqual([row["row"] for row in rows],
                         ["event record + wait, kept event", "event record + wait, new event"])
        for row in rows:
            self.assertLessEqual(float(row["min"]), float(row["value"]))
            self.assertLessEqual(float(row["value"]), float(row["max"]))
            self.assertEqual(row["samples"], "3")

    def test_text_shows_how_sure_a_figure_is(self):
        text = run("ops", "--filter", "small/add, 16 floats$", *self.FAST).stdout
        self.assertRegex(text.splitlines()[0], r"^Lockstep \d+\.\d+\.\d+.*, .*cores?")
        self.assertRegex(text, r"operation +microseconds +min +p95 +spread +at most")
        self.assertRegex(text, r"add, 16 floats +[\d.]+ +[\d.]+ +[\d.]+ +±[\d.]+% +0\.3\n")

    def test_the_serial_share_is_what_is_not_divided(self):
        rows = json.loads(run("threads", "--json", "--images", "4", "--cores", "2,16", "--filter", "(mlp|cnn) inference",
                              *self.FAST).stdout)["serial"]
        self.assertEqual([(row["network"], row["work"]) for row in rows],
                         [("mlp", "inference"), ("cnn", "inference")])
        for row in rows:
            share = row["serial share"]
            self.assertGreater(row["divided calls"], 0)
            self.assertTrue(0 < share < 1, share)
            for cores in (2, 16):
                self.assertAlmostEqual(row[f"bound on {cores}"], 1 / (share + (1 - share) / cores))

    def test_a_pool_stands_beside_its_bare_replicas(self):
        rows = json.loads(run("serving", "--json", "--clients", "3", "--batch", "4", "--filter", "mlp", *self.FAST).stdout)["pool"]
        self.assertEqual([row["network"] for row in rows], ["mlp"])
        row = rows[0]
        self.assertEqual(len(row["images/s"]["samples"]), 3)
        self.assertGreater(row["ratio"], 0)
        self.assertTrue(0 < row["busy"] <= 1.01, row["busy"])
        self.assertTrue(1 <= row["mean batch"] <= 4, row["mean batch"])
        self.assertTrue(0 < row["median ms"] <= row["99% ms"])
        self.assertIn("host:9", run("serving", "--devices", "host:9", code=2).stderr)

    def test_columns_of_nccl_tests(self):
        lines = run("allreduce", "-b", "1K", "-e", "4K", "-f", "4", "-n", "2").stdout.splitlines()
        rows = [line.split() for line in lines if not line.startswith("#")]
        self.assertEqual([row[:5] for row in rows],
                         [["1024", "256", "float", "sum", "-1"], ["4096", "1024", "float", "sum", "-1"]])
        for row in rows:
            self.assertEqual(len(row), 13)
            for figure in row[5:8] + row[9:12]:
                self.assertRegex(figure, r"^\d+(\.\d{1,2})?$")  # no exponents
            self.assertEqual((row[8], row[12]), ("0", "0"))
        self.assertTrue(lines[0].startswith("#"))
        self.assertEqual(lines[-1], "# Collective test concluded: allreduce")

    def test_wrong_command_lines(self):
        for arguments, part in [([], "name of a benchmark"), (["--filter", "(", "ops"], "regular expression"),
                                (["ops", "--filter", "no such figure"], "no such figure"), (["opps"], "opps"),
                                (["ops", "--repetitions", "0"], "0"), (["ops", "--min-time", "-1"], "-1"),
                                (["ops", "--json", "--csv"], "--json"), (["threads", "--cores", "0"], "--cores"), (["kernels", "--device", "host:9"], "host:9")]:
            with self.subTest(arguments):
                done = run(*arguments, code=2)
                self.assertEqual(done.stdout, "")
                self.assertIn(part, done.stderr)

    def test_version_and_help(self):
        self.assertRegex(run("--version").stdout, r"^Lockstep \d+\.\d+\.\d+\n$")
        for arguments in [["--help"], ["ops", "--help"]]:
            self.assertIn("--", run(*arguments).stdout)
        for option in ["--json", "--csv", "--list", "--filter", "--repetitions", "--min-time", "--version"]:
            self.assertIn(option, run("--help").stdout)

    def test_output_that_cannot_be_written_is_a_failure(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([BENCH, "devices"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("standard output", done.stderr)


unittest.main(argv=sys.argv[:1], verbosity=2)
