#!/usr/bin/env bash
# Slow clients (slowhttptest) against a node of its own: heads, bodies and readers that take for ever.
# The node has to answer others all the while.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v slowhttptest >/dev/null || { echo "slow: needs slowhttptest (Debian: apt-get install slowhttptest)" >&2; exit 1; }

state=$(mktemp -d)
trap 'kill "$node" 2>/dev/null; wait "$node" 2>/dev/null || true; rm -rf "$state"' EXIT
target/release/edgepass serve --listen 127.0.0.1:0 --sim 127.0.0.1:0 --state-dir "$state" >"$state/out" 2>"$state/log" &
node=$!
for _ in $(seq 100); do
    url=$(sed -n 's/^listening on //p' "$state/out")
    [ -n "$url" ] && break
    sleep 0.1
done
[ -n "$url" ] || { cat "$state/log" >&2; exit 1; }

# kind: -H head, -B body, -X reader. Four seconds each, 500 connections.
for kind in "-H -u $url/healthz" "-B -u $url/api/login -t POST" "-X -u $url/openapi.json -w 8 -y 16 -n 1 -z 4"; do
    # shellcheck disable=SC2086
    slowhttptest $kind -c 500 -r 500 -i 1 -l 4 -p 2 >"$state/said" 2>&1 &
    attack=$!
    asked=0
    while kill -0 "$attack" 2>/dev/null; do
        curl -fsS -m 2 -o "$state/answer" "$url/healthz" || { echo "slow: not answered during ${kind%% *}" >&2; exit 1; }
        asked=$((asked + 1))
        sleep 0.1
    done
    wait "$attack" || true
    [ "$asked" -gt 5 ] || { echo "slow: slowhttptest did not run:" >&2; cat "$state/said" >&2; exit 1; }
    echo "slow: ${kind%% *}: $asked of $asked others answered"
done
