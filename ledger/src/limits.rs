//! The limits of the event store, with their units in the names. Limits that other crates share
//! are in `devmind_domain::limits`.

use std::time::Duration;

/// Commands that wait for the writer, at most; more are refused as overload.
pub const MAX_QUEUED_COMMANDS: usize = 4_096;
/// Bytes of the commands that wait for the writer, at most; more are refused as overload.
pub const MAX_QUEUED_BYTES: usize = 64 << 20;
/// Commands committed in one transaction, at most.
pub const MAX_BATCH_COMMANDS: usize = 512;
/// Bytes committed in one transaction, at most (a single larger command goes alone).
pub const MAX_BATCH_BYTES: usize = 16 << 20;
/// How long the writer waits for more commands, at most, in percent of what the last batch took.
pub const GATHER_PERCENT: u32 = 15;
/// Streams whose versions the writer remembers from the batches before, at most.
pub const MAX_KNOWN_STREAMS: usize = 8_192;
/// How long after a batch the next one may be stored without a look at the log.
pub const KNOWN_FOR: Duration = Duration::from_secs(1);
/// Bytes of one command, at most.
pub const MAX_APPEND_BYTES: usize = 16 << 20;
/// Events of one command, at most.
pub const MAX_APPEND_EVENTS: usize = 1_000;
/// Bytes of one event's metadata, at most.
pub const MAX_METADATA_BYTES: usize = 64 << 10;
/// Bytes of a stream's id, an event's id, a key or a scope, at most.
pub const MAX_ID_BYTES: usize = 1_024;

/// Events in one page of a read, at most.
pub const MAX_PAGE_EVENTS: u32 = 1_000;
/// A page of a read ends at the event with which it exceeds this many bytes.
pub const MAX_PAGE_BYTES: usize = 16 << 20;
/// Newest events kept in memory for followers, at most.
pub const MAX_RING_EVENTS: usize = 8_192;
/// Bytes of the newest events kept in memory for followers, at most.
pub const MAX_RING_BYTES: usize = 32 << 20;
/// Connections that read at the same time.
pub const READ_CONNECTIONS: u32 = 4;

/// Aggregates kept in memory, at most.
pub const MAX_CACHED_AGGREGATES: usize = 4_096;
/// Bytes of the aggregates kept in memory, about, at most.
pub const MAX_CACHED_BYTES: u64 = 64 << 20;
/// A state is stored each time its stream has grown by this many events.
pub const SNAPSHOT_EVERY: u64 = 64;
/// Bytes of a stored state, at most; a larger one is folded from its events each time.
pub const MAX_SNAPSHOT_BYTES: usize = 1 << 20;
/// States that wait to be stored with the next batch, at most; more are not stored this time.
pub const MAX_QUEUED_SNAPSHOTS: usize = 64;

/// Times that `execute` loads and decides anew after a lost race, at most.
pub const MAX_CONFLICT_RETRIES: u32 = 16;
/// How often a reader of another process's file looks for news.
pub const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How long opening waits for the lock of the folder.
pub const LOCK_WAIT: Duration = Duration::from_millis(500);
/// How long opening pauses before it tries the lock again.
pub const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// How long SQLite waits for a lock of its own.
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long closing waits for reads under way.
pub const CLOSE_WAIT: Duration = Duration::from_secs(5);
/// How long a connection to PostgreSQL may take to come about.
pub const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// How long PostgreSQL may take for one statement of the writer, before its connection counts as lost.
pub const COMMIT_WAIT: Duration = Duration::from_secs(30);
/// How long a commit in doubt is asked about before its callers are told that it is in doubt.
pub const DOUBT_WAIT: Duration = Duration::from_secs(20);
/// Pause before PostgreSQL is tried again.
pub const RECONNECT_PAUSE: Duration = Duration::from_millis(100);
