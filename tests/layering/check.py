"""Checks the rules of the source tree that a compiler does not: who may include whom, and what a library never does.

usage: check.py <source tree>        prints one line per breach, exits 1 if there is any
"""
import pathlib
import re
import sys

LAYERS = ["runtime", "kernels", "tensor", "parallel", "models", "c"]  # each may include itself and the ones before it
# lockstep-run, and what programs of benchmarks read their command line with: they may print and exit
PROGRAM = ("parallel/launch/", "parallel/bench/command_line.")

ACYCLIC = LAYERS  # whose folders form no circle

VENDOR = {"cuda", "nccl"}  # folders that a build without CUDA leaves out

COMMENT = r'//[^\n]*|/\*.*?\*/'
TEXT = r'R"([^(]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\''
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.M)

# (what must not appear in code, the files that may contain it, why)
FORBIDDEN = [
    (r"\bstd::(cout|cerr|clog)\b|(?<![\w:.>])(std::)?(printf|puts|putchar)\s*\(|\b(stdout|stderr)\b",
     {"runtime/log.cpp"}, "a library does not print"),
    (r"\bstd::(abort|exit|_Exit|quick_exit|terminate)\b|(?<![\w>])::(abort|_?exit|_Exit)\s*\("
     r"|(?<![\w:.>~])(?<!void )(_?exit|_Exit|quick_exit)\s*\(",
     set(), "a library does not end the process"),
    (r"\bcuda\w*Synchronize\b", set(), "the host waits for a device in one place only"),
    (r"\bcudaMemcpy\s*\(", set(), "cudaMemcpy blocks the host: use the asynchronous copy"),
    (r"\bcuda(Malloc|Free)(Host|Async|FromPoolAsync|Managed|Array)?\s*\(|\bcudaHostAlloc\s*\(",
     {"runtime/cuda/cuda_memory.cpp", "runtime/cuda/cuda_device.cpp", "runtime/cuda/cuda_backend.cpp"},
     "raw memory calls block, and deadlock beside a collective: they are made in one place, under its lock"),
    (r"<<<", {"kernels/cuda/launch.cuh"}, "kernels are launched through one checked wrapper"),
]


def without(pattern, text):
    """Blanks what `pattern` matches and keeps the line numbers."""
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)


def without_comments(text):
    """Blanks comments; a string that looks like one stays."""
    keep = re.compile(f"(?P<comment>{COMMENT})|{TEXT.replace(chr(92) + '1', chr(92) + '2')}", re.S)
    return keep.sub(lambda m: re.sub(r"[^\n]", " ", m.group()) if m["comment"] else m.group(), text)


def line_of(text, position):
    return text.count("\n", 0, position) + 1


PUBLIC = "scripts/cmake/public_headers.cmake"
LINES = 400  # at most, in a header that is installed


def installed(root):
    """The headers that users are told to include, and what these include, as the build installs them."""
    if not (root / PUBLIC).exists():
        return [], set()
    listed = re.findall(r"^  (?:list\(APPEND headers_for_users )?([\w/]+\.h)\)?$", (root / PUBLIC).read_text(), re.M)
    found, still = set(), list(listed)
    while still:
        header = still.pop()
        if header in found or not (root / header).exists():
            continue
        found.add(header)
        still += [target.removeprefix("lockstep/") for quote, target in INCLUDE.findall((root / header).read_text())
                  if target.startswith("lockstep/")]
    return listed, found


def include_breach(path, quote, target, public):
    """What is wrong with `path` including `target`, or None."""
    layer = path.split("/")[0]
    name = target.split("/")[-1]
    if target.startswith("lockstep/"):
        if quote == "<":
            return f'write "{target}" in quotes'
        other = target.split("/")[1]
        if other == "version.h":  # macros, which the build makes
            return None
        if other not in LAYERS:
            return f"{target} is the users' header: include what is needed of it"
        if LAYERS.index(other) > LAYERS.index(layer):
            return f"{layer}/ lies below {other}/ and must not include {target}"
        return None
    if quote == '"':
        return f'write "lockstep/..." instead of "{target}"'
    if re.match(r"(cuda|cublas|nvToolsExt)\w*\.h(pp)?$", name) and not VENDOR & set(path.split("/")[:-1]):
        return f"{target} belongs under a cuda/ folder"
    if name == "nccl.h" and not path.split("/")[-1].startswith("nccl"):
        return "nccl.h belongs in files named nccl*"
    if name == "mpi.h" and not path.split("/")[-1].startswith("mpi"):
        return "mpi.h belongs in files named mpi*"
    if path in public and re.match(r"(nlohmann|oneapi|CLI|catch2)/", target):
        return f"a public header must not include {target}: users would need it too"
    return None


def find_cycle(graph):
    """The files of one include cycle, or None."""
    done, trail = set(), []

    def visit(node):
        if node in trail:
            return trail[trail.index(node):] + [node]
        if node in done:
            return None
        trail.append(node)
        for follower in sorted(graph.get(node, ())):
            cycle = visit(follower)
            if cycle:
                return cycle
        trail.pop()
        done.add(node)
        return None

    return next(filter(None, map(visit, sorted(graph))), None)


def folders_of(graph, layer):
    """Which folders of a layer include which others of it."""
    folders = {}
    for path, targets in graph.items():
        for target in targets:
            source, included = (name.rpartition("/")[0] for name in (path, target))
            if source != included and all(f"{folder}/".startswith(f"{layer}/") for folder in (source, included)):
                folders.setdefault(source, set()).add(included)
    return folders


def check(root):
    """All breaches below `root`, one line each."""
    root = pathlib.Path(root)
    breaches, graph = [], {}
    listed, public = installed(root)
    breaches += [f"{PUBLIC}: there is no {header}" for header in listed if not (root / header).exists()]
    for header in sorted(public):
        lines = len((root / header).read_text().splitlines())
        if lines > LINES:
            breaches.append(f"{header}: a public header has at most {LINES} lines, this one {lines}")
    for folder in LAYERS + ["tests"]:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix not in (".h", ".cpp", ".cu", ".cuh"):
                continue
            path = file.relative_to(root).as_posix()
            text = without_comments(file.read_text())
            if file.suffix in (".h", ".cuh") and not re.search(r"^#pragma once$", text, re.M):
                breaches.append(f"{path}:1: a header starts with #pragma once")
            if folder == "tests":
                continue
            graph[path] = set()
            for match in INCLUDE.finditer(text):
                quote, target = match.groups()
                breach = include_breach(path, quote, target, public)
                if breach:
                    breaches.append(f"{path}:{line_of(text, match.start())}: {breach}")
                graph[path].add(target.removeprefix("lockstep/"))
            own, first = file.with_suffix(".h"), INCLUDE.search(text)
            if file.suffix == ".cpp" and own.exists():  # so that the header is known to compile by itself
                wanted = f"lockstep/{own.relative_to(root).as_posix()}"
                if not first or first.group(2) != wanted:
                    breaches.append(f'{path}:1: a source includes its own header first: "{wanted}"')
            if path.startswith(PROGRAM):
                continue
            code = without(TEXT, text)
            for pattern, allowed, why in FORBIDDEN:
                for match in re.finditer(pattern, code):
                    if path not in allowed:
                        breaches.append(f"{path}:{line_of(code, match.start())}: {match.group().strip()}: {why}")
    if not graph:
        breaches.append(f"{root}: no sources here")
    cycle = find_cycle(graph)
    if cycle:
        breaches.append(f"{cycle[0]}:1: includes form a cycle: {' -> '.join(cycle)}")
    for layer in ACYCLIC:
        cycle = find_cycle(folders_of(graph, layer))
        if cycle:
            breaches.append(f"{cycle[0]}: folders include each other in a circle: {' -> '.join(cycle)}")
    return breaches


if __name__ == "__main__":
    found = check(sys.argv[1])
    print("\n".join(found) or "no breach")
    sys.exit(1 if found else 0)
