# The verbs. CI calls `make ci` and nothing else; a laptop does the same.
.DEFAULT_GOAL := help
.PHONY: help serve demo build component test fmt lint unit doc ci debian reproducible load slow soak interop proxies conformance observability deny audit bench clean

# One profile and one set of packages for tests and serving, so that wasmtime is compiled once: cargo
# joins the features of what it builds together.
PROFILE := --release
BIN     := target/release
LISTEN  ?= 127.0.0.1:3000
STATE   ?= .edgepass
# cargo-nextest where it is installed; cargo's own runner does the same, slower.
RUN_TESTS := $(shell cargo nextest --version >/dev/null 2>&1 && echo "nextest run --no-fail-fast" || echo "test")
TEST_PROFILE := $(shell cargo nextest --version >/dev/null 2>&1 && echo "--cargo-profile release" || echo "--release")

help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: build ## a node with a simulated WeChat on 127.0.0.1:3000: log in with three curl lines
	$(BIN)/edgepass serve --manifest spin.toml --listen $(LISTEN) --sim --state-dir $(STATE)

demo: build ## walk a login step by step, each request and answer in colour
	$(BIN)/edgepass demo

build: component ## the edge node, the harness and both components
	cargo build $(PROFILE) --workspace --bins

component: ## target/edgepass.wasm and target/edgepass-node.wasm
	cargo xtask component

test: fmt component lint unit doc ## everything: format, lints, unit, behaviour natively and through both doors, imports

fmt:
	cargo fmt --all --check

lint:
	cargo clippy $(PROFILE) --workspace --all-targets -- -D warnings
	cargo xtask lint-wasm

unit:
	cargo $(RUN_TESTS) $(TEST_PROFILE) --workspace
	cargo test $(PROFILE) --workspace --doc

doc:
	RUSTDOCFLAGS="-D warnings" cargo doc $(PROFILE) --workspace --no-deps --document-private-items

ci: test debian reproducible load slow interop proxies conformance observability deny ## what CI runs: test, the second toolchain, same bytes twice, a real load, slow clients, other libraries, nginx, the document, Prometheus and the page, licences

debian: ## build both components with Debian's rustc-web instead of rustup's target
	cargo xtask component --toolchain debian --out target/debian

reproducible: ## two builds of one commit give the same bytes
	cargo xtask component --check-reproducible

load: build ## ten thousand logins by hey, two hundred at a time, on a node with a durable store
	tests/load.sh

slow: build ## slow heads, bodies and readers by slowhttptest, while others are answered
	tests/slow.sh

soak: component ## the overload for a minute instead of seconds (EDGEPASS_SOAK_SECONDS)
	EDGEPASS_SOAK_SECONDS=$${EDGEPASS_SOAK_SECONDS:-60} cargo $(RUN_TESTS) $(TEST_PROFILE) --workspace --test node overload::

interop: build ## our tokens in PyJWT, joserfc and jose and theirs in ours, across a rotation
	tests/interop/run.sh

proxies: component ## the gateway of docs/proxies.md, run by Debian's nginx
	@command -v nginx >/dev/null || { echo "proxies: needs nginx (Debian: apt-get install nginx-light)" >&2; exit 1; }
	cargo $(RUN_TESTS) $(TEST_PROFILE) --workspace --test binary proxies:: -- --ignored

conformance: build ## what /openapi.json promises, tried by schemathesis on a running node
	tests/conformance/run.sh

observability: build ## metrics, dashboard and alerts with Debian's Prometheus, the status page in Chromium
	tests/observability/run.sh

deny: ## licences, sources, bans
	@cargo deny --version >/dev/null 2>&1 || cargo install cargo-deny --version 0.20.2 --locked --debug
	cargo deny --workspace check licenses bans sources

audit: ## the advisory database as well (it is fetched)
	cargo deny --workspace check

bench: build ## cold start and cost per login through each door
	$(BIN)/edgepass-bench cold-start

clean:
	cargo clean
	rm -rf $(STATE)
