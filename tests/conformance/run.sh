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

. tests/node.sh
CLIENT_SECRET=$(head -c 32 /dev/urandom | basenc --base64url)
export CLIENT_SECRET
start_node --store memory --variable issuer=https://login.example \
    --variable "clients=[{\"id\":\"conformance\",\"secret\":\"$CLIENT_SECRET\",\"apps\":[\"wechat\"]}]"
admin=http://$(cat "$state/admin.addr")
OPERATOR_TOKEN=$(cat "$state/admin.token")
export OPERATOR_TOKEN

status=0
check() { (cd tests/conformance && "../../$venv/bin/st" --config-file "$1" run "$public/openapi.json" --checks all "${@:2}") || status=$?; }
check public.toml --exclude-path-regex '^/internal/' "$@"
check internal.toml --include-path-regex '^/internal/' --url "$admin" "$@"
exit "$status"
