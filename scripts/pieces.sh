#!/usr/bin/env bash
# Pieces of studies side by side on one machine with a GPU, each on cores of its own, from a bundle with the paper's
# simulators (`make bundle WORKERS=1`, where this script lies as `pieces`):
#
#   dist/bundle/pieces OUT 'NAME CORES STUDY [ARGUMENTS …]' …
#   dist/bundle/pieces out 'push 0-9 main --tasks push1 --methods bcppo cppo' 'wcsac 10-15 main --tasks ant --methods wcsac --compiled'
#
# Each piece is run into OUT/NAME, every policy is taken through EPISODES (200) episodes with the paper's simulators, and
# the published form goes to OUT/NAME.packed, some 50 kB a run, which `bcppo pack --add` takes elsewhere. OUT/NAME.log
# has what was said, OUT/NAME.rc how it ended. The same command goes on where it was stopped. Under MPS the pieces share
# the GPU; it is started where it is there.
set -euo pipefail
[ $# -ge 2 ] || { sed -n 's/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | sed 1d; exit 1; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$1
shift
mkdir -p "$out"
"$here/run" -c pass
if command -v nvidia-cuda-mps-control >/dev/null && ! pgrep -x nvidia-cuda-mps >/dev/null; then
  nvidia-cuda-mps-control -d || true
fi

piece() {
  local name=$1 cores=$2
  shift 2
  taskset -c "$cores" "$here/run" -m bcppo study run "$@" --device "${DEVICE:-cuda}" --worker-python "$here/workers/python" --out "$out/$name" &&
    taskset -c "$cores" "$here/workers/python" -m bcppo study evaluate "$out/$name" --episodes "${EPISODES:-200}" &&
    "$here/workers/python" -m bcppo pack "$out/$name" "$out/$name.packed"
}

for each in "$@"; do
  read -ra words <<<"$each"
  rm -f "$out/${words[0]}.rc"
  (piece "${words[@]}" >"$out/${words[0]}.log" 2>&1 && echo 0 >"$out/${words[0]}.rc" || echo $? >"$out/${words[0]}.rc") &
done
wait
worst=0
for each in "$@"; do
  read -r name _ <<<"$each"
  echo "$name: $(tail -n 1 "$out/$name.log")"
  [ "$(cat "$out/$name.rc")" = 0 ] || worst=2
done
exit "$worst"
