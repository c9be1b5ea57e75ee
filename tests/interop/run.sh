#!/usr/bin/env bash
# Our tokens in other libraries and theirs in ours: PyJWT, joserfc and jose against a running node,
# across a rotation of its keys. What they need is installed under target/, once.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=tests/interop
work=${CARGO_TARGET_DIR:-target}/interop
mkdir -p "$work"

need() { command -v "$1" >/dev/null || { echo "interop: needs $1 (Debian: apt-get install $2)" >&2; exit 1; }; }
need python3 python3
need node nodejs
need npm npm

# Again when what is pinned has changed.
if ! cmp -s "$here/requirements.txt" "$work/requirements.txt"; then
    rm -rf "$work/venv"
    python3 -m venv "$work/venv" || { echo "interop: needs venv (Debian: apt-get install python3-venv)" >&2; exit 1; }
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
    cp "$here/requirements.txt" "$work/"
fi
cp "$here/verifier.mjs" "$work/"
if ! cmp -s "$here/package.json" "$work/package.json" || [ ! -d "$work/node_modules" ]; then
    cp "$here/package.json" "$work/"
    npm install --silent --no-audit --no-fund --no-package-lock --ignore-scripts --prefix "$work"
fi

exec "$work/venv/bin/python" "$here/check.py" "$work"
