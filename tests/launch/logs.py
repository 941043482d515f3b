"""Tests of lockstep-run: files for the output of ranks. See launcher.py for how it is started."""
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from launcher import RUN, SOON, Started, environment, lines, main, run
from support.jobs import free_port


def can_mount():
    return bool(shutil.which("unshare")) and subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/tmp"], capture_output=True).returncode == 0


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
            result = run("-n", "2", "--log-dir", str(self.logs), "--tee", "3", *options, *self.PROGRAM)
            self.assertEqual(self.texts(), [["err", f"out {r}", "partial"] for r in range(2)])
            self.assertEqual(lines(result.stdout),
                             sorted(f"{p}{word}" for r, p in enumerate(prefixes) for word in (f"out {r}", "partial")))
            self.assertEqual(lines(result.stderr), sorted(f"{p}err" for p in prefixes))

    def test_what_is_shown(self):
        program = ("sh", "-c", "[ $LOCKSTEP_RANK -lt 2 ] || [ $LOCKSTEP_RANK -gt 10 ] || exit 0; echo out; echo err >&2")
        logged = ("--log-dir", str(self.logs))
        for options, out, err in [
            ((*logged, "--tee", "0"), (), ()),
            ((*logged, "--tee", "1"), (0, 1, 11), ()),
            ((*logged, "--tee", "2"), (), (0, 1, 11)),
            ((*logged, "--tee", "0:1,11:3"), (0, 11), (11,)),
            ((*logged, "--tee", "1:2"), (), (1,)),
            ((*logged, "--show", "11"), (11,), (11,)),
            ((*logged, "--tee", "0:1,11:2", "--show", "1-11"), (), (11,)),
            (("--show", "0,1-10"), (0, 1), (0, 1)),
            (("--show", "3"), (), ()),
        ]:
            with self.subTest(options):
                result = run("-n", "12", *options, *program)
                self.assertEqual((result.returncode, lines(result.stdout), lines(result.stderr)),
                                 (0, sorted(f"[{r}] out" for r in out), sorted(f"[{r}] err" for r in err)))
                if logged[0] in options:
                    for rank in range(12):
                        text = (self.logs / f"rank{rank}.log").read_text()
                        self.assertEqual(lines(text), [] if 1 < rank < 11 else ["err", "out"])
        result = run("-n", "2", "--no-prefix", "--show", "1", "sh", "-c", "echo $LOCKSTEP_RANK")
        self.assertEqual((result.returncode, result.stdout), (0, "1\n"))

    def test_wrong_choices(self):
        for options, said in [
            (("--tee", "3"), "expected --log-dir along with --tee"),
            (("--log-dir", "/x", "--tee", "4"), "--tee: expected a mode from 0 to 3, got '4'"),
            (("--log-dir", "/x", "--tee", "-1"), "--tee"),
            (("--log-dir", "/x", "--tee", "2:1"), "--tee: expected a rank from 0 to 1, got '2'"),
            (("--log-dir", "/x", "--tee", "0:9"), "--tee: expected a mode from 0 to 3, got '9'"),
            (("--log-dir", "/x", "--tee", "0:1,1"), "--tee: expected rank:mode, got '1'"),
            (("--log-dir", "/x", "--tee", "0:1,0:2"), "--tee: expected every rank once, got rank 0 twice"),
            (("--log-dir", "/x", "--tee", "0:1,"), "--tee: expected rank:mode, got ''"),
            (("--log-dir", "/x", "--tee", ":1"), "--tee: expected a rank from 0 to 1, got ''"),
            (("--log-dir", "/x", "--tee"), "expected a mode from 0 to 3, got 'echo'"),
            (("--show", "2"), "--show: expected a rank from 0 to 1, got '2'"),
            (("--show", "1-0"), "--show: expected the lower rank first, got '1-0'"),
            (("--show", "0-1,1"), "--show: expected every rank once, got rank 1 twice"),
            (("--show", "all"), "--show: expected a rank from 0 to 1, got 'all'"),
            (("--show", "99999999999999999999"), "--show: expected a rank from 0 to 1"),
        ]:
            with self.subTest(options):
                result = run("-n", "2", *options, "echo", "started")
                self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
                self.assertIn(said, result.stderr)

    def test_names_on_several_nodes(self):
        master = f"127.0.0.1:{free_port()}"
        jobs = [Started("-n", "2", "--nnodes", "2", "--node-rank", str(node), "--master", master, "--log-dir",
                        str(self.logs), "--tee", "3:1", "sh", "-c", "echo $LOCKSTEP_RANK") for node in (0, 1)]
        self.assertEqual([job.finish() for job in jobs], [(0, "", ""), (0, "[3] 3\n", "")])
        for rank in range(4):
            self.assertEqual((self.logs / f"rank{rank}.log").read_text(), f"{rank}\n")

    @unittest.skipUnless(can_mount(), "no file systems can be mounted")
    def test_a_disk_that_is_full(self):
        self.logs.mkdir(parents=True)
        fill = 'mount -t tmpfs -o size=8k none "$0" && head -c 8192 /dev/zero > "$0/all" && exec "$@"'
        result = subprocess.run(["unshare", "--mount", "sh", "-c", fill, self.logs, RUN, "-n", "2", "--log-dir", self.logs,
                                 "echo", "started"], capture_output=True, text=True, timeout=SOON, env=environment())
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn(f"cannot write '{self.logs}/rank0.log': No space left on device", result.stderr)

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
