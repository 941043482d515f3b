#!/bin/sh
# usage.sh <train_digits> <digits folder>: what the program says to good and bad command lines and data.
set -u
program=$1 digits=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder/tmp"
mkdir "$TMPDIR"
failures=0
cases=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# bad <text that the message must contain> <argument>...: status 2, nothing on stdout, one line on stderr.
bad() {
  wanted=$1
  shift
  cases=$((cases + 1))
  "$program" "$@" >"$folder/out" 2>"$folder/err"
  status=$?
  echo "$(cat "$folder/err")"
  [ $status = 2 ] || fail "status $status instead of 2: $*"
  [ ! -s "$folder/out" ] || fail "output: $*"
  [ "$(wc -l <"$folder/err")" = 1 ] || fail "not one line: $*"
  grep -q '^train_digits: ' "$folder/err" || fail "without the program's name: $*"
  grep -qF -- "$wanted" "$folder/err" || fail "without '$wanted': $*"
}

# good <argument>...: status 0 and nothing on stderr.
good() {
  cases=$((cases + 1))
  "$program" "$@" >"$folder/out" 2>"$folder/err"
  status=$?
  [ $status = 0 ] || fail "status $status instead of 0: $*"
  [ ! -s "$folder/err" ] || fail "$(cat "$folder/err"): $*"
}

# data <name>: a fresh copy of the digits, in $d.
data() {
  d=$folder/$1
  rm -rf "$d"
  mkdir "$d"
  cp "$digits/images-idx3-ubyte" "$digits/labels-idx1-ubyte" "$d"
}

# patch <file> <offset> <printf text>: overwrites bytes.
patch() {
  printf "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>"$folder/dd" || fail "dd"
}

# ---- command lines
bad --nonsense --nonsense
bad stray stray
bad --epochs --epochs 0
bad --epochs --epochs many
bad --epochs --epochs 99999999999999999999
bad --batch-size --batch-size -1
bad --batch-size --batch-size
bad --lr --lr 0
bad --lr --lr nan
bad --lr --lr fast
bad --seed --seed -1
bad --steps --steps 0
bad f16 --dtype f16
bad --save --save ''
bad "$folder/absent/model" --save "$folder/absent/model"
bad "$folder" --save "$folder"
bad --devices --devices ''
bad host:99 --devices host:99
bad tpu:0 --devices tpu:0
bad host:0 --devices host:0,host:0
bad cuda --devices cuda:0
bad -3 --devices=-3
bad 0 --devices 0
bad 500 --devices 500

# ---- data
bad "$folder/none/images-idx3-ubyte" --data "$folder/none"
mkdir "$folder/empty"
bad "$folder/empty/images-idx3-ubyte" --data "$folder/empty"
data no-labels && rm "$d/labels-idx1-ubyte"
bad "$d/labels-idx1-ubyte" --data "$d"
data folder && rm "$d/images-idx3-ubyte" && mkdir "$d/images-idx3-ubyte"
bad "$d/images-idx3-ubyte" --data "$d"
data pipe && rm "$d/labels-idx1-ubyte" && mkfifo "$d/labels-idx1-ubyte"
bad "$d/labels-idx1-ubyte" --data "$d"
data no-bytes && : >"$d/images-idx3-ubyte"
bad 'at byte 0:' --data "$d"
data short-header && head -c 15 "$digits/images-idx3-ubyte" >"$d/images-idx3-ubyte"
bad 'at byte 15:' --data "$d"
data short && head -c 100000 "$digits/images-idx3-ubyte" >"$d/images-idx3-ubyte"
bad 'at byte 100000:' --data "$d"
data long && printf x >>"$d/labels-idx1-ubyte"
bad 'at byte 1805:' --data "$d"
data text && printf 'five, six, seven, eight, nine\n' >"$d/labels-idx1-ubyte"
bad 'at byte 0:' --data "$d"
data swapped && mv "$d/images-idx3-ubyte" "$d/x" && mv "$d/labels-idx1-ubyte" "$d/images-idx3-ubyte" &&
  mv "$d/x" "$d/labels-idx1-ubyte"
bad 'at byte 0:' --data "$d"
data floats && patch "$d/images-idx3-ubyte" 2 '\015'
bad 'at byte 0:' --data "$d"
data label && patch "$d/labels-idx1-ubyte" 1008 '\012'
bad 'at byte 1008: expected a label from 0 to 9, got 10' --data "$d"
data counts && head -c 1804 "$digits/labels-idx1-ubyte" >"$d/labels-idx1-ubyte" &&
  patch "$d/labels-idx1-ubyte" 4 '\000\000\007\004'
bad 'expected 1797 labels' --data "$d"
data huge && patch "$d/images-idx3-ubyte" 4 '\377\377\377\377\377\377\377\377\377\377\377\377'
bad 'whose product' --data "$d"
data none && printf '\000\000\010\003\000\000\000\000\000\000\000\010\000\000\000\010' >"$d/images-idx3-ubyte" &&
  printf '\000\000\010\001\000\000\000\000' >"$d/labels-idx1-ubyte"
bad 'at least 2 images' --data "$d"
data small && printf '\000\000\010\003\000\000\000\002\000\000\000\003\000\000\000\003%018d' 0 >"$d/images-idx3-ubyte" &&
  printf '\000\000\010\001\000\000\000\002\001\002' >"$d/labels-idx1-ubyte"
bad 'from 4 x 4' --data "$d"

# ---- what works
good --help
grep -q -- '--devices' "$folder/out" || fail 'no options in the help'
good --devices host:3,host:1 --steps 3 --quiet
[ "$(wc -l <"$folder/out")" = 1 ] || fail '--quiet prints more than one line'
good --devices 2 --steps 3 --json
[ "$(wc -l <"$folder/out")" = 1 ] || fail '--json prints more than one line'
grep -q '^{"backend":"host","devices":2,.*}}$' "$folder/out" || fail '--json prints no object'
! command -v python3 >/dev/null || python3 -m json.tool "$folder/out" >/dev/null || fail '--json prints no JSON'
good --devices 3 --steps 2 --batch-size 2 --save "$folder/model" --no-progress  # fewer pieces than devices
[ -s "$folder/model" ] || fail '--save saved nothing'
good --devices 1 --steps 2 --batch-size 100000 --lr 0.01 --dtype f64 --epochs 7

good --devices cpu --steps 2 --quiet
good --devices host:all --steps 2 --quiet
if [ -c /dev/full ]; then
  "$program" --devices 1 --steps 2 --quiet >/dev/full 2>"$folder/err"
  status=$?
  [ $status = 1 ] || fail "status $status instead of 1 when the output cannot be written"
fi

# MNIST's names, and a set without t10k files.
data mnist
for kind in images-idx3 labels-idx1; do
  cp "$d/$kind-ubyte" "$d/t10k-$kind-ubyte" && mv "$d/$kind-ubyte" "$d/train-$kind-ubyte"
done
good --data "$d" --devices 2 --steps 2
grep -q '^1797 training and 1797 test images of 8 x 8' "$folder/out" || fail 'MNIST names'
rm "$d/t10k-images-idx3-ubyte"
good --data "$d" --devices 2 --steps 2
grep -q '^1437 training and 360 test images of 8 x 8' "$folder/out" || fail 'MNIST names without t10k'

# ---- Ctrl-C
"$program" --devices 2 --epochs 100000 --save "$folder/never" >"$folder/out" 2>"$folder/err" &
pid=$!
while ! grep -q '^ *2 ' "$folder/out" && kill -0 $pid 2>/dev/null; do sleep 0.1; done  # two epochs are over
kill -INT $pid
wait $pid
status=$?
[ $status = 130 ] || fail "status $status instead of 130 after an interrupt"
grep -q '^train_digits: interrupted after [0-9]* steps' "$folder/err" || fail 'no word about the interrupt'
[ "$(wc -l <"$folder/err")" = 1 ] || fail 'not one line after an interrupt'
[ ! -e "$folder/never" ] || fail 'a model was saved after an interrupt'

[ -z "$(ls -A "$TMPDIR")" ] || fail 'temporary files are left'
echo "$cases cases, $failures failures"
[ $failures = 0 ]
