"""The programs that need a GPU: built beforehand and packed, unpacked and tried, or built on the spot."""
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import tarfile

from gpu.machine import find_tool
from gpu.run import end_of, printed_by, run

# By worth: where time is short, the first of them are there. Key, target, what it is for.
PROGRAMS = {
    "contract": ("lockstep-cuda-contract", "rules of the CUDA runtime, asked through its own API"),
    "kernels": ("lockstep-tests-kernels", "kernels of the GPU against the host's"),
    "bench": ("lockstep-bench", "measurements"),
    "digits": ("train_digits", "an example that trains a network"),
    "tensor": ("lockstep-cuda-tensor", "tests of the tensor layer on the GPU"),
    "parallel": ("lockstep-cuda-parallel", "tests of the parallel layer on the GPU, NCCL with one rank"),
    "run": ("lockstep-run", "starts two ranks on one GPU"),
    "models": ("lockstep-cuda-models", "tests of models and generation on the GPU"),
}
ARCHIVE, MANIFEST, HEADERS = "programs.tar.xz", "manifest.json", "headers"
MOST_BYTES = 48 << 20  # of the archive: it is to be carried
# No library that another machine may lack, no warning that another compiler may have.
OPTIONS = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O3 -DNDEBUG -g1", "-DLOCKSTEP_CUDA=ON",
           "-DLOCKSTEP_MPI=OFF", "-DLOCKSTEP_ONEDNN=OFF", "-DLOCKSTEP_WERROR=OFF", "-DLOCKSTEP_INSTALL=OFF",
           "-DLOCKSTEP_GPU_TESTS=ON", "-DBUILD_SHARED_LIBS=OFF",
           "-DCMAKE_EXE_LINKER_FLAGS=-static-libstdc++ -static-libgcc"]
# Packages that are headers alone: variable of the CMake cache, folder in it.
HEADER_PACKAGES = {"NLOHMANN_JSON_INCLUDE_DIR": "nlohmann", "CLI11_INCLUDE_DIR": "CLI", "CATCH2_INCLUDE_DIR": "catch2"}


class CannotPrepare(Exception):
    """Nothing can be packed; says why."""


def digest_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def configure_command(root, build, architectures, deps, further):
    """CMake's command line; None where there is no CMake."""
    if not shutil.which("cmake"):
        return None
    command = ["cmake", "-S", root, "-B", build, *OPTIONS, f"-DCMAKE_CUDA_ARCHITECTURES={architectures}"]
    command += ["-G", "Ninja"] if shutil.which("ninja") else []
    nvcc = find_tool("nvcc")
    command += [f"-DCMAKE_CUDA_COMPILER={nvcc}"] if nvcc else []
    command += [f"-DLOCKSTEP_DEPS_DIR={pathlib.Path(deps).resolve()}"] if deps else []
    return command + further


def cached(build, variable):
    """A variable of a CMake cache, or None."""
    match = re.search(rf"^{variable}:\w+=(.+)$", (pathlib.Path(build) / "CMakeCache.txt").read_text(), re.M)
    return match.group(1) if match and not match.group(1).endswith("-NOTFOUND") else None


def header_folders(build):
    """The headers without which another machine cannot build, as far as they are headers alone."""
    folders = {}
    for variable, name in HEADER_PACKAGES.items():
        place = cached(build, variable)
        for folder in [place, "/usr/include", "/usr/local/include"]:
            if folder and (pathlib.Path(folder) / name).is_dir():
                folders[name] = pathlib.Path(folder) / name
                break
    if "catch2" in folders and not (folders["catch2"] / "catch.hpp").exists():
        del folders["catch2"]  # version 3, which is a library
    return folders


def pack(folder, programs, about, headers=None, preset=6):
    """Writes programs (paths by key) into an archive and says in a manifest what it holds. The manifest."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / ARCHIVE
    manifest = {**about, "archive": ARCHIVE, "programs": {}, "headers": sorted(headers or {})}
    with tarfile.open(archive, "w:xz", preset=preset) as tar:
        for key, path in programs.items():
            path = pathlib.Path(path)
            if path.name not in tar.getnames():
                tar.add(path, arcname=path.name)
            manifest["programs"][key] = {"file": path.name, "for": PROGRAMS[key][1], "bytes": path.stat().st_size,
                                         "sha256": digest_of(path)}
        for name, path in (headers or {}).items():
            tar.add(path, arcname=f"{HEADERS}/include/{name}")
    manifest["archive_bytes"], manifest["archive_sha256"] = archive.stat().st_size, digest_of(archive)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def prepare(root, build, folder, wanted, architectures, deps, further, commit):
    """Builds programs for a machine that has a GPU, and packs them. The manifest."""
    if not find_tool("nvcc"):
        raise CannotPrepare("there is no CUDA compiler here (nvcc)")
    command = configure_command(root, build, architectures, deps, further)
    if not command:
        raise CannotPrepare("there is no CMake here")
    targets = [PROGRAMS[key][0] for key in wanted]
    for step in [command, ["cmake", "--build", build, "--parallel", str(os.cpu_count()), "--target", *targets]]:
        if subprocess.run([str(part) for part in step], cwd=root, check=False).returncode != 0:
            raise CannotPrepare(f"this failed: {' '.join(map(str, step))}")
    stripped = pathlib.Path(build) / "stripped"
    stripped.mkdir(exist_ok=True)
    programs = {}
    for key, target in zip(wanted, targets):
        programs[key] = stripped / target
        strip = shutil.which("strip")
        if not strip or subprocess.run([strip, "-o", programs[key], pathlib.Path(build) / "bin" / target],
                                       check=False).returncode != 0:
            shutil.copy2(pathlib.Path(build) / "bin" / target, programs[key])
    compiler = printed_by([cached(build, "CMAKE_CXX_COMPILER") or "c++", "--version"]) or "unknown"
    release = re.search(r"release ([\d.]+)", printed_by([find_tool("nvcc"), "--version"]) or "")
    about = {"commit": commit, "architectures": architectures, "compiler": compiler.splitlines()[0],
             "toolkit": release.group(1) if release else "unknown"}
    manifest = pack(folder, programs, about, header_folders(build))
    if manifest["archive_bytes"] > MOST_BYTES:
        raise CannotPrepare(f"expected an archive of at most {MOST_BYTES >> 20} MiB, "
                            f"got {manifest['archive_bytes'] / (1 << 20):.1f} MiB")
    return manifest


def print_manifest(manifest, folder):
    for key, entry in manifest["programs"].items():
        print(f"{key:9} {entry['file']:26} {entry['bytes'] / (1 << 20):7.1f} MiB  {entry['for']}")
    print(f"headers   {', '.join(manifest['headers']) or 'none'}")
    print(f"packed: {pathlib.Path(folder) / ARCHIVE} bytes={manifest['archive_bytes']}")


def unpack(folder, into):
    """What a prepared folder holds, unpacked: manifest, and paths by key. Raises ValueError with a sentence."""
    folder, into = pathlib.Path(folder), pathlib.Path(into)
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        archive = folder / manifest["archive"]
        if archive.stat().st_size != manifest["archive_bytes"] or digest_of(archive) != manifest["archive_sha256"]:
            raise ValueError(f"{archive} is not what {MANIFEST} says: it was cut off, or is of another time")
        with tarfile.open(archive) as tar:
            if hasattr(tarfile, "data_filter"):
                tar.extractall(into, filter="data")
            else:
                tar.extractall(into)
    except (OSError, KeyError, json.JSONDecodeError, tarfile.TarError) as error:
        raise ValueError(f"{folder} holds no programs that can be used: {error}") from error
    return manifest, {key: into / entry["file"] for key, entry in manifest["programs"].items()}


def why_not_started(path, environment, scratch):
    """Empty when the program starts here."""
    outcome = run([path, "--help"], environment, 60, scratch / "starts.txt", scratch)
    if not outcome.why:
        return ""
    return f"{pathlib.Path(path).name}: {outcome.why}: {end_of(outcome.text, 3, 500)}".rstrip(": \n")


def build_here(root, build, wanted, architectures, deps, further, environment, scratch, left, say):
    """Builds the wanted programs one after the other while there is time. Paths by key, and rows for the record."""
    rows, programs = [], {}
    command = configure_command(root, build, architectures, deps, further)
    if not command or not find_tool("nvcc"):
        missing = "CMake" if not command else "CUDA compiler (nvcc)"
        return {}, [{"name": "build", "result": "fail", "seconds": 0, "detail": f"there is no {missing} here"}]
    steps = [("configure", command)]
    steps += [(key, ["cmake", "--build", build, "--parallel", str(os.cpu_count() or 1), "--target", PROGRAMS[key][0]])
              for key in PROGRAMS if key in wanted]
    for name, step in steps:
        if left() < 5:
            rows.append({"name": f"build: {name}", "result": "not run", "detail": "the time was up"})
            continue
        say(f"build: {name} ...")
        outcome = run(step, environment, left(), scratch / "build.txt", root)
        rows.append({"name": f"build: {name}", "result": "fail" if outcome.why else "pass",
                     "seconds": outcome.seconds, "text": outcome.text, "detail": outcome.why,
                     "output": end_of(outcome.text) if outcome.why else ""})
        if outcome.why and name == "configure":
            break
        path = pathlib.Path(build) / "bin" / PROGRAMS[name][0] if name in PROGRAMS else None
        if path and not outcome.why:
            programs[name] = path
    return programs, rows
