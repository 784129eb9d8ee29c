//! What the tests of this crate share: hand-made events, a real ledger in a temporary folder, and
//! reading what the projections made of them.

use crate::apply::{Applied, Progress, apply};
use crate::db::Pool;
use crate::projection::Projection;
use crate::registry::PROJECTIONS;
use crate::runner::ProjectionRunner;
use crate::store::{Projections, Store};
use crate::views::Views;
use devmind_domain::Timestamp;
use devmind_domain::conversation::*;
use devmind_domain::device::*;
use devmind_domain::event::*;
use devmind_domain::ids::*;
use devmind_domain::node::*;
use devmind_domain::thread::*;
use devmind_domain::tool_call::*;
use devmind_ledger::{Append, Ledger, Place, PostgresUrl, StreamAppend};
use devmind_test_postgres::{Cluster, Database};
use serde_json::{Value, json};
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// An event with its stream's id.
pub type Fact = (&'static str, DomainEvent);

pub fn stream(id: &str, event: &DomainEvent) -> StreamId {
    let kind = match event {
        DomainEvent::Conversation(_) => AggregateType::Conversation,
        DomainEvent::Thread(_) => AggregateType::Thread,
        DomainEvent::ToolCall(_) => AggregateType::ToolCall,
        DomainEvent::Device(_) => AggregateType::Device,
        DomainEvent::Node(_) => AggregateType::Node,
        DomainEvent::Redaction(_) => AggregateType::Redaction,
        DomainEvent::Projection(_) => AggregateType::Projection,
        DomainEvent::History(_) => AggregateType::History,
        DomainEvent::ToolSet(_) => AggregateType::ToolSet,
    };
    StreamId::new(kind, id)
}

pub fn metadata() -> Metadata {
    Metadata::new(Actor::user("ann"), "n1".into())
}

/// The conversation that a server names in an event's metadata; all calls of [`requested`] are of `c1`.
fn conversation_of<'a>(id: &'a str, event: &DomainEvent) -> &'a str {
    match event {
        DomainEvent::Conversation(_) => id,
        DomainEvent::Thread(_)
        | DomainEvent::ToolCall(_)
        | DomainEvent::Device(_)
        | DomainEvent::Node(_)
        | DomainEvent::Redaction(_)
        | DomainEvent::Projection(_)
        | DomainEvent::History(_)
        | DomainEvent::ToolSet(_) => "c1",
    }
}

/// Recorded events at positions 1, 2, 3 …, one millisecond apart.
pub fn recorded(facts: &[Fact]) -> Vec<Arc<RecordedEvent>> {
    let mut versions: HashMap<StreamId, u64> = HashMap::new();
    let record = |(position, (id, event)): (u64, &Fact)| {
        let stream = stream(id, event);
        let sequence = versions.entry(stream.clone()).or_default();
        *sequence += 1;
        Arc::new(RecordedEvent {
            partition: 0,
            position,
            event_id: format!("e{position}"),
            stream,
            sequence: *sequence,
            event_type: event.type_name().to_owned(),
            event_version: event.version(),
            payload: event.payload(),
            metadata: "{}".to_owned(),
            recorded_at: at(position),
            leaf_hash: [u8::try_from(position % 256).expect("a byte"); 32],
        })
    };
    (1..).zip(facts).map(record).collect()
}

/// The moment of the event at a position.
pub fn at(position: u64) -> Timestamp {
    Timestamp::from_micros(i64::try_from(position).expect("small") * 1_000)
}

/// A store in memory with all events applied, in batches of `size`.
pub async fn store_of(events: &[Arc<RecordedEvent>], size: usize) -> Store {
    let projections = PROJECTIONS.to_vec();
    let store = Store::in_memory(&projections).await.expect("in memory");
    for projection in projections {
        let mut position = 0;
        for batch in events.chunks(size) {
            position = applied(&store, projection, position, batch).await.position;
        }
    }
    store
}

/// Applies a batch that must go through.
pub async fn applied(store: &Store, projection: &dyn Projection, from: u64, events: &[Arc<RecordedEvent>]) -> Progress {
    match apply(&store.write, projection, &BTreeSet::new(), from, events).await.expect("the store works") {
        Applied::Now(now) if now.failed.is_none() => now,
        other => panic!("{}: {other:?}", projection.name()),
    }
}

/// Every row of every table, as JSON with its fields sorted.
pub async fn dump(pool: &Pool) -> Vec<String> {
    let mut rows = Vec::new();
    for table in PROJECTIONS.iter().flat_map(|projection| projection.tables()) {
        let (mut found, columns) = match pool {
            Pool::Sqlite(sqlite) => {
                let names = sqlx::query_as("SELECT name, type FROM pragma_table_info($1)").bind(*table);
                let names: Vec<(String, String)> = names.fetch_all(sqlite).await.expect("a table");
                let pairs = names.iter().map(|(name, _)| format!("'{name}', {name}")).collect::<Vec<_>>().join(", ");
                let sql = format!("SELECT json_object({pairs}) FROM {table}");
                (sqlx::query_scalar::<_, String>(&sql).fetch_all(sqlite).await.expect("rows"), names)
            }
            Pool::Postgres(postgres) => {
                let sql = format!("SELECT to_json(t)::text FROM {table} AS t");
                let mut connection = postgres.take().await.expect("a connection");
                (sqlx::query_scalar::<_, String>(&sql).fetch_all(&mut *connection).await.expect("rows"), Vec::new())
            }
        };
        for row in &mut found {
            let mut value: Value = serde_json::from_str(row).expect("JSON");
            // SQLite keeps truth as numbers.
            for (name, _) in columns.iter().filter(|(_, kind)| kind == "BOOLEAN") {
                if !value[name].is_null() {
                    value[name] = json!(value[name] == 1);
                }
            }
            *row = format!("{table} {value}");
        }
        found.sort();
        rows.extend(found);
    }
    rows
}

/// One row of a query as JSON.
pub async fn row(store: &Store, columns: &str, rest: &str) -> Value {
    let Pool::Sqlite(pool) = &store.read else { panic!("a store in memory") };
    let pairs = columns.split(", ").map(|name| format!("'{name}', {name}")).collect::<Vec<_>>().join(", ");
    let sql = format!("SELECT json_object({pairs}) FROM {rest}");
    let text: Option<String> = sqlx::query_scalar(&sql).fetch_optional(pool).await.expect("a query");
    text.map_or(Value::Null, |text| serde_json::from_str(&text).expect("JSON"))
}

/// Makes a test of each store out of one function that takes a [`Bench`].
macro_rules! on_both_stores {
    ($($(#[$attribute:meta])* async fn $name:ident($bench:ident: Bench) $body:block)*) => {$(
        mod $name {
            use super::*;

            async fn test($bench: Bench) $body

            $(#[$attribute])*
            async fn sqlite() {
                test(Bench::new().await).await;
            }

            $(#[$attribute])*
            async fn postgres() {
                test(Bench::postgres().await).await;
            }
        }
    )*};
}
pub(crate) use on_both_stores;

/// A ledger in a temporary folder or a database of its own, with its views.
pub struct Bench {
    pub folder: TempDir,
    pub ledger: Ledger,
    database: Option<Arc<Database>>,
    versions: HashMap<StreamId, u64>,
}

impl Bench {
    pub async fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        let ledger = Ledger::open(&folder.path().join("ledger.sqlite")).await.expect("a ledger");
        Self { folder, ledger, database: None, versions: HashMap::new() }
    }

    pub async fn postgres() -> Self {
        let folder = TempDir::new().expect("a folder");
        let database = Cluster::shared().database();
        let url: PostgresUrl = database.url().parse().expect("a URL");
        let ledger = Ledger::open(&url).await.expect("a ledger");
        Self { folder, ledger, database: Some(Arc::new(database)), versions: HashMap::new() }
    }

    /// The same database, as another process has it.
    pub async fn another_process(&self) -> Self {
        let Place::Postgres(url) = self.views_place() else { panic!("a file has one process") };
        let ledger = Ledger::open(&url).await.expect("a ledger");
        let other =
            Self { folder: TempDir::new().expect("a folder"), ledger, database: None, versions: HashMap::new() };
        Self { database: self.database.clone(), ..other }
    }

    /// Where the views are.
    pub fn views_place(&self) -> Place {
        match &self.database {
            None => Place::from(&self.views_file()),
            Some(database) => Place::Postgres(database.url().parse().expect("a URL")),
        }
    }

    /// Runs statements on the views like any other program.
    pub async fn meddle(&self, sql: &str) {
        let pool = match self.views_place() {
            Place::File(file) => {
                Pool::Sqlite(SqlitePool::connect_with(SqliteConnectOptions::new().filename(file)).await.expect("open"))
            }
            Place::Postgres(url) => Pool::Postgres(crate::store::postgres::pool(&url, "views", 1)),
        };
        pool.script(sql).await.expect(sql);
        pool.close().await;
    }

    pub fn views_file(&self) -> PathBuf {
        self.folder.path().join("views.sqlite")
    }

    /// Appends facts one by one; answers the last one's position.
    pub async fn append(&mut self, facts: impl IntoIterator<Item = Fact>) -> u64 {
        let mut position = 0;
        for (id, event) in facts {
            let stream = stream(id, &event);
            let version = self.versions.entry(stream.clone()).or_default();
            let metadata = metadata().conversation(&conversation_of(id, &event).into());
            let event = NewEvent { event_id: uuid::Uuid::now_v7().to_string(), event, metadata };
            let append = StreamAppend { stream, expected_version: *version, events: vec![event] };
            *version += 1;
            let append = Append { streams: vec![append], idempotency: None };
            position = self.ledger.append(append).await.expect("appended").position();
        }
        position
    }

    /// Closes and opens the ledger again, with `between` done to its closed file.
    pub async fn reopen(&mut self, between: impl FnOnce(&Path)) {
        let file = self.folder.path().join("ledger.sqlite");
        self.ledger.close().await;
        between(&file);
        self.ledger = Ledger::open(&file).await.expect("a ledger");
        self.versions.clear();
        for event in self.ledger.reader().read(0, 1_000).await.expect("events") {
            self.versions.insert(event.stream.clone(), event.sequence);
        }
    }

    /// The views of the log as it stands.
    pub async fn views(&self) -> Views {
        self.views_at(u64::MAX).await
    }

    /// The views as they were.
    pub async fn views_at(&self, position: u64) -> Views {
        let all = PROJECTIONS.map(|projection| projection.name());
        let (views, unread) = Views::at(self.ledger.reader(), position, &all, |_, _| {}).await.expect("views");
        assert!(unread.is_empty(), "{unread:?}");
        views
    }

    /// Opens the views' file and starts its runner.
    pub async fn serve(&self) -> Served {
        self.serve_with(PROJECTIONS.to_vec()).await
    }

    pub async fn serve_with(&self, projections: Projections) -> Served {
        let opened = Views::open_with(self.views_place(), self.ledger.reader().clone(), projections).await;
        let (views, runner) = opened.expect("views");
        Served::start(views, runner)
    }
}

/// Views with their running runner.
pub struct Served {
    pub views: Views,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

impl Served {
    pub fn start(views: Views, runner: ProjectionRunner) -> Self {
        let cancel = CancellationToken::new();
        let task = tokio::spawn(runner.run(cancel.clone()));
        Self { views, cancel, task }
    }

    /// Ends the runner and closes the file.
    pub async fn stop(self) {
        self.cancel.cancel();
        self.task.await.expect("the runner ends");
        self.views.close().await;
    }
}

// Facts, by their shortest names.

pub fn conversation(id: &'static str, event: impl Into<ConversationEvent>) -> Fact {
    (id, DomainEvent::Conversation(event.into()))
}
pub fn tool_call(id: &'static str, event: impl Into<ToolCallEvent>) -> Fact {
    (id, DomainEvent::ToolCall(event.into()))
}
pub fn device(id: &'static str, event: impl Into<DeviceEvent>) -> Fact {
    (id, DomainEvent::Device(event.into()))
}
pub fn node(event: impl Into<NodeEvent>) -> Fact {
    ("n1", DomainEvent::Node(event.into()))
}
pub fn started(id: &'static str, user: &str) -> Fact {
    conversation(id, ConversationStarted { user_id: user.into(), title: format!("title of {id}") })
}
pub fn asked(id: &'static str, turn: &str, sequence_no: u32) -> Fact {
    let (message_id, content) = (format!("q-{turn}").into(), format!("question {turn}"));
    conversation(id, TurnPrepared { turn_id: turn.into(), sequence_no, message_id, content, device_id: None })
}
pub fn prepared(id: &'static str, run: &str, turn: &str, kind: RunKind) -> Fact {
    let trigger = match kind {
        RunKind::Normal => RunTrigger::Ask,
        RunKind::Resume => RunTrigger::Approval,
        RunKind::Retry => RunTrigger::Retry,
    };
    let (run_id, turn_id, graph_thread_id) = (run.into(), turn.into(), format!("thread-{run}").into());
    let (parent_run_id, device_id) = (None, Some("d1".into()));
    conversation(
        id,
        RunPrepared { run_id, turn_id, kind, trigger, run_seq: 1, graph_thread_id, parent_run_id, device_id },
    )
}
/// The run after `parent`: one that resumes its thread, or one that answers the turn anew in a thread of its own.
pub fn followed(id: &'static str, run: &str, parent: &str, turn: &str, kind: RunKind) -> Fact {
    let (_, DomainEvent::Conversation(ConversationEvent::RunPrepared(mut event))) = prepared(id, run, turn, kind)
    else {
        panic!("a run is prepared")
    };
    event.parent_run_id = Some(parent.into());
    if kind == RunKind::Resume {
        event.graph_thread_id = format!("thread-{parent}").into();
    }
    conversation(id, event)
}
/// An interrupt `i…` of a run that turn `turn` waits for, answered in time until `expires_at`.
pub fn raised(id: &'static str, interrupt: &str, run: &str, turn: &str, expires_at: Option<Timestamp>) -> Fact {
    conversation(
        id,
        InterruptRaised {
            interrupt_id: interrupt.into(),
            run_id: run.into(),
            turn_id: turn.into(),
            kind: InterruptKind::ToolApproval,
            tool_call_id: format!("thread-{run}:{interrupt}").into(),
            tool: "demo_text".into(),
            arguments: json!({"n": 1}),
            arguments_hash: "hash".into(),
            message: "May it?".into(),
            expires_at,
        },
    )
}
pub fn paused(id: &'static str, run: &str) -> Fact {
    conversation(id, RunInterrupted { run_id: run.into() })
}
pub fn resolved(id: &'static str, interrupt: &str, approved: bool) -> Fact {
    let (resolved_by, arguments_hash) = ("ann".into(), "hash".into());
    conversation(id, InterruptResolved { interrupt_id: interrupt.into(), approved, resolved_by, arguments_hash })
}
pub fn withdrawn(id: &'static str, interrupt: &str, reason: InterruptCancelReason) -> Fact {
    conversation(id, InterruptCancelled { interrupt_id: interrupt.into(), reason })
}
pub fn expired(id: &'static str, interrupt: &str) -> Fact {
    conversation(id, InterruptExpired { interrupt_id: interrupt.into() })
}
pub fn claimed(id: &'static str, run: &str) -> Fact {
    conversation(id, RunClaimed { run_id: run.into(), node_id: "n1".into(), epoch: 1, context_hash: "h".into() })
}
pub fn succeeded(id: &'static str, run: &str, answer: &str) -> Fact {
    let message_id = format!("a-{run}").into();
    conversation(id, RunSucceeded { run_id: run.into(), message_id, answer: answer.into() })
}
pub fn failed(id: &'static str, run: &str, partial: &str) -> Fact {
    let message_id = (!partial.is_empty()).then(|| format!("a-{run}").into());
    let (error_code, error_message) = ("MODEL_TIMEOUT".into(), "it was silent".into());
    let partial_text = partial.into();
    conversation(id, RunFailed { run_id: run.into(), error_code, error_message, message_id, partial_text })
}
pub fn cancelled(id: &'static str, run: &str, error_code: RunCancelReason, partial: &str) -> Fact {
    let message_id = (!partial.is_empty()).then(|| format!("a-{run}").into());
    conversation(id, RunCancelled { run_id: run.into(), error_code, message_id, partial_text: partial.into() })
}
pub fn requested(id: &'static str, run: &str) -> Fact {
    tool_call(
        id,
        ToolCallRequested {
            conversation_id: "c1".into(),
            turn_id: "t1".into(),
            run_id: run.into(),
            user_id: "ann".into(),
            graph_thread_id: "thread-r1".into(),
            model_call_id: "1".into(),
            parent_tool_call_id: None,
            tool: "workspace.read_file".into(),
            tool_version: "1".into(),
            target: Target::Device,
            device_id: Some("d1".into()),
            arguments: json!({"path": "README.md"}),
            call_hash: "hash".into(),
            risk: Risk::Medium,
        },
    )
}
/// A dispatch by run r1 on process n1.
pub fn dispatched(id: &'static str, attempt_no: u32, epoch: u64, connection: Option<&str>) -> Fact {
    let (connection_id, journal_id) = (connection.map(ConnectionId::from), connection.map(|_| "j1".to_owned()));
    let (run_id, node_id, wait_ms, ttl_ms) = ("r1".into(), "n1".into(), 120_000, 105_000);
    tool_call(id, ToolDispatched { attempt_no, run_id, node_id, epoch, connection_id, journal_id, wait_ms, ttl_ms })
}
pub fn result(id: &'static str, executed_attempt_no: u32, status: ResultStatus) -> Fact {
    let succeeded = status == ResultStatus::Succeeded;
    tool_call(
        id,
        ToolResultRecorded {
            executed_attempt_no,
            status,
            output: succeeded.then(|| json!({"content": "hello"})),
            output_sha256: succeeded.then(|| "sha".to_owned()),
            error: (!succeeded).then(|| ToolError { code: "OF_THE_RESULT".into(), message: "so it was".into() }),
            started_at: None,
            finished_at: None,
            origin: ResultOrigin::Live,
            connection_id: None,
        },
    )
}
pub fn connected(id: &'static str, connection: &str, connection_epoch: u64) -> Fact {
    device(
        id,
        DeviceConnected {
            connection_id: connection.into(),
            connection_epoch,
            node_id: "n1".into(),
            node_epoch: Some(1),
            instance_id: "i1".into(),
            journal_id: "j1".into(),
            journal_epoch: 1,
            version: "0.1.0".into(),
            remote: "127.0.0.1:5".into(),
        },
    )
}
pub fn synced(id: &'static str, connection: &str) -> Fact {
    device(id, ToolRegistrySynced { connection_id: connection.into(), tools: vec![] })
}
pub fn disconnected(id: &'static str, connection: &str) -> Fact {
    device(id, DeviceDisconnected { connection_id: connection.into(), code: 1006, reason: "gone".into() })
}
pub fn replaced(id: &'static str, old: &str, new: &str) -> Fact {
    device(id, DeviceReplaced { old_connection_id: old.into(), new_connection_id: new.into() })
}
pub fn node_started(epoch: u64) -> Fact {
    node(NodeStarted { node_id: "n1".into(), epoch, version: "0.1.0".into() })
}
pub fn node_stopped(epoch: u64) -> Fact {
    node(NodeStopped { node_id: "n1".into(), epoch })
}
pub fn node_lost(epoch: u64) -> Fact {
    node(NodeLost { node_id: "n1".into(), epoch })
}
pub fn thread(id: &'static str, event: impl Into<ThreadEvent>) -> Fact {
    (id, DomainEvent::Thread(event.into()))
}
pub fn thread_started(id: &'static str, user: &str) -> Fact {
    let (conversation_id, turn_id, run_id) = ("c1".into(), "t1".into(), "r1".into());
    thread(id, ThreadStarted { conversation_id, turn_id, run_id, user_id: user.into() })
}
pub fn responded(id: &'static str, model: &str, usage: TokenUsage) -> Fact {
    thread(
        id,
        ModelResponded {
            run_id: "r1".into(),
            round: 1,
            message_id: "m".into(),
            content: "an answer".into(),
            reasoning: None,
            tool_calls: vec![],
            finish_reason: "stop".into(),
            usage,
            served_model: model.into(),
            latency_ms: 1,
        },
    )
}
/// The moment it is, for what is recorded now.
pub fn now_micros() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_micros()).expect("before 292277")
}
