#!/usr/bin/env bash
# Pieces of studies side by side on one machine with a GPU, each on cores of its own, from a bundle with the paper's
# simulators (`make bundle WORKERS=1`, where this script lies as `pieces`):
#
#   dist/bundle/pieces OUT 'NAME CORES STUDY [ARGUMENTS …]' …
#   dist/bundle/pieces out 'push 0-9 main --tasks push1 --methods bcppo cppo' 'wcsac 10-15 main --tasks ant --methods wcsac --compiled'
#
# Each piece is run into OUT/NAME, every policy is taken through EPISODES (200) episodes with the paper's simulators, and
# the published form goes to OUT/NAME.packed, some 10 kB a run, which `bcppo pack --add` takes elsewhere. What can be
# evaluated and packed is, also where a run failed. OUT/NAME.log has what was said, OUT/NAME.rc how it ended: 0 where all
# went well. The same command goes on where it was stopped. Under MPS the pieces share the GPU; it is started where it is
# there.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 1; }
[ $# -ge 2 ] || usage
out=$1
shift
for each in "$@"; do
  read -rd '' -a words <<<"$each" || true
  [ ${#words[@]} -ge 3 ] && [[ ${words[0]} != */* ]] || { echo "A piece is 'NAME CORES STUDY …', not '$each'." >&2; exit 1; }
done
mkdir -p "$out"
"$here/run" -c pass
if command -v nvidia-cuda-mps-control >/dev/null && ! pgrep -x nvidia-cuda-mps >/dev/null; then
  nvidia-cuda-mps-control -d || true
fi

piece() {
  local name=$1 cores=$2 worst=0
  shift 2
  taskset -c "$cores" "$here/run" -m bcppo study run "$@" --device cuda --worker-python "$here/workers/python" --out "$out/$name" || worst=$?
  [ "$worst" -ne 130 ] || return 130
  taskset -c "$cores" "$here/workers/python" -m bcppo study evaluate "$out/$name" --episodes "${EPISODES:-200}" || worst=$?
  "$here/workers/python" -m bcppo pack "$out/$name" "$out/$name.packed" || worst=$?
  return "$worst"
}

set -m  # a process group each, so that all of a piece ends with this script
trap 'for job in $(jobs -p); do kill -- "-$job" 2>/dev/null || true; done; exit 130' INT TERM
for each in "$@"; do
  read -rd '' -a words <<<"$each" || true
  rm -f "$out/${words[0]}.rc"
  (code=0; piece "${words[@]}" >"$out/${words[0]}.log" 2>&1 || code=$?; echo "$code" >"$out/${words[0]}.rc") &
done
wait
worst=0
for each in "$@"; do
  read -rd '' -a words <<<"$each" || true
  echo "${words[0]}: $(tail -n 1 "$out/${words[0]}.log")"
  [ "$(cat "$out/${words[0]}.rc")" = 0 ] || worst=2
done
exit "$worst"
