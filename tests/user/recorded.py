"""A program that is recorded by environment variables alone writes the recording at its end, as the rank that it is.

usage: recorded.py <lockstep-user-recorded> [<lockstep-bench> <machine file>]
"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from support.jobs import clean_environment  # noqa: E402

PROGRAM, *SIMULATE = sys.argv[1:]
RANK = {"RANK": "3", "WORLD_SIZE": "16", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "9"}  # nobody listens there, and nobody is asked


class Recorded(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_program(self, file, *arguments, mode="record", code=0):
        environment = clean_environment(LOCKSTEP_HOST_MODE=mode, LOCKSTEP_HOST_DEVICES="4", LOCKSTEP_RECORD=str(file),
                                        **RANK)
        run = subprocess.run([PROGRAM, file.parent, *arguments], env=environment, capture_output=True, text=True, timeout=240)
        self.assertEqual(run.returncode, code, run.stdout + run.stderr)
        return run.stdout

    def test_the_end_writes_the_whole_recording(self):
        texts = []
        for name, arguments in (("returns", []), ("again", []), ("exits", ["exit"])):
            folder = self.folder / name
            folder.mkdir()
            said = self.run_program(folder / "step.rec", *arguments)
            self.assertIn("recorded: rank 3 of 16 on 2 hosts, recording not written", said)
            self.assertEqual([file.name for file in folder.iterdir()], ["step.rank3.rec"])
            texts.append((folder / "step.rank3.rec").read_text())
        self.assertEqual(texts[0], texts[1])
        self.assertEqual(texts[0], texts[2])
        lines = texts[0].splitlines()
        self.assertEqual(lines[0], "lockstep-recording 1")
        self.assertEqual(lines.count("mark step"), 3)  # of the two steps after the restart
        reduced = [line.split() for line in lines if line.startswith("collective ") and " all_reduce " in line]
        self.assertEqual(len(reduced), 2, "a bucket in each step")
        for line in reduced:  # name, dtype, bytes (gradients begin at multiples of 256), group, rank, size, root
            self.assertEqual(line[2:4] + line[6:8], ["all_reduce", "f32", "3", "16"])
            self.assertGreaterEqual(int(line[4]), 4 * (64 * 32 + 32 + 32 * 8 + 8))
        if SIMULATE:
            said = subprocess.run([SIMULATE[0], "simulate", self.folder / "returns" / "step.rank3.rec", "--machine", SIMULATE[1]],
                                  capture_output=True, text=True, timeout=240)
            self.assertEqual(said.returncode, 0, said.stdout + said.stderr)
            self.assertIn("Predicted step", said.stdout)

    def test_other_modes_do_not_record(self):
        said = self.run_program(self.folder / "step.rec", mode="async", code=1)
        self.assertIn("expected LOCKSTEP_HOST_MODE=record beside it", said)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_file_that_cannot_be_written_is_an_error_before_anything_runs(self):
        said = self.run_program(self.folder / "no" / "folder", code=1)
        self.assertIn("expected a file that can be written", said)
        self.assertNotIn("rank 3", said)


unittest.main(argv=sys.argv[:1])
