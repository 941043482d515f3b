#!/bin/sh
# readme.sh <program> <source tree>: the first program in the README is the file that was compiled, and it runs.
set -eu
awk '/^```/ { if (inside) exit; inside = ($0 == "```cpp run"); next } inside' "$2/README.md" |
  diff - "$2/docs/examples/readme.cpp"
"$1"
