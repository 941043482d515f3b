#!/bin/sh
# fewshot_digits.sh <fewshot_digits> <digits folder>: the algorithms do what they are known for, the number of ranks does not
# matter, and what is wrong is said in a line.
set -u
program=$1 digits=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# results <name> <argument>...: runs it quietly; its lines into a file of that name.
results() {
  name=$1
  shift
  "$program" --quiet "$@" >"$folder/$name" 2>"$folder/err" || fail "status $?: $* $(cat "$folder/err")"
  [ ! -s "$folder/err" ] || fail "$(cat "$folder/err"): $*"
}
# value <name> <algorithm> <shots>: the mean accuracy in that file.
value() {
  sed -n "s/^fewshot: algorithm=$2 shots=$3 devices=[0-9]* accuracy_mean=\([0-9.]*\) confidence=[0-9.]*\$/\1/p" "$folder/$1"
}
above() {
  [ -n "$2" ] && [ -n "$3" ] && awk "BEGIN { exit !($2 > $3) }" || fail "$1: '$2' is not above '$3'"
}

# ---- all algorithms, on one device and on four
small="--tasks 40 --steps 60"
results one $small --devices 1
cat "$folder/one"
[ "$(wc -l <"$folder/one")" = 14 ] || fail "not 14 lines"
for algorithm in raw_pixels baseline baseline_plus neg_margin protonet maml; do
  for shots in 1 5; do above "$algorithm, $shots shots, beside chance" "$(value one $algorithm $shots)" 0.3; done
done
results four $small --devices 4
sed 's/ devices=1 / devices=4 /' "$folder/one" | cmp -s - "$folder/four" ||
  fail "other results on four devices: $(diff "$folder/one" "$folder/four")"
results seeded --algorithms raw_pixels --shots 1 --tasks 40 --seed 2
[ "$(value seeded raw_pixels 1)" != "$(value one raw_pixels 1)" ] || fail "another seed gives the same tasks"

# ---- what was learned on the digits 0 to 4 helps with 5 to 9
results learned --algorithms raw_pixels,protonet --devices 3 --steps 300
cat "$folder/learned"
for shots in 1 5; do
  above "protonet beside raw_pixels, $shots shots" "$(value learned protonet $shots)" "$(value learned raw_pixels $shots)"
done
above "protonet, 1 shot" "$(value learned protonet 1)" 0.74
above "protonet, 5 shots" "$(value learned protonet 5)" 0.90
above "raw_pixels, 5 shots" "$(value learned raw_pixels 5)" 0.87

results first_order --algorithms maml_first_order --shots 1 --tasks 40 --steps 300
cat "$folder/first_order"
above "maml_first_order beside chance" "$(value first_order maml_first_order 1)" 0.3

# ---- command lines and data
# bad <text that the message must contain> <argument>...: status 2, nothing on stdout, one line on stderr.
bad() {
  wanted=$1
  shift
  "$program" "$@" >"$folder/out" 2>"$folder/err"
  status=$?
  cat "$folder/err"
  [ $status = 2 ] || fail "status $status instead of 2: $*"
  [ ! -s "$folder/out" ] || fail "output: $*"
  [ "$(wc -l <"$folder/err")" = 1 ] || fail "not one line: $*"
  grep -q '^fewshot_digits: ' "$folder/err" || fail "without the program's name: $*"
  grep -qF -- "$wanted" "$folder/err" || fail "without '$wanted': $*"
}
bad --nonsense --nonsense
bad --devices --devices 0
bad --devices --devices many
bad --tasks --tasks 0
bad --steps --steps 0
bad --seed --seed -1
bad --shots --shots 1,none
bad --algorithms --algorithms raw_pixels,guess
bad "0.5, 0.8, 0.9, 0.95, 0.98 or 0.99" --confidence 0.7
bad "1000 + 15 samples" --shots 1000
bad "1 + 1000 samples" --queries 1000 --shots 1
bad "$folder/none/images-idx3-ubyte" --data "$folder/none"
mkdir "$folder/ones"
cp "$digits/images-idx3-ubyte" "$folder/ones"
head -c 8 "$digits/labels-idx1-ubyte" >"$folder/ones/labels-idx1-ubyte"
head -c 1797 /dev/zero >>"$folder/ones/labels-idx1-ubyte"
bad "none of class 1" --data "$folder/ones"

"$program" --help | grep -q -- --algorithms || fail "no options in the help"
results json --algorithms raw_pixels --tasks 5 --json
[ "$(wc -l <"$folder/json")" = 1 ] || fail "--json prints more than one line"
grep -q '^{"devices":1,"tasks":5,"results":\[{"algorithm":"raw_pixels","shots":1,.*}\]}$' "$folder/json" ||
  fail "--json prints no object"
! command -v python3 >/dev/null || python3 -m json.tool "$folder/json" >/dev/null || fail "--json prints no JSON"
if [ -c /dev/full ]; then
  "$program" --algorithms raw_pixels --tasks 5 >/dev/full 2>"$folder/err"
  status=$?
  [ $status = 1 ] || fail "status $status instead of 1 when the output cannot be written"
fi
echo "$failures failures"
[ $failures = 0 ]
