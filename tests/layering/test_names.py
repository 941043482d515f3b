"""Checks that the tests which documents name exist, and that every rule of docs/backend-contract.md names one.

usage: test_names.py <source tree>        prints one line per breach, exits 1 if there is any
"""
import pathlib
import re
import sys

from edges import ROW

DOCUMENTS = ["docs/backend-contract.md", "docs/edges.md", "docs/fake-cuda.md", "docs/testing.md"]
CONTRACT = DOCUMENTS[0]

CASE = re.compile(r'\bTEST_CASE\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)')
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
QUOTED = re.compile(r"`([^`]+)`")
CODE = re.compile(r"[(){}=<>&|*/]|::|--")
RULE = re.compile(r"^(\d+)\. (.*?)(?=^\d+\. |^#|\n\n|\Z)", re.M | re.S)


def test_cases(root):
    names = set()
    for file in (root / "tests").rglob("*.cpp"):
        for match in CASE.finditer(file.read_text()):
            names.add("".join(STRING.findall(match.group(1))).replace('\\"', '"'))
    return names


def named_tests(text):
    """Quoted sentences: at least three words, and no code."""
    spans = (" ".join(span.split()) for span in QUOTED.findall(text))
    return [span for span in spans if span.count(" ") >= 2 and not CODE.search(span)]


def check(root):
    root = pathlib.Path(root)
    breaches, cases = [], test_cases(root)
    for path in DOCUMENTS:
        file = root / path
        if not file.exists():
            breaches.append(f"{path}: there is no such file")
            continue
        text = file.read_text()
        table = {match.group(0) for match in ROW.finditer(text)}
        prose = "\n".join(line for line in text.splitlines() if line not in table)
        names = named_tests(prose) + [name for _, _, _, name in ROW.findall(text)]
        breaches += [f"{path}: no test is called `{name}`" for name in sorted(set(names) - cases)]
        if path == CONTRACT:
            rules = RULE.findall(text)
            if not rules:
                breaches.append(f"{path}: no rules")
            breaches += [f"{path}: rule {number} names no test" for number, rule in rules if not named_tests(rule)]
    return breaches


if __name__ == "__main__":
    found = check(sys.argv[1])
    print("\n".join(found) or "every test that is named exists")
    sys.exit(1 if found else 0)
