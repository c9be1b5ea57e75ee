#!/usr/bin/env bash
# The owner's own line against a real node: ten thousand logins, two hundred at a time, each
# answered 200 and durable on disk.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v hey >/dev/null || { echo "load: needs hey (Debian: apt-get install hey)" >&2; exit 1; }
. tests/node.sh
start_node

report=$(hey -n 10000 -c 200 -m POST -d '{"code":"0a1b2c3d"}' "$public/api/login")
echo "$report" | sed -n '/^Summary/,/^  Requests/p;/^Latency/,/^$/p;/^Status code/,$p'
passed=$(echo "$report" | sed -n 's/^  \[200\][[:space:]]*\([0-9]*\) responses/\1/p')

kill -TERM "$node"
wait "$node" && stopped=0 || stopped=$?
[ "$stopped" = 0 ] || { echo "load: the node ended with status $stopped" >&2; exit 1; }
echo "load: ${passed:-0} of 10000 logins answered 200, and the node drained"
[ "${passed:-0}" = 10000 ]
