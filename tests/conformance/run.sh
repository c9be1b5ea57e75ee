#!/usr/bin/env bash
# schemathesis against a running node: every route of docs/openapi.json, every check it has, as two
# users, a back end and an operator. No findings, within a bounded number of requests.
set -euo pipefail
cd "$(dirname "$0")/../.."

venv=target/conformance
pins=tests/conformance/requirements.txt
python=${PYTHON:-python3}
if ! cmp -s "$pins" "$venv/installed"; then
    "$python" -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$pins"
    cp "$pins" "$venv/installed"
fi

state=$(mktemp -d)
mkfifo "$state/log"
CLIENT_SECRET=$(head -c 32 /dev/urandom | basenc --base64url)
export CLIENT_SECRET
target/release/edgepass serve --listen 127.0.0.1:0 --sim 127.0.0.1:0 --reusable-codes --store memory --state-dir "$state" \
    --variable issuer=https://login.example --variable "clients=[{\"id\":\"conformance\",\"secret\":\"$CLIENT_SECRET\",\"apps\":[\"wechat\"]}]" \
    >"$state/log" 2>"$state/err" &
node=$!
trap 'kill "$node" 2>/dev/null || true; wait "$node" 2>/dev/null || true; rm -rf "$state"' EXIT

# The address is the first line, written once the node accepts; a node that does not start ends the
# pipe. The rest is taken out of the way, or the node would wait for a reader.
exec 3<"$state/log"
read -r line <&3 || { cat "$state/err" >&2; exit 1; }
cat <&3 >/dev/null &
public=${line#listening on }
admin=http://$(cat "$state/admin.addr")
OPERATOR_TOKEN=$(cat "$state/admin.token")
export OPERATOR_TOKEN

status=0
check() { (cd tests/conformance && "../../$venv/bin/st" --config-file "$1" run "$public/openapi.json" --checks all "${@:2}") || status=$?; }
check public.toml --exclude-path-regex '^/internal/' "$@"
check internal.toml --include-path-regex '^/internal/' --url "$admin" "$@"
exit "$status"
