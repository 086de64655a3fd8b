#!/usr/bin/env bash
# The wheel in clean environments without torch, one for each Python named: tasks, a policy and a report must work there.
#
#   scripts/wheels.sh BUILD_PYTHON RUN PYTHON…    BUILD_PYTHON builds; RUN is a finished run's folder, with its export
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$1 run=$(realpath "$2")
shift 2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
unset PYTHONPATH
"$build" -m pip wheel -qq --no-deps -w "$scratch" "$root"
wheel=$(ls "$scratch"/*.whl)
echo "==> $(basename "$wheel"), $(stat -c %s "$wheel") bytes"
mapfile -t needed < <("$build" - "$wheel" <<'PY'
import email, sys, zipfile

files = zipfile.ZipFile(sys.argv[1])
name = next(name for name in files.namelist() if name.endswith("METADATA"))
wanted = email.message_from_bytes(files.read(name)).get_all("Requires-Dist")
print(*(text for text in wanted if "extra" not in text and not text.startswith(("torch", "tensorboard"))), sep="\n")
PY
)
number=0
for python in "$@"; do
  number=$((number + 1))
  env=$scratch/environment-$number
  "$python" -m venv "$env"
  "$env/bin/python" -m pip install -qq "${needed[@]}" 2>/dev/null
  "$env/bin/python" -m pip install -qq --no-deps "$wheel" 2>/dev/null
  cd "$scratch"
  "$env/bin/python" - "$run" <<'PY'
import importlib.util, sys

import bcppo

assert importlib.util.find_spec("torch") is None
assert "site-packages" in bcppo.__file__
for name in ("goal1", "hopper"):
    env = bcppo.make_task(name)
    observation, _ = env.reset(seed=0)
    for _ in range(100):
        observation, _, terminated, truncated, info = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    assert info["cost"] >= 0
policy = bcppo.load_policy(f"{sys.argv[1]}/policy.numpy.safetensors")
assert policy.act([0.0] * policy.metadata["observation_space"]["shape"][0]).shape
PY
  "$env/bin/bcppo" tasks >/dev/null
  said=$("$env/bin/bcppo" report "$run" --out "$env/report")
  test -s "$env/report/report.html" && test -s "$env/report/tables/main.md"
  echo "==> $("$env/bin/python" --version): tasks, goal1 and hopper stepped, policy loaded, report: ${said%%;*}"
done
