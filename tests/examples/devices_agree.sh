#!/bin/sh
# devices_agree.sh <train_digits> <compare_models> <dtype> <tolerance>: after 50 steps several devices have the parameters
# that one device has.
set -eu
program=$1 compare=$2 dtype=$3 tolerance=$4
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for devices in 1 2 3 4 7; do
  "$program" --devices $devices --dtype "$dtype" --steps 50 --quiet --save "$folder/$devices"
  [ $devices = 1 ] || "$compare" "$folder/1" "$folder/$devices" "$tolerance"
done
