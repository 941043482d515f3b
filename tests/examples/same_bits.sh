#!/bin/sh
# same_bits.sh <train_digits>: the same seed on the same number of devices gives the same file, also where work runs
# in threads of its own; another seed gives another file.
set -eu
program=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for devices in 1 4 7; do
  for run in first second; do
    "$program" --devices $devices --seed 5 --steps 60 --quiet --save "$folder/$run"
  done
  cmp "$folder/first" "$folder/second"
done
for mode in async strict; do
  LOCKSTEP_HOST_MODE=$mode "$program" --devices 7 --seed 5 --steps 60 --quiet --save "$folder/second"
  cmp "$folder/first" "$folder/second"
done
"$program" --devices 7 --seed 6 --steps 60 --quiet --save "$folder/second"
! cmp -s "$folder/first" "$folder/second"
