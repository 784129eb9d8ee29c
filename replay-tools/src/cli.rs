//! The command line.

use crate::at::At;
use crate::witness::{watched_log, witness_key};
use clap::{ArgGroup, Args, Parser, Subcommand};
use clap_complete::Shell;
use devmind_domain::event::StreamId;
use devmind_domain::proof::{NoteKey, WatchedLog};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Which command answers what is asked first.
const QUESTIONS: &str = "\
What is asked first:
  which runs there were                 log --type RunPrepared
  what one did, and who allowed it      timeline --run ID
  which calls are not final, and why    reconcile --journal FILE
  whether a call was really executed    prove-once --tool-call ID --journal FILE
  whether it would do the same again    replay --run ID (what if: --with NAME=VALUE)
  whether the log is what was written   verify";

/// Reads a DevMind ledger: shows what happened, proves that it holds, rebuilds its views.
///
/// Works on a ledger at rest and, unless it says otherwise, on one that a server is writing. Exit status: 0 ok, 1 refused or
/// failed, 2 usage, 3 verification failed.
#[derive(Debug, Parser)]
#[command(name = "devmind-replay", version, arg_required_else_help = true, after_help = QUESTIONS)]
pub struct Cli {
    /// The folder of the ledger
    #[arg(long, global = true, value_name = "DIR", env = "DEVMIND_DATA", default_value = "data")]
    pub(crate) data: PathBuf,
    /// The PostgreSQL database of the ledger, `postgres://…`, instead of a folder
    #[arg(long, global = true, value_name = "URL", env = "DATABASE_URL", hide_env_values = true)]
    pub(crate) database_url: Option<String>,
    /// A bundle to read instead of a ledger, with nothing but itself: `log`, `show`, `timeline`, `replay`, `reconcile`,
    /// `stats`, `prove-once`, `schema check`, `attest --at`, `export --format otlp`, `verify`
    #[arg(long = "bundle", global = true, value_name = "FILE")]
    pub(crate) from_bundle: Option<PathBuf>,
    /// Print JSON, for other programs
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print a completion script for a shell
    #[arg(long, value_name = "SHELL")]
    pub(crate) completions: Option<Shell>,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print events in the order of the log
    Log(LogArgs),
    /// Show a conversation or a tool call as it was at a position or time, or what changed between two
    Show(ShowArgs),
    /// List every tool call that is not final: why, since when, what would settle it
    Reconcile(ReconcileArgs),
    /// Run the agent loop of a run again over the recorded answers: does it decide the same?
    Replay(ReplayArgs),
    /// Tell one run, one line a fact, with durations
    Timeline(TimelineArgs),
    /// Check order, hashes, the Merkle root and the rules of the domain over the whole log
    Verify(VerifyArgs),
    /// Write a conversation, a run or everything to a file that others can check without the ledger, or runs as
    /// OpenTelemetry spans
    Export(ExportArgs),
    /// Take a whole exported ledger into an empty one, byte for byte; or a log of a cqrs-es store; or the sessions of
    /// other agents
    Import(ImportArgs),
    /// Say whether a tool call was executed once, never, or cannot be known, with the proofs
    ProveOnce(ProveOnceArgs),
    /// Print what a view's state hashes to, under which root of the log: a rebuild gives the same
    Attest(AttestArgs),
    /// Erase what an event says; the proofs hold, and an event says that it was erased
    Redact(RedactArgs),
    /// Rebuild the views from the log, or check the live ones against a rebuild
    Rebuild(RebuildArgs),
    /// Count events, bytes, growth, tool calls and tokens: what fills the log, what is slow, what is unknown
    Stats(StatsArgs),
    /// Have the log's heads cosigned by somebody else, or be that: then no history can be replaced unseen
    #[command(subcommand)]
    Witness(WitnessCommand),
    /// Ask whether this program can read what is in the log
    #[command(subcommand)]
    Schema(SchemaCommand),
    /// Show how each projection stands: version, position, lag, and what it stopped at
    Status,
    /// Help a projection that stopped at an event
    #[command(subcommand)]
    Projection(ProjectionCommand),
}

impl Command {
    /// The command on a bundle that was named otherwise.
    pub fn of_bundle(self, bundle: PathBuf) -> Self {
        match self {
            Self::Verify(args) => Self::Verify(VerifyArgs { bundle: args.bundle.or(Some(bundle)), ..args }),
            other => other,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// Only events of this conversation
    #[arg(long, value_name = "ID")]
    pub conversation: Option<String>,
    /// Only events of this run
    #[arg(long, value_name = "ID")]
    pub run: Option<String>,
    /// Only events about this tool call
    #[arg(long, value_name = "ID")]
    pub tool_call: Option<String>,
    /// Only events of this stream, for example `node/local`
    #[arg(long, value_name = "KIND/ID", value_parser = parse_stream)]
    pub stream: Option<StreamId>,
    /// Only events of this type, for example `RunSucceeded`
    #[arg(long, value_name = "TYPE")]
    pub r#type: Option<String>,
    /// Only events by this actor, for example `user:ann`
    #[arg(long, value_name = "KIND:ID", value_parser = parse_actor)]
    pub actor: Option<String>,
    /// Only events after this position
    #[arg(long, value_name = "POSITION", default_value_t = 0)]
    pub after: u64,
    /// At most this many events
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Go on with new events as they are appended
    #[arg(long)]
    pub follow: bool,
    /// As of this position or time (`2026-01-31T03:00:00Z`); else as it is now
    #[arg(long, value_name = "POSITION|TIME", conflicts_with = "follow")]
    pub at: Option<At>,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("subject").required(true))]
pub(crate) struct ShowArgs {
    /// The conversation
    #[arg(long, value_name = "ID", group = "subject")]
    pub conversation: Option<String>,
    /// The tool call
    #[arg(long, value_name = "ID", group = "subject")]
    pub tool_call: Option<String>,
    /// As of this position or time (`2026-01-31T03:00:00Z`); else as it is now
    #[arg(long, value_name = "POSITION|TIME", conflicts_with = "diff")]
    pub at: Option<At>,
    /// What changed from one position or time to another
    #[arg(long, value_names = ["A", "B"], num_args = 2)]
    pub diff: Vec<At>,
}

#[derive(Debug, Args)]
pub(crate) struct ReconcileArgs {
    /// The device's journal (`journal.sqlite` in its state folder), to join both sides
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
    /// As of this position or time; else now
    #[arg(long, value_name = "POSITION|TIME")]
    pub at: Option<At>,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true))]
pub(crate) struct ReplayArgs {
    /// The run
    #[arg(long, value_name = "ID", group = "which")]
    pub run: Option<String>,
    /// Every run
    #[arg(long, group = "which")]
    pub all: bool,
    /// What if: system=TEXT or system=@FILE, model=NAME, rounds=N, calls=N, policy=FILE (TOML with [[policies]], such
    /// as the server's settings), TOOL=allow|ask|deny; several can be given
    #[arg(long, value_name = "NAME=VALUE")]
    pub with: Vec<String>,
    /// Have a model really answer: the base address of an OpenAI-compatible endpoint, such as
    /// `http://localhost:4000/v1`; its key is MODEL_API_KEY. No tool is called: results come from the log
    #[arg(long, value_name = "URL", requires = "run", conflicts_with = "all")]
    pub ask: Option<String>,
    /// As of this position or time; else as it is now
    #[arg(long, value_name = "POSITION|TIME")]
    pub at: Option<At>,
}

#[derive(Debug, Args)]
pub(crate) struct TimelineArgs {
    /// The run
    #[arg(long, value_name = "ID")]
    pub run: String,
    /// As of this position or time (`2026-01-31T03:00:00Z`); else as it is now
    #[arg(long, value_name = "POSITION|TIME")]
    pub at: Option<At>,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// As of this position or time (`2026-01-31T03:00:00Z`); else as it is now
    #[arg(long, value_name = "POSITION|TIME")]
    pub at: Option<At>,
    /// What a model's tokens cost, for each million: MODEL=INPUT,OUTPUT or MODEL=INPUT,OUTPUT,CACHED; can be given several times
    #[arg(long, value_name = "MODEL=INPUT,OUTPUT[,CACHED]")]
    pub price: Vec<Price>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WitnessCommand {
    /// Be a witness (C2SP tlog-witness): run it where those who run the server have no say
    Serve(WitnessServeArgs),
    /// Have a witness cosign the newest checkpoint of this ledger; exit status 3 where it saw another history
    Ask(WitnessAskArgs),
}

#[derive(Debug, Args)]
pub(crate) struct WitnessServeArgs {
    /// Where it listens
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8790")]
    pub listen: SocketAddr,
    /// Its folder: the key, and the last head that it cosigned of each log
    #[arg(long, value_name = "DIR")]
    pub state: PathBuf,
    /// The name in its key, which is made at the first start
    #[arg(long, value_name = "NAME", default_value = "devmind-witness")]
    pub name: String,
    /// A log to watch, by its public key (`checkpoint.pub` in its folder); ORIGIN=KEY where the key was made under
    /// another name than the log's, which is the first line of its checkpoints; can be given several times
    #[arg(long, value_name = "[ORIGIN=]KEY", required = true, value_parser = watched_log)]
    pub log: Vec<WatchedLog>,
}

#[derive(Debug, Args)]
pub(crate) struct WitnessAskArgs {
    /// The witness's address
    #[arg(value_name = "URL")]
    pub witness: String,
    /// The witness's public key, as it prints it at its start
    #[arg(long, value_name = "KEY", value_parser = witness_key)]
    pub key: NoteKey,
    /// Ask again after so many seconds, for as long as it runs
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub every: Option<u64>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SchemaCommand {
    /// Check that every event version in the log can be read by this program, and that stored states are what their
    /// events lead to: compatible, needs an upcaster, or breaking
    Check(SchemaCheckArgs),
}

#[derive(Debug, Args)]
pub(crate) struct SchemaCheckArgs {
    /// Only events up to this position or time
    #[arg(long, value_name = "POSITION|TIME")]
    pub at: Option<At>,
}

#[derive(Debug, Args)]
pub(crate) struct RebuildArgs {
    /// Change nothing: compare the live views with rebuilt ones, row by row
    #[arg(long)]
    pub check: bool,
    /// Only this projection
    #[arg(long, value_name = "NAME")]
    pub projection: Option<String>,
    /// Do it; without this, what would be replaced is shown
    #[arg(long, conflicts_with = "check")]
    pub yes: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ProjectionCommand {
    /// Try it again from where it stands, after what made it fail was mended
    Resume(ResumeArgs),
    /// Have it pass over the event it stopped at; an event says so, and every rebuild does the same
    Skip(SkipArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ResumeArgs {
    /// The projection
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Do it; without this, what it stopped at is shown
    #[arg(long)]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SkipArgs {
    /// The projection
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The event that it stopped at
    #[arg(long, value_name = "POSITION")]
    pub position: u64,
    /// Why it may be passed over; it stays in the log for ever
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub reason: String,
    /// Who answers for it
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub operator: String,
    /// Do it; without this, what it stopped at is shown
    #[arg(long)]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// An exported bundle to check, with nothing but itself; else the ledger
    #[arg(value_name = "BUNDLE")]
    pub bundle: Option<PathBuf>,
    /// The public key that must have signed it, or its fingerprint
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// The public key of a witness that must have cosigned it; can be given several times
    #[arg(long, value_name = "KEY", value_parser = witness_key)]
    pub witness: Vec<NoteKey>,
}

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Events with their proofs, for `verify` and `import`
    Bundle,
    /// Spans, for the tools that people already have
    Otlp,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The file to write, which must not be there yet; with `--format otlp` also the `http://…` address of a collector
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// A bundle that proves itself, or runs as OpenTelemetry spans (OTLP/JSON, GenAI conventions)
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Format::Bundle)]
    pub format: Format,
    /// otlp: also what was asked, answered, called and returned; without it, spans carry no content
    #[arg(long)]
    pub content: bool,
    /// otlp: a header for the collector, such as its key; can be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_header)]
    pub header: Vec<(String, String)>,
    /// As of this position or time: of a bundle, under the newest checkpoint until then; else as it is now
    #[arg(long, value_name = "POSITION|TIME")]
    pub at: Option<At>,
    /// Under the newest checkpoint that this witness cosigned, with its cosignature; else under the newest one
    #[arg(long, value_name = "KEY", value_parser = witness_key)]
    pub witness: Option<NoteKey>,
    /// Only this conversation, with proofs; else everything
    #[arg(long, value_name = "ID", conflicts_with = "run")]
    pub conversation: Option<String>,
    /// Only this run, with proofs
    #[arg(long, value_name = "ID")]
    pub run: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The exported bundle
    #[arg(value_name = "BUNDLE", required_unless_present_any = ["from_cqrs", "from_codex", "from_claude_code"])]
    pub bundle: Option<PathBuf>,
    /// The store of an application built with sqlite-es or postgres-es: a file, or `postgres://…`
    #[arg(long, value_name = "FILE|URL", conflicts_with = "bundle")]
    pub from_cqrs: Option<String>,
    /// The table of its events, where it is not `events`
    #[arg(long, value_name = "NAME", requires = "from_cqrs")]
    pub table: Option<String>,
    /// Also take events of types that this program does not know; they are kept as they are
    #[arg(long, requires = "from_cqrs")]
    pub keep_unknown: bool,
    /// Sessions of the Codex CLI: rollout files, or folders with them such as `~/.codex/sessions`
    #[arg(long, value_name = "PATH", num_args = 1.., conflicts_with_all = ["bundle", "from_cqrs", "from_claude_code"])]
    pub from_codex: Vec<PathBuf>,
    /// Sessions of Claude Code: transcripts, or folders with them such as `~/.claude/projects`
    #[arg(long, value_name = "PATH", num_args = 1.., conflicts_with_all = ["bundle", "from_cqrs"])]
    pub from_claude_code: Vec<PathBuf>,
    /// Whose the imported sessions are
    #[arg(long, value_name = "NAME", default_value = "imported", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub user: String,
    /// Do it; without this, what would be imported is checked
    #[arg(long)]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ProveOnceArgs {
    /// The tool call
    #[arg(long, value_name = "ID")]
    pub tool_call: String,
    /// The device's journal (`journal.sqlite` in its state folder), to join both sides
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
    /// What the log had at this position or time; else now. A journal is always as it is
    #[arg(long, value_name = "POSITION|TIME")]
    pub at: Option<At>,
}

#[derive(Debug, Args)]
pub(crate) struct AttestArgs {
    /// As of this position or time, by a rebuild; else the live views as they are
    #[arg(long, value_name = "POSITION|TIME")]
    pub at: Option<At>,
    /// Only this projection
    #[arg(long, value_name = "NAME")]
    pub projection: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RedactArgs {
    /// The events; the option can be given several times
    #[arg(long, value_name = "POSITION", required = true)]
    pub position: Vec<u64>,
    /// Why; it stays in the log for ever
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub reason: String,
    /// Who answers for it
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub operator: String,
    /// Do it; without this, what would be erased is shown
    #[arg(long)]
    pub yes: bool,
}

fn parse_header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a header is given as NAME=VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

fn parse_actor(text: &str) -> Result<String, String> {
    match text.split_once(':') {
        Some((kind, id)) if !kind.is_empty() && !id.is_empty() => Ok(text.to_owned()),
        Some(_) | None => Err("an actor is named KIND:ID, for example user:ann".to_owned()),
    }
}

fn parse_stream(text: &str) -> Result<StreamId, String> {
    match text.split_once('/') {
        Some((kind, id)) if !kind.is_empty() && !id.is_empty() => {
            Ok(StreamId { aggregate_type: kind.to_owned(), aggregate_id: id.to_owned() })
        }
        Some(_) | None => Err("a stream is named KIND/ID, for example node/local".to_owned()),
    }
}

/// What a million tokens of a model cost.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Price {
    pub model: String,
    input: f64,
    output: f64,
    cached: f64,
}

impl Price {
    const TOKENS: f64 = 1_000_000.0;

    /// What so many tokens cost; the cached ones are among those of the input.
    #[allow(clippy::cast_precision_loss, reason = "a sum of money, not a count")]
    pub fn of(&self, input: u64, output: u64, cached: u64) -> f64 {
        let fresh = input.saturating_sub(cached);
        (fresh as f64 * self.input + cached as f64 * self.cached + output as f64 * self.output) / Self::TOKENS
    }
}

impl std::str::FromStr for Price {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not MODEL=INPUT,OUTPUT or MODEL=INPUT,OUTPUT,CACHED");
        let (model, prices) = text.rsplit_once('=').ok_or_else(wrong)?;
        let prices: Result<Vec<f64>, _> = prices.split(',').map(str::trim).map(str::parse).collect();
        let prices = prices.map_err(|_| wrong())?;
        if model.is_empty() || prices.iter().any(|price| !price.is_finite() || *price < 0.0) {
            return Err(wrong());
        }
        let (input, output, cached) = match prices[..] {
            [input, output] => (input, output, input),
            [input, output, cached] => (input, output, cached),
            _ => return Err(wrong()),
        };
        Ok(Self { model: model.to_owned(), input, output, cached })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_is_for_a_million_tokens_and_cached_ones_are_part_of_the_input() {
        let price: Price = "m=2,10,0.5".parse().expect("a price");
        let cost = price.of(1_000_000, 500_000, 400_000);
        assert!((cost - (0.6 * 2.0 + 0.4 * 0.5 + 0.5 * 10.0)).abs() < 1e-9, "{cost}");
        for wrong in ["m", "m=1", "=1,2", "m=1,x", "m=1,-2", "m=1,2,3,4", "m=inf,1"] {
            assert!(wrong.parse::<Price>().is_err(), "{wrong}");
        }
    }
}
