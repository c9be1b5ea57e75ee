#!/usr/bin/env bash
# What docs/observability holds, against a running node and Debian's Prometheus; then the status page in
# a headless Chromium. What they need from npm is installed under target/, once.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=tests/observability
work=${CARGO_TARGET_DIR:-target}/observability
mkdir -p "$work"

need() { command -v "$1" >/dev/null || { echo "observability: needs $1 (Debian: apt-get install $2)" >&2; exit 1; }; }
need python3 python3
need node nodejs
need npm npm
need promtool prometheus
need prometheus prometheus
need chromium chromium

promtool check rules docs/observability/alerts.yml
promtool test rules docs/observability/alerts_test.yml
promtool check config docs/observability/prometheus.yml

cp "$here/page.mjs" "$work/"
if ! cmp -s "$here/package.json" "$work/package.json" || [ ! -d "$work/node_modules" ]; then
    cp "$here/package.json" "$work/"
    npm install --silent --no-audit --no-fund --no-package-lock --ignore-scripts --prefix "$work"
fi

. tests/node.sh
start_node --store memory --log-format json
admin=http://$(cat "$state/admin.addr")
python3 "$here/check.py" "$public" "$admin" "$state" "$work"
node "$work/page.mjs" "$admin" "$state/admin.token" "$PWD/target/edgepass.wasm" "$work"
