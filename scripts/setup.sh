# Sourced by the other scripts: goes to the top of the tree and offers what they share.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
jobs=$(nproc)
# Clones in other folders share the compiler's cached results.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=true

# have <file name>: a command, or a header on the usual paths or in LOCKSTEP_DEPS_DIR.
have() {
  local folder
  [[ $1 == */* ]] || { command -v "$1" >/dev/null; return; }
  for folder in /usr /usr/local ${LOCKSTEP_DEPS_DIR:+"$LOCKSTEP_DEPS_DIR"}; do
    ! compgen -G "$folder/include/$1" >/dev/null || return 0
  done
  return 1
}

# packages_missing <package=sign>...: the Debian packages whose sign (a command or a header) is not there.
packages_missing() {
  local pair
  for pair in "$@"; do
    have "${pair#*=}" || echo "${pair%%=*}"
  done
}

# install_packages: what the build needs, and what makes it better where it can be had.
install_packages() {
  local required optional
  required=$(packages_missing g++=g++ cmake=cmake ninja-build=ninja pkg-config=pkg-config python3=python3 \
    'catch2=catch2/catch*.hpp' nlohmann-json3-dev=nlohmann/json.hpp libcli11-dev=CLI/CLI.hpp | xargs)
  optional=$(packages_missing ccache=ccache clang-format=clang-format clang-tidy=clang-tidy libdnnl-dev=oneapi/dnnl/dnnl.h libopenmpi-dev=mpicxx \
    openmpi-bin=mpirun libpng-dev=png.h libcpp-httplib-dev=httplib.h | xargs)
  [ -n "$required$optional" ] || return 0
  if [ "$(id -u)" != 0 ] || ! have apt-get; then
    [ -z "$optional" ] || echo "Not installed, but useful: $optional" >&2
    [ -n "$required" ] || return 0
    echo "Needed and not installed (names of Debian packages): $required" >&2
    exit 3
  fi
  echo "Installing: $required $optional" >&2
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq update >&2 || true
  if [ -n "$required" ] && ! apt-get -qq -y --no-install-recommends install $required >&2; then
    echo "Could not install: $required" >&2
    exit 3
  fi
  [ -z "$optional" ] || apt-get -qq -y --no-install-recommends install $optional >&2 ||
    echo "Could not install $optional: going on without" >&2
}

# install_disassembler: what reads the CUDA kernels' machine code, from PyPI, where there is CUDA and it can be had.
install_disassembler() {
  [ "$(id -u)" = 0 ] && { have nvcc || [ -x /usr/local/cuda/bin/nvcc ]; } || return 0
  ! scripts/sass_report --list-tools >/dev/null 2>&1 || return 0
  echo "Installing: cuobjdump nvdisasm" >&2
  timeout 120 scripts/sass_report --install >/dev/null 2>&1 ||
    echo "Could not install cuobjdump and nvdisasm: going on without" >&2
}

# configure <preset>: only when there is nothing yet or the presets changed; Ninja notices the rest.
configure() {
  [ "build/$1/build.ninja" -nt CMakePresets.json ] || cmake --preset "$1"
}

# quietly <what> <command>...: one line on stderr while the command works, all of its output if it fails.
quietly() {
  local what=$1 log status=0
  shift
  log=$(mktemp)
  if [ -t 2 ]; then
    { "$@" 2>&1 || echo "$?" >"$log.status"; } | tee "$log" | while IFS= read -r line; do
      [[ $line =~ ^\[([0-9]+/[0-9]+)\] ]] && printf '\r%s: %s\033[K' "$what" "${BASH_REMATCH[1]}" >&2
    done || true
    printf '\r\033[K' >&2
  else
    echo "$what ..." >&2
    "$@" >"$log" 2>&1 || echo "$?" >"$log.status"
  fi
  if [ -e "$log.status" ]; then
    status=$(cat "$log.status")
    cat "$log" >&2
  fi
  rm -f "$log" "$log.status"
  return "$status"
}
