"""A build that leaves OpenMMLab's layer, MPI or CUDA out has none of their sources, installs none of their headers that
need them, and has something in their place that links.

usage: left_out.py <source tree> <cmake> <folder to work in>
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys

LEFT_OUT = {"OPENMMLAB": "openmmlab", "MPI": "mpi", "CUDA": "cuda|nccl"}


def configure(source, cmake, folder, *options):
    """The sources of the build and the headers that it installs, relative to the tree."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [cmake, "-S", source, "-B", str(folder), "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", "-DLOCKSTEP_TESTS=OFF",
               "-DLOCKSTEP_EXAMPLES=OFF", "-DLOCKSTEP_BENCHMARKS=OFF", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}")
    commands = json.loads((folder / "compile_commands.json").read_text())
    files = {pathlib.Path(entry["file"]) for entry in commands}
    sources = sorted(file.relative_to(source).as_posix() for file in files
                     if file.is_relative_to(source) and not file.is_relative_to(folder))
    script = (folder / "cmake_install.cmake").read_text()
    return sources, re.findall(r'"[^"]*/include/lockstep/([^"]+\.h)"', script)


def main():
    source, cmake, folder = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    wrong = []
    for option, names in LEFT_OUT.items():
        others = [f"-DLOCKSTEP_{other}=OFF" for other in LEFT_OUT if other != "OPENMMLAB"]
        sources, headers = configure(source, cmake, folder, f"-DLOCKSTEP_{option}=OFF", *others)
        below = re.compile(rf"(^|/)({names})/")
        there = [name for name in sources if below.search(name)]
        stand_ins = [name for name in there if name.endswith("/absent.cpp")]
        if there != stand_ins:
            wrong.append(f"LOCKSTEP_{option}=OFF compiles {sorted(set(there) - set(stand_ins))}")
        if option != "OPENMMLAB" and not stand_ins:
            wrong.append(f"LOCKSTEP_{option}=OFF has no absent.cpp")
        if len(sources) < 150 or len(headers) < 60:
            wrong.append(f"LOCKSTEP_{option}=OFF: expected the rest of the library, got {len(sources)} sources and "
                         f"{len(headers)} headers")
        if option == "OPENMMLAB" and any(below.search(name) for name in headers):
            wrong.append(f"LOCKSTEP_{option}=OFF installs {[name for name in headers if below.search(name)]}")
    print("\n".join(wrong) or "nothing of what is left out")
    return bool(wrong)


sys.exit(main())
