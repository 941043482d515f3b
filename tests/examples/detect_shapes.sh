#!/bin/sh
# detect_shapes.sh <detect_shapes> <lockstep-run>: it learns, its picture is one, ranks that are threads and ranks that
# are processes end with the same bits, a training that was interrupted goes on with the bits of one that was not, and
# what is wrong is said in a line.
program=$1 launcher=$2
. "$(dirname "$0")/checks.sh"
small="--images 16 --test-images 9 --width 4 --epochs 3"

# ---- it learns, and shows it
iou=$(result mean_iou "$program" --epochs 10 --seed 2 --output "$folder/pictures")
cat "$folder/out"
awk "BEGIN { exit !($iou >= 0.8) }" || fail "a mean IoU of $iou"
[ "$(echo $(ls "$folder/pictures"))" = "losses.png shapes.png" ] || fail "expected two pictures, found: $(ls "$folder/pictures")"
# Signature and header of a PNG: 1224 x 874, 8 bits, RGB; and its end.
picture=$(od -An -v -tx1 "$folder/pictures/shapes.png" | tr -d ' \n')
case $picture in
89504e470d0a1a0a0000000d49484452000004c80000036a0802000000*0000000049454e44ae426082) ;;
*) fail "no PNG of 1224 x 874: $(echo "$picture" | cut -c1-60)" ;;
esac
if command -v python3 >/dev/null; then
  python3 - "$folder/pictures/shapes.png" <<'PY' || fail "the picture's data are broken"
import struct, sys, zlib
data, at, body = open(sys.argv[1], "rb").read(), 8, b""
while at < len(data):
    size, kind = struct.unpack(">I4s", data[at:at + 8])
    assert zlib.crc32(data[at + 4:at + 8 + size]) == struct.unpack(">I", data[at + 8 + size:at + 12 + size])[0]
    body += data[at + 8:at + 8 + size] if kind == b"IDAT" else b""
    at += 12 + size
pixels = zlib.decompress(body)
assert len(pixels) == 874 * (1 + 3 * 1224) and len(set(pixels)) > 100
PY
fi

# ---- threads, processes, devices, modes
threads=$(result parameters_sha256 "$program" $small)
result parameters_sha256 "$program" $small --devices 3 >/dev/null
same "2 threads and processes" "$threads" "$(result parameters_sha256 "$launcher" -n 2 --no-prefix "$program" $small)"
same "workers" "$threads" "$(result parameters_sha256 "$program" $small --workers 2)"
same "mode strict" "$threads" "$(LOCKSTEP_HOST_MODE=strict result parameters_sha256 "$program" $small)"
one=$(result mean_iou "$program" $small --devices 1)
same "devices of the test" "$one" "$(result mean_iou "$program" $small --devices 3)"
other=$(result parameters_sha256 "$program" $small --seed 2)
[ "$other" != "$threads" ] || fail "another seed gives the same parameters"

# ---- a break
result ranks "$program" $small --checkpoint "$folder/run" --stop-after 2 >/dev/null
[ "$(ls "$folder/run" | tr '\n' ' ')" = "epoch_1.safetensors epoch_2.safetensors last_checkpoint scalars.json " ] ||
  fail "unexpected files: $(ls "$folder/run")"
same "resumed" "$threads" "$(result parameters_sha256 "$program" $small --checkpoint "$folder/run" --resume)"
same "resumed at the end" "$threads" "$(result parameters_sha256 "$program" $small --checkpoint "$folder/run" --resume)"
[ "$(ls "$folder/run" | tr '\n' ' ')" = "epoch_2.safetensors epoch_3.safetensors last_checkpoint scalars.json " ] ||
  fail "unexpected files: $(ls "$folder/run")"

"$program" $small --json >"$folder/out" || fail "--json"
[ "$(wc -l <"$folder/out")" = 1 ] || fail "--json prints more than one line"
! command -v python3 >/dev/null || python3 -m json.tool "$folder/out" >/dev/null || fail "--json prints no JSON"
"$program" $small --quiet >"$folder/out" || fail "--quiet"
[ "$(wc -l <"$folder/out")" = 1 ] || fail "--quiet prints more than one line"

# ---- what cannot be worked with: status 2, nothing on stdout, one line on stderr
bad() {
  wanted=$1
  shift
  "$@" >"$folder/out" 2>"$folder/err"
  status=$?
  cat "$folder/err"
  [ $status = 2 ] || fail "status $status instead of 2: $*"
  [ "$(grep -c '^detect_shapes: ' "$folder/err")" = 1 ] || fail "not one line: $*"
  [ ! -s "$folder/out" ] || fail "prints to stdout: $*"
  grep -qF -- "$wanted" "$folder/err" || fail "without '$wanted': $*"
}
mkdir "$folder/empty" "$folder/broken"
: >"$folder/file"
echo epoch_3.safetensors >"$folder/broken/last_checkpoint"
head -c 100 "$folder/run/epoch_3.safetensors" >"$folder/broken/epoch_3.safetensors"
bad "--epochs" "$program" --epochs 0
bad "multiple of 4" "$program" $small --width 6
bad "multiple of the 3 ranks" "$program" $small --ranks 3
bad "--images" "$program" --images 2
bad "--devices" "$program" $small --devices host:99
bad "--checkpoint" "$program" $small --resume
bad "found none" "$program" $small --resume --checkpoint "$folder/empty"
bad "at byte" "$program" $small --resume --checkpoint "$folder/broken"
bad "expected seed 1" "$program" $small --seed 5 --resume --checkpoint "$folder/run"
bad "expected width 4" "$program" $small --width 8 --resume --checkpoint "$folder/run"
bad "--output" "$program" $small --output "$folder/file/in"
bad "expected ranks 2" "$program" $small --batch-size 4 --ranks 4 --resume --checkpoint "$folder/run"
"$program" --help | grep -q -- --resume || fail "no options in the help"

[ -z "$(ls "$folder" | grep -v -e '^out$' -e '^err$' -e '^pictures$' -e '^run$' -e '^empty$' -e '^broken$' -e '^file$')" ] ||
  fail "files are left: $(ls "$folder")"
echo "$failures failures"
[ $failures = 0 ]
