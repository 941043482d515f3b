#!/bin/sh
# train_text.sh <train_text> <lockstep-run> <text>: ranks that are threads and ranks that are processes end with the same
# bits, a training that was interrupted goes on with the bits of one that was not, and what is wrong is said in a line.
program=$1 launcher=$2 text=$3
. "$(dirname "$0")/checks.sh"
small="--data $text --batch-size 12 --context 32 --layers 1 --heads 2 --width 32 --sample 20"

# ---- threads, processes, mpirun
for ranks in 1 2 3 4; do
  threads=$(result parameters_sha256 "$program" $small --steps 12 --threads $ranks)
  processes=$(result parameters_sha256 "$launcher" -n $ranks --no-prefix "$program" $small --steps 12)
  same "$ranks threads and processes" "$threads" "$processes"
  echo "$ranks ranks: $threads"
done
again=$(result parameters_sha256 "$program" $small --steps 12 --threads 4)
same "the same seed" "$threads" "$again"
other=$(result parameters_sha256 "$program" $small --steps 12 --threads 4 --seed 2)
[ "$other" != "$threads" ] || fail "another seed gives the same parameters"
for mode in async strict; do
  slow=$(LOCKSTEP_HOST_MODE=$mode result parameters_sha256 "$program" $small --steps 12 --threads 4)
  same "mode $mode" "$threads" "$slow"
done

# ---- a break in the middle, at the end of the steps asked for, by SIGTERM, and with another number of ranks
for how in threads processes; do
  run="$program $small --dropout 0.1"
  if [ $how = threads ]; then ranks="--threads 2"; else ranks="" run="$launcher -n 2 --no-prefix $run"; fi
  rm -rf "$folder/checkpoint"
  whole=$(result parameters_sha256 $run $ranks --steps 20)
  result steps $run $ranks --steps 11 --checkpoint "$folder/checkpoint" --every 4 >/dev/null
  same "checkpoints, $how" "step-00000008 step-00000011" "$(ls "$folder/checkpoint" | xargs)"
  resumed=$(result parameters_sha256 $run $ranks --steps 20 --checkpoint "$folder/checkpoint" --every 4)
  same "resumed, $how" "$whole" "$resumed"
done
cp -r "$folder/checkpoint" "$folder/other"
cp -r "$folder/checkpoint" "$folder/again"
other=$(result parameters_sha256 "$program" $small --dropout 0.1 --threads 3 --steps 30 --checkpoint "$folder/other")
part=$(result steps "$program" $small --dropout 0.1 --threads 3 --steps 24 --checkpoint "$folder/again")
again=$(result parameters_sha256 "$launcher" -n 3 --no-prefix "$program" $small --dropout 0.1 --steps 30 --checkpoint "$folder/again")
same "resumed on other ranks, with and without a break after step $part" "$other" "$again"
rm -rf "$folder/again"

# SIGUSR1 saves and goes on, SIGTERM saves and ends; whichever rank hears of it first.
steps=100000000
"$program" $small --dropout 0.1 --threads 3 --steps $steps --every $steps --checkpoint "$folder/again" >"$folder/out" 2>&1 &
process=$!
until grep -q step "$folder/out"; do sleep 0.02; done
kill -USR1 $process
until ls "$folder/again" | grep -q '^step-[0-9]*$'; do sleep 0.02; done
kill -0 $process || fail "SIGUSR1 ends the training"
kill -TERM $process
wait $process || fail "SIGTERM: status $?"
ended=$(sed -n 's/^ended after step \([0-9]*\), which is saved$/\1/p' "$folder/out")
same "the checkpoint of SIGTERM" "$(printf 'step-%08d' "$ended")" "$(ls "$folder/again" | tail -n 1)"
"$program" $small --dropout 0.1 --threads 3 --steps $((ended + 3)) --checkpoint "$folder/again" | grep -q "resumed after step $ended" ||
  fail "no resumption after step $ended"

# ---- communication hooks
plain=$(result parameters_sha256 "$program" $small --steps 24 --threads 3)
same "all_reduce" "$plain" "$(result parameters_sha256 "$program" $small --steps 24 --threads 3 --hook all_reduce)"
for hook in f16_compress bf16_compress power_sgd post_local_sgd no_op; do
  hooked=$(result parameters_sha256 "$program" $small --steps 24 --threads 3 --hook $hook)
  [ "$hooked" != "$plain" ] || fail "--hook $hook changes nothing"
  same "$hook, processes" "$hooked" "$(result parameters_sha256 "$launcher" -n 3 --no-prefix "$program" $small --steps 24 --hook $hook)"
done

# ---- inputs that run out on one rank after the other, on the last one before the first step
fewer=$(result parameters_sha256 "$program" $small --steps 24 --threads 3 --fewer 12)
[ "$fewer" != "$plain" ] || fail "--fewer changes nothing"
same "--fewer, processes" "$fewer" "$(result parameters_sha256 "$launcher" -n 3 --no-prefix "$program" $small --steps 24 --fewer 12)"
same "--fewer, all_reduce" "$fewer" "$(result parameters_sha256 "$program" $small --steps 24 --threads 3 --fewer 12 --hook all_reduce)"
same "steps of --fewer" 24 "$(result steps "$program" $small --steps 24 --threads 3 --fewer 5 --hook power_sgd)"

# ---- it learns
loss=$(result loss "$program" --data "$text" --threads 2 --steps 80 --batch-size 12 --context 32 --layers 1 --width 32 --sample 0)
awk "BEGIN { exit !($loss < 3.3) }" || fail "a loss of $loss after 80 steps"
"$program" $small --threads 2 --steps 3 --json >"$folder/out" || fail "--json"
[ "$(wc -l <"$folder/out")" = 1 ] || fail "--json prints more than one line"
! command -v python3 >/dev/null || python3 -m json.tool "$folder/out" >/dev/null || fail "--json prints no JSON"

# ---- what cannot be worked with: status 2, nothing on stdout, one line on stderr
bad() {
  wanted=$1
  shift
  "$@" >"$folder/out" 2>"$folder/err"
  status=$?
  cat "$folder/err"
  [ $status = 2 ] || fail "status $status instead of 2: $*"
  [ "$(grep -c '^train_text: ' "$folder/err")" = 1 ] || fail "not one line: $*"
  grep -qF -- "$wanted" "$folder/err" || fail "without '$wanted': $*"
}
: >"$folder/empty"
head -c 32 "$text" >"$folder/short"
head -c 64 "$text" >"$folder/broken"
tr a-z A-Z <"$text" >"$folder/capitals"
bad "$folder/none" "$program" --data "$folder/none"
bad "is empty" "$program" --data "$folder/empty"
bad "expected a file" "$program" --data "$folder"
bad "more than the 32" "$program" $small --data "$folder/short"
bad "--data" "$program" --threads 2
bad "4 heads" "$program" $small --width 30 --heads 4
bad "multiple of the 5 ranks" "$program" $small --threads 5
bad "expected width 32" "$program" $small --threads 2 --steps 20 --width 48 --checkpoint "$folder/checkpoint"
bad "other characters" "$program" $small --data "$folder/capitals" --threads 2 --steps 20 --checkpoint "$folder/checkpoint"
bad "at least the 20 steps" "$program" $small --threads 2 --steps 5 --checkpoint "$folder/checkpoint"
bad "--hook" "$program" $small --hook other
bad "the same on every rank" "$program" $small --hook power_sgd --checkpoint "$folder/checkpoint"
bad "no --checkpoint" "$program" $small --fewer 1 --checkpoint "$folder/checkpoint"
bad "got post_local_sgd" "$program" $small --fewer 1 --hook post_local_sgd
bad "got the file" "$program" $small --checkpoint "$folder/broken"
"$program" --help | grep -q -- --every || fail "no options in the help"

[ -z "$(ls "$folder" | grep -v -e '^out$' -e '^err$' -e '^checkpoint$' -e '^other$' -e '^again$' -e '^empty$' -e '^short$' -e '^broken$' -e '^capitals$')" ] ||
  fail "files are left: $(ls "$folder")"
echo "$failures failures"
[ $failures = 0 ]
