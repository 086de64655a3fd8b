#!/usr/bin/env bash
# A folder that trains on a machine without a network, where torch, NumPy and SciPy are already there (GPU nodes often are
# so): our wheel, what it needs beside those, and `run`, which unpacks them once and starts Python on them.
#
#   scripts/bundle.sh PYTHON FOLDER [NODE_VERSION]     PYTHON builds; NODE_VERSION (3.12) is the node's Python
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$1 folder=$2 version=${3:-3.12}
rm -rf "$folder"
mkdir -p "$folder/wheels"
"$python" -m pip wheel -qq . --no-deps -w "$folder/wheels"
"$python" -m pip download -qq -r stacks/bundle.txt --no-deps --only-binary=:all: --python-version "$version" -d "$folder/wheels" \
  --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux2014_x86_64
cat >"$folder/run" <<'RUN'
#!/usr/bin/env bash
# Python with everything in this folder: ./run -m bcppo fleet --tasks goal1 --device cuda --out runs
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ ! -e "$here/.unpacked" ]; then
  for wheel in "$here"/wheels/*.whl; do "${PYTHON:-python3}" -m zipfile -e "$wheel" "$here/packages"; done
  touch "$here/.unpacked"
fi
export PYTHONPATH="$here/packages${PYTHONPATH:+:$PYTHONPATH}"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec "${PYTHON:-python3}" "$@"
RUN
chmod +x "$folder/run"
echo "==> $folder: $(du -sh "$folder" | cut -f1) for Python $version; copy it there and call its ./run -m bcppo …"
