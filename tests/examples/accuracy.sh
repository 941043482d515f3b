#!/bin/sh
# accuracy.sh <train_digits> <devices> <least accuracy>: the whole demo, and its last line.
set -eu
last=$("$1" --devices "$2" | tail -n 1)
echo "$last"
number='[0-9.e+-]+'
echo "$last" | grep -Eq "^demo: backend=host devices=$2 test_accuracy=$number samples_per_second=$number \
replicate_bytes_per_step=[0-9]+ final_loss=$number\$"
echo "$last" | awk -v least="$3" '{ sub(/.*test_accuracy=/, ""); exit !($1 + 0 >= least) }'
