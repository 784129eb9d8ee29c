//! The command that is measured, and our way of carrying it out.

use crate::load::COMMANDS_A_STREAM;
use devmind_domain::device::{Device, DeviceCommand};
use devmind_domain::event::{Actor, ActorKind, Metadata, Role};
use devmind_ledger::{Idempotency, Ledger, execute};
use std::sync::Arc;

/// About how long the payload of the stored event is (bytes).
pub const PAYLOAD_BYTES: usize = 600;

/// The command: leads to one event, whatever was before.
pub fn command() -> DeviceCommand {
    DeviceCommand::RecordRead { by: "user-1".into(), role: Role::Auditor, what: "x".repeat(PAYLOAD_BYTES - 50) }
}

/// A caller's stream: time-ordered, as every id of ours; a new one every few commands.
pub fn stream(caller: usize, n: u64) -> String {
    let n = n - n % COMMANDS_A_STREAM;
    format!("{:08x}-{:08x}/{caller:04}", n >> 32, n & u64::from(u32::MAX))
}

/// A command's idempotency key: time-ordered, as a UUIDv7 is.
pub fn key(caller: usize, n: u64) -> String {
    format!("{:08x}-{:08x}-{caller:04}", n >> 32, n & u64::from(u32::MAX))
}

/// Loads, decides, appends with an idempotency key, waits until it is durable.
pub async fn carry_out(ledger: Ledger, metadata: Arc<Metadata>, stream: String, key: String) {
    let key = Idempotency { scope: "bench".to_owned(), key, request_hash: "0".repeat(64) };
    execute::<Device>(&ledger, &stream, &metadata, command(), Some(key)).await.expect("the command is stored");
}

/// Who did it.
pub fn metadata() -> Arc<Metadata> {
    Arc::new(Metadata::new(Actor { kind: ActorKind::Server, id: "bench".to_owned() }, "bench".into()))
}
