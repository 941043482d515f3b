"""Tests of lockstep-run: files for the output of ranks. See launcher.py for how it is started."""
import pathlib
import tempfile
import unittest

from launcher import lines, main, run


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


if __name__ == "__main__":
    main()
