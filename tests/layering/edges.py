"""Checks that everything that orders work or memory stands in LOCKSTEP_EDGE (runtime/edge.h), so that
scripts/edges can take it out, and that docs/edges.md names the test that goes red then.

usage: edges.py <source tree>        prints one line per breach, exits 1 if there is any
"""
import collections
import pathlib
import re
import sys

from check import LAYERS, TEXT, without, without_comments

HEADER = "runtime/edge.h"
# Below the backends' seam, which is what orders; the order checker, which only watches; programs of benchmarks; and the simulator, which orders nothing.
OUTSIDE = re.compile(r"/(host|cuda|nccl)/|^parallel/(bench|simulate)/|(^|/)order_checker\.(h|cpp)$")
NO_EDGE = ("// on CUDA alone",      # never run by the programs of scripts/edges
           "// its edge is inside")

EDGE = re.compile(r"\bLOCKSTEP_EDGE(?:_SCOPE)?\b")
WHOLE_EDGE = re.compile(r"\bLOCKSTEP_EDGE(?:_SCOPE)?\((.*?)\);")  # on its line
ORDERING = [
    # Of a stream, an event, a storage, a backend, a gate; `lock` is an argument of condition variables.
    r"(?:\.|->)(?:wait|wait_for|record|record_use|synchronize|wait_event|query_event|record_event|stream_wait_event|"
    r"bind_thread)\s*\((?!lock\b)",
    r"\bgate\w*\.close\s*\(",
    # The functions, when they are called: not after the type of their result.
    r"(?<![\w.>:~])(?<![\w>&*]\s)(?:lockstep::|detail::)*(?:wait|wait_for_handle|synchronize|synchronize_streams|"
    r"record_use|mark)\s*\((?!\s*\))",
    r"\breturn\s+(?:lockstep::|detail::)*(?:wait|wait_for_handle|synchronize|record_use|mark)\s*\(",
    r"\bStreamScope\s+\w+\s*[({]",
    r"\bstream\s*=\s*&(?:current|default)_stream\s*\(",
]

Place = collections.namedtuple("Place", "path line text")
ROW = re.compile(r"^\| (\S+) \| `(.*?)` \| (\w+): `(.*?)` \| [^|]+ \|$", re.M)


def sources(root):
    for layer in LAYERS:
        for file in sorted((root / layer).rglob("*")):
            path = file.relative_to(root).as_posix()
            if file.suffix in (".h", ".cpp") and path != HEADER:
                yield path, file.read_text()


def find_places(root):
    """The edges, each on a line of its own."""
    return [Place(path, number, match.group(1))
            for path, text in sources(pathlib.Path(root))
            for number, line in enumerate(text.splitlines(), 1)
            for match in [WHOLE_EDGE.search(line)] if match]


def table_rows(places_and_tests):
    """The table of docs/edges.md: no line numbers, they change too often."""
    yield "| file | edge | goes red | how |"
    yield "|---|---|---|---|"
    for place, program, case, how in places_and_tests:
        yield "| {} | `{}` | {}: `{}` | {} |".format(place.path, place.text.replace("|", "\\|"), program, case, how)


def check(root):
    root = pathlib.Path(root)
    breaches = []
    for path, text in sources(root):
        code = without(TEXT, without_comments(text)).splitlines()
        for number, (line, whole_line) in enumerate(zip(code, text.splitlines()), 1):
            edges = len(EDGE.findall(line))
            if edges > 1 or (edges and not WHOLE_EDGE.search(line)):
                breaches.append(f"{path}:{number}: a LOCKSTEP_EDGE has a line of its own, with all of its statement")
            if edges or OUTSIDE.search(path) or whole_line.endswith(NO_EDGE):
                continue
            for pattern in ORDERING:
                match = re.search(pattern, line)
                if match:
                    breaches.append(f"{path}:{number}: {match.group().strip()}...: this orders work or memory: put it "
                                    "into LOCKSTEP_EDGE")
                    break
    document = root / "docs" / "edges.md"
    shown = collections.Counter((path, text.replace("\\|", "|"))
                                for path, text, _, _ in ROW.findall(document.read_text() if document.exists() else ""))
    there = collections.Counter((place.path, place.text) for place in find_places(root))
    for path, text in sorted((there - shown).keys()):
        breaches.append(f"docs/edges.md: no line for {path}: {text}: run scripts/edges --write")
    for path, text in sorted((shown - there).keys()):
        breaches.append(f"docs/edges.md: {path} has no such edge: {text}: run scripts/edges --write")
    return breaches


if __name__ == "__main__":
    found = check(sys.argv[1])
    print("\n".join(found) or f"{len(find_places(sys.argv[1]))} edges, each in its place")
    sys.exit(1 if found else 0)
