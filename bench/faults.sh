#!/usr/bin/env bash
# What is killed is not lost: a fleet left alone beside three of the same runs, one of which loses a simulator, one its
# learner and one everything, by SIGKILL and mid-run. The latter two are asked for again; then all policies are compared.
#
#   FLEET='bcppo fleet --device cpu --workers 2' bench/faults.sh FOLDER
#   FLEET='dist/bundle/run -m bcppo fleet --device cuda --workers 6' bench/faults.sh FOLDER
#
# STEPS (61440) is a run's length; runs are six, of BCPPO on Goal1, with a checkpoint every 5,120 steps.
set -uo pipefail
folder=$1
mkdir "$folder" || exit 1
settings="--tasks goal1 --seeds 0 1 2 3 4 5 --vary steps=${STEPS:-61440} eval_every=0 eval_episodes=2 checkpoint_every=5120 --quiet"

begin() { # a fleet in a session of its own; says its process
  # shellcheck disable=SC2086
  setsid $FLEET $settings --out "$folder/$1" >>"$folder/$1.log" 2>&1 &
  echo $!
  sleep 0.5  # until it has its session
}
processes() { ps -o pid=,stat=,args= -s "$1" | awk '$2 !~ /Z/'; }
over() { while [ -n "$(processes "$1")" ]; do sleep 0.3; done; }
midway() { # all six have written a checkpoint, and gone on for a moment
  while [ -n "$(processes "${!1}")" ]; do
    [ "$(find "$folder/$1" -name 'checkpoint.safetensors' 2>/dev/null | wc -l)" -lt 6 ] || break
    sleep 0.2
  done
  sleep 1.5
}
killed() { # of a fleet, these processes
  local fleet=$1 before
  shift
  before=$(processes "${!fleet}" | wc -l)
  kill -9 "$@" && echo "$fleet: $# of $before processes killed" && touch "$folder/$fleet.killed"
}
gone_on_with() { # killed there, it left so many processes after a while; then the same command again
  sleep 6
  echo "$1: $(processes "$2" | wc -l) processes left"
  over "$(begin "$1")"
}

alone=$(begin alone) simulator=$(begin simulator) learner=$(begin learner) all=$(begin all)
(
  midway simulator
  killed simulator "$(processes "$simulator" | awk '/bcppo\.(worker|lanes)/ {print $1; exit}')"
  over "$simulator"
) &
( midway learner; killed learner "$learner"; gone_on_with learner "$learner" ) &
( midway all; mapfile -t every < <(processes "$all" | awk '{print $1}'); killed all "${every[@]}"; gone_on_with all "$all" ) &
over "$alone"
wait

differ=0
for one in simulator learner all; do
  for policy in "$folder"/alone/*/policy.safetensors; do
    run=$(basename "$(dirname "$policy")")
    for file in policy.safetensors progress.parquet episodes.parquet evaluations.parquet; do
      cmp "$folder/alone/$run/$file" "$folder/$one/$run/$file" || differ=$((differ + 1))
    done
  done
  echo "$one: $(tail -n 1 "$folder/$one.log")"
done
compared=$(ls "$folder"/alone/*/policy.safetensors | wc -l)
echo "$differ of $((3 * 4 * compared)) files differ"
[ "$(ls "$folder"/*.killed | wc -l)" = 3 ] || { echo "Not all three were killed mid-run: ask for more STEPS." >&2; exit 1; }
[ "$differ" = 0 ] && [ "$compared" = 6 ]
