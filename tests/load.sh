#!/usr/bin/env bash
# The owner's own line against a real node: ten thousand logins, two hundred at a time, each
# answered 200 and durable on disk.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v hey >/dev/null || { echo "load: needs hey (Debian: apt-get install hey)" >&2; exit 1; }
state=$(mktemp -d)
log=$state/serve.log
mkfifo "$log"
target/release/edgepass serve --listen 127.0.0.1:0 --sim 127.0.0.1:0 --reusable-codes --state-dir "$state" >"$log" 2>"$state/err" &
node=$!
trap 'kill "$node" 2>/dev/null || true; wait "$node" 2>/dev/null || true; rm -rf "$state"' EXIT

# The address is the first line, written once the node accepts; a node that does not start ends the
# pipe. The rest is taken out of the way, or the node would wait for a reader.
exec 3<"$log"
read -r line <&3 || { cat "$state/err" >&2; exit 1; }
cat <&3 >/dev/null &
address=${line#listening on }

report=$(hey -n 10000 -c 200 -m POST -d '{"code":"0a1b2c3d"}' "$address/api/login")
echo "$report" | sed -n '/^Summary/,/^  Requests/p;/^Latency/,/^$/p;/^Status code/,$p'
passed=$(echo "$report" | sed -n 's/^  \[200\][[:space:]]*\([0-9]*\) responses/\1/p')

kill -TERM "$node"
wait "$node" && stopped=0 || stopped=$?
[ "$stopped" = 0 ] || { echo "load: the node ended with status $stopped" >&2; exit 1; }
echo "load: ${passed:-0} of 10000 logins answered 200, and the node drained"
[ "${passed:-0}" = 10000 ]
