"""Both calls of scripts/gpu_check on a pretended machine, with the real programs on the fake CUDA and on the emulation.

usage: rehearsal.py <a shared library> <key>=<program>...
"""
import sys
import unittest

from pretended import ROOT, Machine, cases_of

from gpu.cases import escaped, left_out, matches, names_of  # scripts/ is on the path since pretended
from gpu.plan import CALLS

STAND_IN = sys.argv[1]
PROGRAMS = dict(argument.split("=", 1) for argument in sys.argv[2:])
# One or two cases of each phase: what they find is other tests' business.
CASES = ["an event that was never recorded*", "freed memory is waited for*", "CUDA parity: unscale",
         "CUDA, small: elementwise", "CUDA, small: norms", "a mirror that was itself written is refreshed",
         "NCCL alone: one rank does*", "the batch may be written when the call has returned",
         "generate of several prompts*"]
# Streams that do not pause by a seed: on a busy machine a pause takes as long as others run, and cases have limits.
ON_FAKE = {"LOCKSTEP_FAKE_CUDA": "devices=1,seed=0"}


class Rehearsal(unittest.TestCase):
    def setUp(self):
        self.machine = Machine(STAND_IN)
        self.addCleanup(self.machine.remove)
        self.machine.pack(PROGRAMS)

    def go(self, *arguments):
        code, text, _ = self.machine.run("--prebuilt", self.machine.prebuilt, "--small", "--seconds", 280,
                                         *(part for case in CASES for part in ("--cases", case)), *arguments, **ON_FAKE)
        self.assertIn(code, (0, 4), text + self.machine.page())
        return text

    def test_both_calls(self):
        self.go()
        self.go("parallel", "models", "logical", "engine")
        record, page = self.machine.record(), self.machine.page()
        self.assertEqual(record["state"], "complete")
        self.assertEqual(record["programs"]["from"], "prebuilt")
        self.assertNotIn("## Failed", page)
        for call in CALLS.values():
            for phase in call:
                if phase in ("nccl", "ranks"):  # the fake's is no file
                    continue
                found = cases_of(record, phase)
                self.assertTrue({case["result"] for case in found.values()} & {"pass", "skipped"}, f"{phase}: {found}")
        self.assertEqual(len(cases_of(record, "contract")), 2)
        nccl = cases_of(record, "nccl")
        self.assertEqual({case["result"] for case in nccl.values()}, {"skipped"})
        ranks = record["phases"]["ranks"]
        self.assertEqual([row["result"] for row in ranks], ["not run"])
        self.assertIn("needs NCCL 23000 or later", ranks[0]["detail"])
        sanitized = {row["name"]: row["result"] for phase in ("memcheck", "races") for row in record["phases"][phase]}
        self.assertEqual(sanitized, {"memcheck": "pass", "memcheck, without the cache": "pass", "racecheck": "pass",
                                     "synccheck": "pass", "initcheck": "pass"})
        on_eight = [row for row in record["phases"]["logical"] if "8 logical devices" in row["name"]]
        self.assertEqual([row["result"] for row in on_eight], ["pass", "pass"])

        # Every kernel of the benchmark stands beside PyTorch's, and beside a ceiling.
        rows = record["phases"]["bench"][1]["speeds"]
        self.assertEqual(len(rows), 58)
        for row in rows:
            self.assertIn("times_as_fast", row)
            bounded = not row["name"].startswith("call of ") and "the host" not in row["name"]
            self.assertEqual("share" in row, bounded, row)
        ceilings = {"layer norm bf16": "copy", "matmul f16": "matmul f16", "conv2d 3x3": "matmul f32",
                    "conv2d 3x3 gradient bf16, channels last": "matmul bf16", "causal attention bf16": "matmul bf16",
                    "attention of one query bf16": "copy"}
        self.assertEqual({row["name"]: row["of"] for row in rows if row["name"] in ceilings}, ceilings)
        self.assertEqual(sum("library_us" in row for row in rows), 12)
        self.assertIn("| matmul f32 |", page)
        self.assertIn("ceiling: copy", page)
        self.assertIn("test accuracy", self.machine.log())

    def test_names_are_read_back_and_cases_left_out(self):
        """Each program says which cases it has, and takes each name back; what is left out is there."""
        for key in ["contract", "tensor", "parallel", "models", "kernels"]:
            names = names_of(PROGRAMS[key], ["~[.]"], None)
            self.assertGreater(len(names), 20)
            spec = ",".join(f'"{escaped(name)}"' for name in names)
            self.assertEqual(names_of(PROGRAMS[key], [spec], None), names)
            if key in ("tensor", "parallel"):
                self.assertTrue(left_out(ROOT, key))
                for pattern in left_out(ROOT, key):
                    self.assertTrue(any(matches(pattern, name) for name in names), pattern)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
