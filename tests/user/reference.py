"""Checks what scripts/docs hands to Doxygen: usage: reference.py <source tree>"""
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(sys.argv[1]) / "scripts" / "doxygen"))
from filter import header, markdown  # noqa: E402

CASES = [  # (a header, what must be in its documentation)
    ("// A file.\n#pragma once\n", "/// @file\n/// A file.\n#pragma once\n"),
    ("\n// Adds.\nint add();\n", "\n/// Adds.\nint add();\n"),
    ("\n// Nothing follows.\n\nint add();\n", "\n// Nothing follows.\n\nint add();\n"),
    ("int size;  // in bytes\n", "int size;  ///< in bytes\n"),
    ("int size;  // in bytes,\n           // not bits\n", "int size;  ///< in bytes,\n           ///< not bits\n"),
    ("int f() {\n  // why\n  return 1;  // one\n}\n", "int f() {\n  // why\n  return 1;  // one\n}\n"),
    ("struct A {\n  // Counts.\n  int n;\n};\n", "struct A {\n  /// Counts.\n  int n;\n};\n"),
    ("\n// A vector<T> of `a<b>`.\nint f();\n", "\n/// A vector&lt;T&gt; of `a<b>`.\nint f();\n"),
    ("\n// Like\n//\n//   f(x);\nint f();\n", "\n/// Like\n///\n/// @code{.cpp}\n///   f(x);\n/// @endcode\nint f();\n"),
    ("struct A {\n  // ---- sums. Of all.\n  int f();\n};\n",
     "struct A {\n  /** @name sums\n  Of all. */ /** @{ */\n  int f();\n  /** @} */\n};\n"),
    ("struct A {\n  // ---- sums\n  // Adds.\n  int f();\n private:\n};\n",
     "struct A {\n  /** @name sums\n   */ /** @{ */\n  /// Adds.\n  int f();\n  /** @} */\n private:\n};\n"),
]
PAGES = [
    ("```cpp run file=a.cpp\n```\n", "```cpp\n```\n"),
    ("[a](absent.md), [b](https://b.org), [c](docs/style.md#names)\n", "a, [b](https://b.org), [c](docs/style.md)\n"),
    ("`dict(type='a')`\n", "``dict(type='a')``\n"),
]

failed = [(text, expected, header(text)) for text, expected in CASES if header(text) != expected]
root = pathlib.Path(sys.argv[1])
failed += [(text, expected, markdown(root, text)) for text, expected in PAGES if markdown(root, text) != expected]
for text, expected, got in failed:
    print(f"{text!r}:\n  expected {expected!r}\n  got      {got!r}")
print(f"reference: cases={len(CASES) + len(PAGES)} failed={len(failed)}")
sys.exit(bool(failed))
