#!/usr/bin/env bash
# What drawing needs on a machine without a screen, and the browser that tests open the report in. Nothing else needs
# them, so this never fails a build.
set -euo pipefail

packages=(libosmesa6 chromium fonts-dejavu-core)

missing=()
for package in "${packages[@]}"; do
  dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
done

if ! command -v apt-get >/dev/null; then
  echo "System packages: no apt-get here, so ${packages[*]} was not installed; rendering and browser tests may be unavailable."
elif [[ ${#missing[@]} -eq 0 ]]; then
  echo "System packages: ${packages[*]} already there."
elif [[ $(id -u) -ne 0 ]]; then
  echo "System packages: not root, so ${missing[*]} was not installed; rendering and browser tests may be unavailable."
else
  echo "System packages: installing ${missing[*]}."
  export DEBIAN_FRONTEND=noninteractive
  if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; }; then
    echo "System packages: ${missing[*]} could not be installed; rendering and browser tests may be unavailable."
  fi
fi
