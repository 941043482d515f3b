# What the tests of the examples have in common: a folder of their own, and failures that are counted.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# result <name> <command>...: runs it; the last line's field of that name. In $(…) a failure is part of the value, which
# then is not what it should be.
result() {
  name=$1
  shift
  "$@" >"$folder/out" 2>"$folder/err" || fail "status $?: $*: $(tail -n 3 "$folder/err")"
  tail -n 1 "$folder/out" | sed -n "s/^[a-z_]*: .*$name=\([^ ]*\).*/\1/p"
}

same() {
  [ -n "$2" ] && [ "$2" = "$3" ] || fail "$1: '$2' and '$3'"
}
