"""onednn.py <source tree> <cmake>: configuring where there is an oneDNN 4: AUTO goes on without it and says why, ON stops
with the same sentence, and 2 and 3 are taken."""
import pathlib
import subprocess
import sys
import tempfile

tree, cmake = sys.argv[1:]
PROJECT = f"""cmake_minimum_required(VERSION 3.24)
project(pretend LANGUAGES CXX)
list(APPEND CMAKE_MODULE_PATH "{tree}/scripts/cmake")
set(PROJECT_IS_TOP_LEVEL OFF)
set(LOCKSTEP_MPI OFF)
set(LOCKSTEP_CUDA OFF)
include(dependencies)
message(STATUS "found: ${{ONEDNN_FOUND}}")
"""


def configure(version, wanted):
    with tempfile.TemporaryDirectory() as folder:
        prefix = pathlib.Path(folder, "prefix")
        (prefix / "include/oneapi/dnnl").mkdir(parents=True)
        (prefix / "lib").mkdir()
        (prefix / "lib/libdnnl.so").write_text("")
        (prefix / "include/oneapi/dnnl/dnnl.h").write_text("")
        major, minor, patch = version.split(".")
        (prefix / "include/oneapi/dnnl/dnnl_version.h").write_text(
            f"#define DNNL_VERSION_MAJOR {major}\n#define DNNL_VERSION_MINOR {minor}\n#define DNNL_VERSION_PATCH {patch}\n")
        pathlib.Path(folder, "CMakeLists.txt").write_text(PROJECT)
        return subprocess.run([cmake, "-S", folder, "-B", folder + "/build", f"-DLOCKSTEP_DEPS_DIR={prefix}",
                               f"-DLOCKSTEP_ONEDNN={wanted}"], capture_output=True, text=True)


def expect(what, result, code, *texts):
    words = " ".join((result.stdout + result.stderr).split())
    missing = [text for text in texts if text not in words]
    if (result.returncode != 0) == (code != 0) and not missing:
        return
    print(f"{what}: expected exit code {code} and {missing}, got {result.returncode}:\n{result.stdout}{result.stderr}")
    sys.exit(1)


SENTENCE = "cannot be used: expected version 2.x or 3.x"
expect("AUTO with 4.0.1", configure("4.0.1", "AUTO"), 0, "oneDNN 4.0.1 in", SENTENCE, "Going on without", "found: FALSE")
expect("ON with 4.0.1", configure("4.0.1", "ON"), 1, "LOCKSTEP_ONEDNN=ON, but oneDNN 4.0.1 in", SENTENCE)
for version in ("2.6.3", "3.2.0"):
    expect(f"AUTO with {version}", configure(version, "AUTO"), 0, "found: TRUE")
print("4 is refused with a sentence, 2 and 3 are taken")
