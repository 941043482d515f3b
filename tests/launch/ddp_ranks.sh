#!/bin/sh
# ddp_ranks.sh <ddp_ranks> <lockstep-run> [<mpirun>]: ranks that are threads, processes of lockstep-run and, where it is
# given, processes of mpirun train alike, bit for bit.
set -u
program=$1 launcher=$2 mpirun=${3:-}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0

# run <file> <command>...
run() {
  file=$folder/$1
  shift
  if ! "$@" >"$file" 2>"$folder/err"; then
    echo "FAILED: $*"
    cat "$file" "$folder/err"
    failures=$((failures + 1))
  fi
}

for ranks in 2 3 4; do  # 4: a mesh as well
  run threads "$program" --threads $ranks
  [ "$(grep -c 'good$' "$folder/threads")" -ge 20 ] || { echo "FAILED: $ranks threads say too little"; failures=$((failures + 1)); }
  run processes "$launcher" -n $ranks --no-prefix "$program"
  cmp "$folder/threads" "$folder/processes" || failures=$((failures + 1))
  # Ranks of MPI look for messages all the time: on two cores more of them would wait for each other.
  if [ -n "$mpirun" ] && [ $ranks -le 3 ]; then
    run mpi env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 LOCKSTEP_COMMUNICATOR=mpi \
      "$mpirun" --oversubscribe -n $ranks "$program"
    cmp "$folder/threads" "$folder/mpi" || failures=$((failures + 1))
  fi
  echo "$ranks ranks: $(cksum <"$folder/threads")"
done
echo "$failures failures"
[ $failures = 0 ]
