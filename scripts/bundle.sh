#!/usr/bin/env bash
# A folder that trains on a machine without a network, where torch, NumPy and SciPy are already there (GPU nodes often are
# so): our wheel, what it needs beside those, and `run`, which unpacks them once and starts Python on them.
#
#   scripts/bundle.sh PYTHON FOLDER [NODE_VERSION [workers]]
#
# PYTHON builds; NODE_VERSION (3.12) is the node's Python. With `workers`, a copy of PYTHON itself goes along with the
# paper's simulators, which have no wheels for newer Pythons: `run -m bcppo fleet … --worker-python FOLDER/workers/python`,
# and what needs no torch runs on it too: `workers/python -m bcppo study evaluate …`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$1 folder=$2 version=${3:-3.12} workers=${4:-}
rm -rf "$folder"
mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m pip wheel -qq . --no-deps -w "$work/wheels"
"$python" -m pip download -qq -r stacks/bundle.txt --no-deps --only-binary=:all: --python-version "$version" -d "$work/wheels" \
  --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux2014_x86_64
for wheel in "$work"/wheels/*.whl; do "$python" -m zipfile -e "$wheel" "$work/packages"; done
parts=(packages)

if [ -n "$workers" ]; then
  mkdir -p "$work/workers/bin" "$work/workers/lib"
  "$python" - "$work/workers" <<'COPY'
"""The interpreter and the parts of its library that are not for developing with it."""
import shutil, sys, sysconfig
from pathlib import Path

home, out = Path(sys.base_prefix), Path(sys.argv[1])
name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
shutil.copy2(home / "bin" / name, out / "bin" / "python")
for library in (home / "lib").glob(f"lib{name}.so*"):
    shutil.copy2(library, out / "lib")
left = shutil.ignore_patterns("site-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3",
                              "distutils", "config-*", "__pycache__", "pydoc_data")
shutil.copytree(home / "lib" / name, out / "lib" / name, ignore=left)
(out / "python").write_text(f"""#!/usr/bin/env bash
# This Python, wherever the folder was copied to.
here=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
export PYTHONHOME="$here" LD_LIBRARY_PATH="$here/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
exec "$here/bin/python" "$@"
""")
(out / "python").chmod(0o755)
COPY
  site=$(echo "$work"/workers/lib/python3.*)/site-packages
  "$python" -m pip install -qq -r stacks/workers.txt --no-deps --only-binary=:all: --no-compile --target "$site"
  echo ../../../../packages >"$site/bundle.pth"  # behind its own
  find "$site" -type d \( -name tests -o -name include \) -prune -exec rm -rf {} +
  find "$work/workers" -name '*.so*' -exec strip --strip-unneeded {} + 2>/dev/null || true
  parts+=(workers)
fi
tar -C "$work" -cJf "$folder/packages.tar.xz" "${parts[@]}"

revision=$(git describe --always --dirty=+ --abbrev=12 --exclude='*' 2>/dev/null || true)
sed "s/@REVISION@/$revision/" >"$folder/run" <<'RUN'
#!/usr/bin/env bash
# Python with everything in this folder: ./run -m bcppo fleet --tasks goal1 --device cuda --out runs
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ ! -e "$here/.unpacked" ]; then
  "${PYTHON:-python3}" -c "import tarfile, sys; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter=\"data\")" "$here/packages.tar.xz" "$here" &&
    touch "$here/.unpacked" || { echo "$here/packages.tar.xz could not be unpacked." >&2; exit 1; }
fi
export PYTHONPATH="$here/packages${PYTHONPATH:+:$PYTHONPATH}"
export BCPPO_REVISION=${BCPPO_REVISION:-@REVISION@}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec "${PYTHON:-python3}" "$@"
RUN
chmod +x "$folder/run"
if [ -n "$workers" ]; then cp scripts/pieces.sh "$folder/pieces"; fi
echo "==> $folder: $(du -sh "$folder" | cut -f1) for Python $version; copy it there and call its ./run -m bcppo …"
