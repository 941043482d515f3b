#!/usr/bin/env python3
"""check.py <compiler> <include folder> <source>: the source does not compile, for the reasons alone that its first lines
say, one error each, in no more lines than fit on a screen."""
import itertools
import os
import subprocess
import sys

MOST_LINES = 24  # of a terminal


def main():
    compiler, include, source = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        expected = [line[3:].strip() for line in itertools.takewhile(lambda line: line.startswith("// "), file)]
    # In English, whatever the user's language: compilers translate the word "error".
    result = subprocess.run([compiler, "-std=c++20", "-fsyntax-only", "-I" + include, source], capture_output=True,
                            text=True, env=os.environ | {"LC_ALL": "C"})
    lines = result.stderr.splitlines()
    errors = [line for line in lines if " error: " in line]
    good = (result.returncode != 0 and len(errors) == len(expected) > 0 and len(lines) <= MOST_LINES
            and all(text in error for text, error in zip(expected, errors)))
    if not good:
        print(result.stderr)
        print(f"expected {len(expected)} errors, {expected}, in at most {MOST_LINES} lines, "
              f"got {len(errors)} in {len(lines)} lines, exit status {result.returncode}")
    return not good


sys.exit(main())
