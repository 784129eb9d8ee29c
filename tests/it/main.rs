//! The integration tests: every promise of the product over real sockets and real files, by topic.
//!
//! Tests of the built programs need them: `cargo build --workspace --bins --examples` first.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

mod agui_peer;
mod agui_stock;
mod approval_cases;
mod approvals;
mod asking;
mod bad_requests;
mod bad_start;
mod browser;
mod channel_cases;
mod chat_pages;
mod code_mode;
mod conclusion;
mod concurrency;
mod context;
mod crash;
mod crates;
mod demo;
mod dev_calls;
mod disconnects;
mod foreign_device;
mod foreign_model;
mod hardening;
mod idempotency;
mod identity;
mod invariants;
mod kill_points;
mod killed;
mod ledger_fails;
mod ledger_stream;
mod lost_servers;
mod mcp;
mod metrics;
mod model_answers;
mod model_failures;
mod model_retries;
mod model_secrets;
mod openapi;
mod openapi_fuzz;
mod operator;
mod otlp;
mod pages;
mod poison;
mod policies;
mod programs;
mod proofs;
mod prove_once;
mod replay_stream;
mod reports;
mod rerun;
mod restart;
mod restart_scenarios;
mod scheduler;
mod several_servers;
mod sockets;
mod stop;
mod stopping;
mod story;
mod tickets;
mod tool_calls;
mod tool_pipeline;
mod two_processes;
