"""scripts/gpu_check on a pretended machine whose programs hang, crash, fail and spoil: what the record says of it.

usage: troubles.py <lockstep-gpu-check-trouble> <a shared library>
"""
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
import xml.etree.ElementTree as xml

from pretended import ROOT, Machine, cases_of, find_tool, left_running, programs

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from support.jobs import skip  # noqa: E402

TROUBLE, STAND_IN = sys.argv[1:3]
EVERYTHING = {key: TROUBLE for key in ("contract", "kernels", "tensor", "parallel")}
FAILS = "a case that fails, with [brackets], commas and a \\"
NAMESPACE = ["unshare", "-rm", "sh", "-ec"]


def can_unshare():
    return subprocess.run([*NAMESPACE, "mount -t tmpfs none /mnt"], capture_output=True, check=False).returncode == 0


class Case(unittest.TestCase):
    def setUp(self):
        self.machine = Machine(STAND_IN)
        self.addCleanup(self.machine.remove)

    def go(self, *arguments, code, packed=True, before=(), **variables):
        """The script's output."""
        if packed:
            self.machine.pack(EVERYTHING)
            arguments = ("--prebuilt", self.machine.prebuilt, *arguments)
        got, text, self.seconds = self.machine.run(*arguments, before=before, **variables)
        self.assertIn(got, code if isinstance(code, tuple) else (code,), text)
        return text


class Programs(Case):
    def test_what_hangs_crashes_and_fails_costs_one_case(self):
        self.go("contract", "kernels", "--seconds", 200, "--case-seconds", 5, code=1,
                TROUBLE="hang crash exit fail spoil")
        record = self.machine.record()
        for phase in ["contract", "kernels"]:
            cases = cases_of(record, phase)
            wanted = {"a case that passes": "pass", "a case that hangs": "fail", "a case that crashes": "fail",
                      "a case that ends the program": "fail", FAILS: "fail", "a case that spoils the device": "fail",
                      "a case that needs a sound device": "pass", "a case that prints without end": "pass",
                      "a case that is skipped": "skipped", "a case that cannot tell": "pass",
                      "NCCL alone: a case": "pass"}
            self.assertEqual({name: case["result"] for name, case in cases.items()}, wanted)
            self.assertEqual(cases["a case that hangs"]["detail"], "did not end within 5 s")
            self.assertIn("words of the case that hangs", cases["a case that hangs"]["output"])
            self.assertEqual(cases["a case that crashes"]["detail"], "ended by SIGABRT")
            self.assertEqual(cases["a case that ends the program"]["detail"], "exit code 3")
            self.assertIn("CHECK( got == 2 )  with  3 == 2", cases[FAILS]["output"])
            self.assertIn("unverified: peers", cases["a case that cannot tell"]["notes"][0])
        page = self.machine.page()
        first = page.index("## Failed")
        for heading in ["## Machine", "## contract", "## kernels"]:
            self.assertLess(first, page.index(heading))
        self.assertLess(page.index("| contract | contract | a case that hangs |"), page.index("## Machine"))
        self.assertEqual(record["state"], "complete")
        suites = xml.parse(next(self.machine.out.glob("*.junit.xml"))).getroot()
        self.assertEqual([suite.get("failures") for suite in suites.iter("testsuite")], ["5", "5"])
        log = self.machine.log()
        self.assertTrue("words of the case that fails" in log, "whole outputs are in the log")
        self.assertEqual(log.count("CHECK( got == 2 )"), 2 * 500)
        self.assertEqual(left_running(self.machine.folder), [])

    def test_all_is_well(self):
        self.go("contract", "tensor", "parallel", "nccl", code=0)
        record = self.machine.record()
        self.assertEqual(record["programs"]["from"], "prebuilt")
        self.assertEqual(record["gpu"]["name"], "NVIDIA Pretended")
        self.assertNotIn("## Failed", self.machine.page())
        self.assertEqual(list(cases_of(record, "nccl")), ["NCCL alone: a case"])
        told = cases_of(record, "nccl")["NCCL alone: a case"]["notes"][0]
        for name, value in [("LOCKSTEP_CUBLASLT_LIBRARY", self.machine.toolkit / "lib64" / "libcublasLt.so.13"),
                            ("LOCKSTEP_NCCL_LIBRARY", self.machine.nccl), ("LOCKSTEP_CUDA_DEVICES", 1),
                            ("LOCKSTEP_GOLDEN_FOLDER", ROOT / "tests" / "golden")]:
            self.assertIn(f" {name}={value} ", told)
        files = sorted(path.name for path in self.machine.out.iterdir())
        self.assertEqual([re.sub(r"^.*\d{4}-\d\d-\d\d", "", name) for name in files],
                         [".json", ".junit.xml", ".log.gz", ".md"])

    def test_a_case_that_prints_without_end(self):
        self.go("contract", "--cases", "a case that prints*", code=1, TROUBLE="noise", TMPDIR=str(self.machine.folder))
        cases = cases_of(self.machine.record(), "contract")
        self.assertEqual({case["detail"] for case in cases.values()}, {"printed too much"})
        self.assertLess(sum(path.stat().st_size for path in self.machine.out.iterdir()), 1 << 20)

    def test_a_program_that_fails_behind_its_last_case(self):
        self.go("tensor", code=1, TROUBLE="leave")
        cases = cases_of(self.machine.record(), "tensor")
        self.assertEqual(cases["after 'NCCL alone: a case'"]["detail"], "exit code 7")

    def test_the_sanitizer_finds_something_refuses_or_is_missing(self):
        self.go("memcheck", code=1, STUB_SANITIZER="finds")
        cases = cases_of(self.machine.record(), "memcheck")
        self.assertEqual([case["result"] for case in cases.values()], ["fail", "fail"])
        self.assertIn("Invalid __global__ write", cases["a small case"]["output"])
        self.go("memcheck", code=1, STUB_SANITIZER="refuses")
        cases = cases_of(self.machine.record(), "memcheck")
        self.assertEqual([case["result"] for case in cases.values()], ["fail", "not run"])
        self.assertIn("compute-sanitizer does not work here", self.machine.page())
        self.assertIn("Device not supported", self.machine.page())
        (self.machine.tools / "compute-sanitizer").unlink()
        text = self.go("memcheck", "races", "contract", code=(0, 4))
        self.assertEqual("compute-sanitizer was not found" in text, not find_tool("compute-sanitizer"))

    def test_the_sanitizer_runs_with_the_cache_and_without(self):
        self.go("memcheck", code=0)
        told = [row["cases"][0]["notes"][0] for row in self.machine.record()["phases"]["memcheck"]]
        self.assertIn(" LOCKSTEP_CACHE= ", told[0])
        self.assertIn(" LOCKSTEP_CACHE=off ", told[1])

    def test_the_time_is_up_in_the_middle(self):
        self.go("contract", "kernels", "tensor", "--seconds", 15, "--case-seconds", 100, code=4, TROUBLE="hang")
        self.assertLess(self.seconds, 60)
        record = self.machine.record()
        cases = cases_of(record, "contract")
        self.assertEqual(cases["a case that passes"]["result"], "pass")
        self.assertEqual(cases["a case that hangs"]["detail"], "the time was up while it ran")
        self.assertEqual(cases["a case that crashes"]["detail"], "the time was up")
        for phase in ["kernels", "tensor"]:
            self.assertEqual({case["detail"] for case in cases_of(record, phase).values()}, {"the time was up"})


class Ends(Case):
    def begin(self, **variables):
        """A run that waits for a case that hangs, and has come to it."""
        self.machine.pack(EVERYTHING)
        process = self.machine.start("contract", "--prebuilt", self.machine.prebuilt, "--case-seconds", 500,
                                     "--seconds", 500, TROUBLE="hang", TMPDIR=str(self.machine.folder), **variables)
        self.addCleanup(process.kill)
        for line in process.stdout:
            if line.startswith("== contract"):
                break
        deadline = time.monotonic() + 100
        while not list(self.machine.folder.glob("gpu_check.*/cases.xml")) and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1)
        return process

    def test_interrupted(self):
        for number in [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]:
            process = self.begin()
            process.send_signal(number)
            text, _ = process.communicate(timeout=100)
            self.assertEqual(process.returncode, 5, text)
            self.assertEqual(self.machine.record()["state"], "interrupted")
            self.assertIn("**The run was interrupted in contract**", self.machine.page())
            self.assertEqual(left_running(self.machine.folder), [])
            self.assertEqual(list(self.machine.folder.glob("gpu_check.*")), [])

    def test_killed(self):
        process = self.begin()
        process.kill()
        process.communicate(timeout=100)
        self.assertEqual(self.machine.record()["state"], "interrupted")
        self.assertIn("**The run was interrupted in contract**", self.machine.page())
        for path in left_running(self.machine.folder):  # nobody is left who could end it
            subprocess.run(["kill", "-9", path], check=False)

    def test_another_call_keeps_what_there_is(self):
        self.go("contract", code=0)
        self.go("kernels", code=1, TROUBLE="fail")
        record = self.machine.record()
        self.assertEqual(cases_of(record, "contract")["a case that passes"]["result"], "pass")
        self.assertEqual(cases_of(record, "kernels")[FAILS]["result"], "fail")
        self.go("kernels", code=0)
        self.assertEqual(cases_of(self.machine.record(), "kernels")[FAILS]["result"], "pass")
        self.go("kernels", "--commit", "other", code=0)
        self.assertEqual(list(self.machine.record()["phases"]), ["kernels"])


class Places(Case):
    def test_bare_environment(self):
        """No HOME, nothing but PATH; libraries and tools where they lie."""
        self.go("contract", code=0, before=["env", "-i", f"PATH={self.machine.tools}:/usr/bin:/bin"])
        self.assertEqual(self.machine.record()["state"], "complete")

    def test_libraries_are_found_where_they_lie_or_named(self):
        self.go("probe", code=(0, 4))
        libraries = self.machine.record()["libraries"]
        self.assertEqual(libraries["cublasLt"]["path"], str(self.machine.toolkit / "lib64" / "libcublasLt.so.13"))
        self.assertEqual(libraries["nccl"]["path"], str(self.machine.nccl))
        self.assertEqual(self.machine.record()["tools"]["nvcc"], str(self.machine.toolkit / "bin" / "nvcc"))
        text = self.go("probe", code=4, LOCKSTEP_NCCL_LIBRARY="/nowhere/libnccl.so.2")
        self.assertIn("/nowhere/libnccl.so.2 was not found", text)
        (self.machine.toolkit / "lib64" / "libcublasLt.so.13").write_text("no library")
        self.go("probe", code=(0, 4))
        self.assertIn("(does not open)", self.machine.record()["libraries"]["cublasLt"]["tried"][0])

    def test_no_gpu(self):
        self.machine.stub(self.machine.tools, "nvidia-smi", "exit 9")
        text = self.go("contract", code=3)
        self.assertIn("there is no GPU here", text)
        self.assertFalse(self.machine.out.exists())

    def test_wrong_arguments(self):
        self.go("nothing", code=2)
        self.go("--prebuilt", self.machine.folder, packed=False, code=2)
        self.go("--seconds", 0, code=2)

    def test_out_cannot_be_written(self):
        (self.machine.folder / "out").write_text("a file, no folder")
        text = self.go("kernels", code=1, TROUBLE="fail")
        self.assertIn("the record cannot be written", text)
        self.assertIn("| kernels | kernels against the host's | a case that fails", text)

    def test_out_is_full_and_the_tree_cannot_be_written(self):
        if not can_unshare():
            skip("namespaces of mounts are not permitted")
        self.machine.out.mkdir()
        full = 'mount -t tmpfs -o size=8k none "$1"; shift; exec "$@"'
        text = self.go("kernels", code=1, TROUBLE="fail", before=[*NAMESPACE, full, "sh", self.machine.out])
        self.assertIn("No space left on device", text)
        self.assertIn("| kernels | kernels against the host's | a case that fails", text)
        read_only = 'mount --bind "$1" "$1"; mount -o remount,ro,bind "$1"; shift; exec "$@"'
        self.go("contract", code=0, before=[*NAMESPACE, read_only, "sh", ROOT])
        self.assertEqual(self.machine.record()["state"], "complete")


class Builds(Case):
    def put(self, *keys):
        for key in keys:
            shutil.copy(TROUBLE, self.machine.built / programs.PROGRAMS[key][0])

    def test_prepared_with_a_compiler_runs_without_one(self):
        self.put(*programs.PROGRAMS)
        text = self.go("--prepare", self.machine.prebuilt, packed=False, code=0)
        self.assertRegex(text, r"packed: .*programs\.tar\.xz bytes=\d+")
        asked = (self.machine.folder / "stub.log").read_text()
        for option in ["-DLOCKSTEP_WERROR=OFF", "-DLOCKSTEP_MPI=OFF", "-DLOCKSTEP_ONEDNN=OFF", "-static-libstdc++",
                       "-DCMAKE_CUDA_ARCHITECTURES=90", "-DCMAKE_CUDA_COMPILER=" + str(self.machine.toolkit)]:
            self.assertIn(option, asked)
        manifest, found = programs.unpack(self.machine.prebuilt, self.machine.folder / "unpacked")
        self.assertEqual(sorted(found), sorted(programs.PROGRAMS))
        self.assertTrue((self.machine.folder / "unpacked" / "headers" / "include" / "nlohmann" / "json.hpp").exists())
        for key, path in found.items():
            self.assertEqual(programs.digest_of(path), manifest["programs"][key]["sha256"])
        (self.machine.folder / "stub.log").unlink()
        (self.machine.tools / "cmake").unlink()
        self.go("contract", "--prebuilt", self.machine.prebuilt, packed=False, code=0)
        self.assertFalse((self.machine.folder / "stub.log").exists())

    def test_what_does_not_start_is_built_here(self):
        self.put("contract", "kernels")
        self.machine.stub(self.machine.folder, "broken", "echo 'version GLIBC_9.9 not found' >&2; exit 1")
        self.machine.pack({"contract": self.machine.folder / "broken", "kernels": TROUBLE})
        self.go("contract", "kernels", "--prebuilt", self.machine.prebuilt, packed=False, code=0)
        about = self.machine.record()["programs"]
        self.assertEqual(about["from"], "prebuilt and built")
        self.assertIn("GLIBC_9.9", about["why"][0])
        self.assertIn("GLIBC_9.9", self.machine.page())
        asked = (self.machine.folder / "stub.log").read_text()
        self.assertIn("--target lockstep-cuda-contract", asked)
        self.assertNotIn("lockstep-tests-kernels", asked)  # only what is needed
        self.assertIn("-DLOCKSTEP_WERROR=OFF", asked)

    def test_an_archive_that_was_cut_off_or_changed(self):
        self.put("contract")
        self.machine.pack(EVERYTHING)
        archive = self.machine.prebuilt / programs.ARCHIVE
        whole = archive.read_bytes()
        for bad in [whole[:1000], whole[:-100] + b"?" * 100]:
            archive.write_bytes(bad)
            self.go("contract", "--prebuilt", self.machine.prebuilt, packed=False, code=0)
            about = self.machine.record()["programs"]
            self.assertEqual(about["from"], "built")
            self.assertIn("it was cut off", about["why"][0])

    def test_a_build_does_not_take_the_time_of_what_is_there(self):
        self.machine.stub(self.machine.tools, "cmake", 'case $1 in --build) cd "$STUB_BUILT"; sleep 500; echo ;; esac')
        self.machine.pack({"kernels": TROUBLE})
        self.go("contract", "kernels", "--prebuilt", self.machine.prebuilt, "--seconds", 15, packed=False, code=1)
        record = self.machine.record()
        self.assertIn("did not end within", cases_of(record, "build")["build: contract"]["detail"])
        self.assertEqual(cases_of(record, "kernels")["a case that passes"]["result"], "pass")
        self.assertEqual(left_running(self.machine.folder), [])

    def test_a_build_that_fails_is_a_failed_row(self):
        self.machine.stub(self.machine.tools, "cmake", 'case $1 in --build) echo "error: no"; exit 1 ;; esac')
        self.go("contract", packed=False, code=1)
        self.assertIn("error: no", self.machine.page())
        row = cases_of(self.machine.record(), "contract")["contract"]
        self.assertEqual(row["detail"], "the program contract is not there")

    def test_prepare_without_a_compiler(self):
        (self.machine.tools / "cmake").unlink()
        text = self.go("--prepare", self.machine.prebuilt, packed=False, code=3, PATH=str(self.machine.tools))
        self.assertIn("nothing was packed: there is no CMake here", text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
