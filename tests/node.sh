# To be sourced: `start_node ARGS...` serves on a free port against a simulated platform, in a state
# folder of its own. It sets `node` (the process), `public` (the address) and `state` (the folder), and
# ends the node with the shell.
start_node() {
    local line
    state=$(mktemp -d)
    mkfifo "$state/log"
    target/release/edgepass serve --listen 127.0.0.1:0 --sim 127.0.0.1:0 --reusable-codes --state-dir "$state" "$@" \
        >"$state/log" 2>"$state/err" &
    node=$!
    trap 'kill "$node" 2>/dev/null || true; wait "$node" 2>/dev/null || true; rm -rf "$state"' EXIT

    # The address is the first line, written once the node accepts; a node that does not start ends
    # the pipe. The rest is taken out of the way, or the node would wait for a reader.
    exec 3<"$state/log"
    read -r line <&3 || { cat "$state/err" >&2; exit 1; }
    cat <&3 >/dev/null &
    public=${line#listening on }
}
