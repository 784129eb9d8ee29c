#!/usr/bin/env bash
# The test command: installs what the tests need, then runs every check and every test.
#
# Needed, and installed here on Debian when it is missing and we may:
#   gcc, libc6-dev    the C compiler for the bundled SQLite, QuickJS, mimalloc and ring
#   postgresql        the tests start throw-away clusters of their own, as another user when root runs them
#   strace            what a loss of power may leave of the device's journal (Linux)
#   util-linux        unshare and mount, for a small disk that is really full, and one that only reads (Linux)
#   bsdutils          script, for what a person sees at a terminal (Linux)
#   chromium          the pages, as people see them (tests/browser, driven by playwright-core from npm)
# Used when it is there (the tests say so when they are skipped, and fail with DEVMIND_REQUIRE_PEERS=1):
#   node >= 20.15, npm   the AG-UI client, the mock model server and the MCP servers under tests/peers (agui, aimock,
#                        mcp), and the browser tests; they fetch their packages with `npm ci`
#   python3 with venv    schemathesis, a device of another hand, the messages of OpenTelemetry (tests/peers), whose
#                        packages pip fetches into target/peers
# Rust itself comes from rustup; rust-toolchain is whatever cargo the machine has, 1.90 or newer.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
command -v cc >/dev/null || missing+=(gcc libc6-dev)
if [ "$(uname)" = Linux ]; then
  command -v strace >/dev/null || missing+=(strace)
  command -v unshare >/dev/null || missing+=(util-linux)
  command -v script >/dev/null || missing+=(bsdutils)
  [ -n "${DEVMIND_CHROMIUM:-}" ] || command -v chromium >/dev/null || missing+=(chromium)
fi
command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || missing+=(postgresql)
if ((${#missing[@]})); then
  if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    apt-get update -qq
    apt-get install -y -qq "${missing[@]}"
  else
    echo "error: install ${missing[*]} first" >&2
    exit 1
  fi
fi

step() { printf '\n== %s\n' "$*"; "$@"; }

if cargo fmt --version >/dev/null 2>&1; then
  step cargo fmt --all --check
else
  echo "skipped: cargo fmt (rustup component add rustfmt)"
fi
if cargo clippy --version >/dev/null 2>&1; then
  step cargo clippy --workspace --all-targets --locked -- -D warnings
else
  echo "skipped: cargo clippy (rustup component add clippy)"
fi
# The integration tests start the built programs.
step cargo build --workspace --bins --examples --locked
step cargo test --workspace --locked "$@"
# What matters most once more with ledger and views in PostgreSQL (the crates' own tests run on both).
DEVMIND_TEST_STORE=postgres step cargo test -p devmind-tests --locked --test it -- \
  story:: restart:: approvals:: tool_calls:: crash:: killed:: operator:: idempotency:: concurrency:: pages::chat chat_pages::
