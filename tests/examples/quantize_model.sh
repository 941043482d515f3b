#!/bin/sh
# quantize_model.sh <quantize_model> <lockstep-model-generate> <models folder>: converts published models and writes text
# with what comes out.
. "$(dirname "$0")/checks.sh"
program=$1 generate=$2 models=$3

# bad <text that the message must contain> <argument>...: status 2, nothing on stdout, one line on stderr.
bad() {
  wanted=$1
  shift
  "$program" "$@" >"$folder/out" 2>"$folder/err"
  status=$?
  [ $status = 2 ] || fail "status $status instead of 2: $*"
  [ ! -s "$folder/out" ] || fail "output: $*"
  [ "$(wc -l <"$folder/err")" = 1 ] || fail "not one line: $*"
  grep -q '^quantize_model: ' "$folder/err" || fail "without the program's name: $*"
  grep -qF -- "$wanted" "$folder/err" || fail "without '$wanted': $(cat "$folder/err")"
}
good() {
  "$program" "$@" >"$folder/out" 2>"$folder/err" || fail "status $? instead of 0: $*: $(cat "$folder/err")"
  [ ! -s "$folder/err" ] || fail "$(cat "$folder/err"): $*"
}

good --help
grep -q -- '--group-size' "$folder/out" || fail 'no options in the help'
bad from
bad '--bits' "$models/gpt2" "$folder/none" --bits 5
bad '--group-size' "$models/gpt2" "$folder/none" --group-size 48
bad 'nowhere' "$models/nowhere" "$folder/none"
cp -r "$models/gpt2" "$folder/same"
bad 'twice' "$folder/same" "$folder/same"
[ ! -e "$folder/none" ] || fail 'a folder was made by a call that was refused'

# Safetensors with three tokens, by hand.
{
  printf '\074\000\000\000\000\000\000\000{"ids":{"dtype":"I64","shape":[1,3],"data_offsets":[0,24]}} '
  printf '\001\000\000\000\000\000\000\000\002\000\000\000\000\000\000\000\003\000\000\000\000\000\000\000'
} >"$folder/prompts"

for model in gpt2 llama; do
  for bits in 8 4; do
    to=$folder/$model-$bits
    good "$models/$model" "$to" --bits $bits --output
    tail -n 1 "$folder/out" | grep -q "^[1-9][0-9]* layers in $bits bits, 0 as they were: [0-9]* bytes, [0-9]* before; written to $to\$" ||
      fail "the sum of $model: $(tail -n 1 "$folder/out")"
    # The same shapes in fewer bytes, and text that the model goes on with.
    [ "$(cat "$to"/*.safetensors | wc -c)" -lt "$(cat "$models/$model"/model*.safetensors | wc -c)" ] || fail "$to is no smaller"
    "$generate" "$to" "$folder/prompts" "$folder/text" 6 1 f32 >"$folder/out" 2>"$folder/err" ||
      fail "no text of $to: $(cat "$folder/err")"
    grep -qF '"tokens":{"dtype":"I64","shape":[1,6]' "$folder/text" || fail "the text of $to"
    bad 'quantised' "$to" "$folder/again"
  done
done

good "$models/llama" "$folder/part" --skip layers.0 --json
[ "$(wc -l <"$folder/out")" = 1 ] || fail '--json prints more than one line'
! command -v python3 >/dev/null || python3 - "$folder/out" <<'END' || fail 'the JSON object'
import json, sys
report = json.load(open(sys.argv[1]))
names = [layer["name"] for layer in report["layers"]]
assert names and not any("layers.0." in name for name in names), names
assert "lm_head" in report["kept"] and any("layers.0." in name for name in report["kept"]), report["kept"]
assert report["bytes_after"] < report["bytes_before"]
END
good "$models/gpt2" "$folder/quiet" --quiet
[ "$(wc -l <"$folder/out")" = 1 ] || fail '--quiet prints more than one line'
# As a terminal shows it: a bar that ends full.
if command -v script >/dev/null; then
  script -qec "'$program' '$models/gpt2' '$folder/bar'" "$folder/typed" >/dev/null </dev/null || fail 'on a terminal'
  grep -q '\[##*\.*\] 1/' "$folder/typed" || fail 'no bar on a terminal'
fi
[ $failures = 0 ]
