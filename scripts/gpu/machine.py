"""What this machine has: its GPU, CUDA's tools, and the libraries that Lockstep opens by name, wherever they lie."""
import glob
import json
import os
import pathlib
import platform
import shutil
import sys

from gpu.run import printed_by

# Of the toolkit, of the driver, and of profilers that are installed beside the toolkit.
TOOL_FOLDERS = ["/usr/local/nvidia/bin", "/opt/nvidia/bin", "/usr/bin", "/usr/local/bin"]
TOOL_PATTERNS = ["/usr/local/cuda-*/bin", "/opt/nvidia/nsight-compute/*"]
# What is looked for, and the variable by which Lockstep is told.
LIBRARIES = {
    "cublasLt": (["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"], "LOCKSTEP_CUBLASLT_LIBRARY"),
    "nccl": (["libnccl.so.2", "libnccl.so"], "LOCKSTEP_NCCL_LIBRARY"),
    "cudnn": (["libcudnn.so.9", "libcudnn.so"], "LOCKSTEP_CUDNN_LIBRARY"),
}
PYTHONS = ["/usr/local/bin/python3", "/usr/bin/python3", "/opt/*/bin/python3", "/opt/*/.venv/bin/python3",
           "/opt/*/venv/bin/python3", "/opt/conda/bin/python3"]
# In a process of its own: a library may do anything when it is opened.
OPENS = """
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1], os.RTLD_NOW | os.RTLD_LOCAL)
version = ""
try:
    if "cublasLt" in sys.argv[1]:
        library.cublasLtGetVersion.restype = ctypes.c_size_t
        version = library.cublasLtGetVersion()
    elif "cudnn" in sys.argv[1]:
        library.cudnnGetVersion.restype = ctypes.c_size_t
        version = library.cudnnGetVersion()
    elif "nccl" in sys.argv[1]:
        number = ctypes.c_int()
        library.ncclGetVersion(ctypes.byref(number))
        version = number.value
except AttributeError:
    pass
print("opens", version)
"""
PACKAGES = "import json, site, sys; print(json.dumps(sys.path + site.getsitepackages() + [site.getusersitepackages()]))"


def roots(paths):
    return [pathlib.Path(root) for root in dict.fromkeys(paths) if root and os.path.isdir(root)]


def named_toolkits():
    """Roots of CUDA toolkits that the environment names."""
    return roots(os.environ.get(name) for name in ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"])


def usual_toolkits():
    return roots(["/usr/local/cuda", *sorted(glob.glob("/usr/local/cuda-*"), reverse=True)])


def find_tool(name):
    """The path of one of CUDA's or the driver's programs, on PATH or where it usually lies; or None."""
    folders = [str(root / "bin") for root in named_toolkits() + usual_toolkits()] + TOOL_FOLDERS
    folders += [folder for pattern in TOOL_PATTERNS for folder in sorted(glob.glob(pattern), reverse=True)]
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))


def find_gpu():
    """Name, driver and compute capability of the first GPU, and how many there are; or None."""
    tool = find_tool("nvidia-smi")
    text = tool and printed_by([tool, "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"], 60)
    if not text:
        return None
    parts = [part.strip() for part in text.splitlines()[0].split(",")]
    if len(parts) != 3:
        return None
    return {"name": parts[0], "driver": parts[1], "compute_capability": parts[2], "count": len(text.splitlines())}


def describe():
    """What a reader of the record wants to know of the machine besides its GPU."""
    processor = ""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        processor = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        pass
    return {"system": platform.platform(), "processor": processor, "cores": os.cpu_count(),
            "python": platform.python_version()}


def pythons():
    """Interpreters of Python 3 that may have packages of their own, this one first."""
    found = [sys.executable, shutil.which("python3")]
    found += [path for pattern in PYTHONS for path in sorted(glob.glob(pattern))]
    return list(dict.fromkeys(path for path in found if path))


def package_folders(python):
    """Where an interpreter looks for packages."""
    text = printed_by([python, "-c", PACKAGES])
    return [folder for folder in dict.fromkeys(json.loads(text.splitlines()[-1])) if folder] if text else []


def places_of(names, variable, folders):
    """Paths at which a library of one of these names may lie. What PyTorch brings comes before a toolkit that nobody
    named: speeds are compared with PyTorch's."""
    named = variable and os.environ.get(variable)
    if named:
        return [named]  # whoever set it wants that one
    places = [os.path.join(folder, name) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder
              for name in names]
    known = printed_by([shutil.which("ldconfig") or "/sbin/ldconfig", "-p"]) or ""
    places += [line.split(" => ")[1].strip() for name in names for line in known.splitlines()
               if line.split(" ")[0].strip() == name and " => " in line]
    places += in_toolkits(named_toolkits(), names)
    for folder in folders:
        for pattern in ["nvidia/*/lib", "nvidia/lib", "torch/lib"]:
            places += [path for name in names for path in sorted(glob.glob(os.path.join(folder, pattern, name)))]
    return list(dict.fromkeys(places + in_toolkits(usual_toolkits(), names)))


def in_toolkits(toolkits, names):
    parts = ["lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib", "lib"]
    return [str(root / part / name) for root in toolkits for part in parts for name in names]


def find_libraries():
    """For each library its path, version and variable, or why there is none."""
    folders = list(dict.fromkeys(folder for python in pythons() for folder in package_folders(python)))
    found = {}
    for library, (names, variable) in LIBRARIES.items():
        entry = {"path": None, "variable": variable, "tried": []}
        places = places_of(names, variable, folders)
        for path in [place for place in places if os.path.exists(place)]:
            text = printed_by([sys.executable, "-c", OPENS, path], 60)
            if text is not None and text.startswith("opens"):
                entry.update(path=path, version=text[len("opens"):].strip())
                break
            entry["tried"].append(f"{path} (does not open)")
        if entry["path"] is None:
            named = places[0] if variable and os.environ.get(variable) else names[0]
            entry["why"] = f"no {named} opens" if entry["tried"] else f"{named} was not found"
        found[library] = entry
    return found


def environment_of(libraries):
    """The variables that let Lockstep find what was found."""
    return {entry["variable"]: entry["path"] for entry in libraries.values() if entry["variable"] and entry["path"]}


def find_torch():
    """Interpreters that have a PyTorch. Nothing is imported: that takes long."""
    return [python for python in pythons()
            if any(os.path.exists(os.path.join(folder, "torch", "__init__.py")) for folder in package_folders(python))]
