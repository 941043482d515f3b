#!/bin/sh
# mpi.sh <prefix> <build folder> <mpirun> <cmake argument>...: a program built where there is no MPI, with the installed
# package, is a rank of mpirun: the plug-in that lies in the package is opened when it is needed.
set -eu
prefix=$1 folder=$2 mpirun=$3
shift 3
cmake -S "$(dirname "$0")" -B "$folder" -G Ninja "-DCMAKE_PREFIX_PATH=$prefix" -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON "$@"
cmake --build "$folder"
if ldd "$folder/job" | grep libmpi; then echo "FAILED: it is linked with MPI"; exit 1; fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
cd /
"$mpirun" --oversubscribe -n 2 "$folder/job" >"$folder/said"
cat "$folder/said"
[ "$(grep -c 'of 2: mpi on host:., numbers are right' "$folder/said")" = 2 ]
# A plug-in that is none, or not there, is an error that says so, at once and on all ranks. The shells end well: mpirun
# would end the other rank when one has failed, perhaps before it has spoken.
for wrong in /nowhere/liblockstep_mpi.so "$folder/job"; do
  LOCKSTEP_MPI_LIBRARY=$wrong timeout 60 "$mpirun" -x LOCKSTEP_MPI_LIBRARY --oversubscribe -n 2 \
    sh -c 'if "$0"; then echo "FAILED: it does without the plug-in"; fi' "$folder/job" >"$folder/said" 2>&1 ||
    echo "FAILED: mpirun exited with $?" >>"$folder/said"
  cat "$folder/said"
  if grep -q FAILED "$folder/said"; then exit 1; fi
  text="expected the plug-in that talks to MPI (LOCKSTEP_MPI_LIBRARY names it), got.*$wrong"
  if [ "$(grep -c "$text" "$folder/said")" != 2 ]; then echo "FAILED: not both ranks say so"; exit 1; fi
done
