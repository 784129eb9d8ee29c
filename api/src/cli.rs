//! The command line: data on stdout, everything else on stderr; exit 0 ok, 1 refused or failed,
//! 2 usage.

use crate::config::{DEFAULT_FILE, DatabaseUrl, Flags, ServerConfig};
use crate::ids::new_secret;
use crate::lifecycle::{Server, StartError};
use crate::{demo, identity};
use clap::{Args, Parser, Subcommand};
use devmind_domain::ErrorCode;
use devmind_domain::canonical::sha256_hex;
use devmind_domain::event::Role;
use devmind_ledger::Place;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// DevMind Ledger: an agent server whose every state change is an appended, verifiable event.
#[derive(Debug, Parser)]
#[command(name = "devmind", version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve (the default).
    Serve(ServeArgs),
    /// Ask one question in one process with a server, a device and an agent, then show and check
    /// what the ledger says about it.
    Demo(demo::DemoArgs),
    /// Make a bearer token for a user: the token and the lines for the configuration file.
    Token {
        /// The user's name.
        #[arg(long)]
        user: String,
        /// What they may do: `user`, `auditor` (reads everything, changes nothing) or `operator` (reads
        /// everything, changes what is theirs)
        #[arg(long, default_value = "user", value_parser = parse_role)]
        role: Role,
    },
    /// Print the description of the HTTP API (OpenAPI 3.1).
    Openapi,
    /// Run one program of a model over stdin and stdout: what the server starts in code mode.
    #[command(hide = true)]
    Program,
}

#[derive(Args, Clone, Debug, Default)]
struct ServeArgs {
    /// Where to listen, IP:PORT [default: 127.0.0.1:8787] [env: DEVMIND_LISTEN]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// The folder of the ledger [default: data] [env: DEVMIND_DATA]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Keep ledger and views in this PostgreSQL database, `postgres://…`, instead of the folder
    /// [env: DATABASE_URL]
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
    /// Also use a database whose settings let acknowledged events be lost [env: DEVMIND_ACCEPT_DATA_LOSS]
    #[arg(long)]
    accept_data_loss: bool,
    /// This process's name in the ledger; two processes on one database never share one [default: local, with
    /// a database one that is made at the first start] [env: DEVMIND_NODE_ID]
    #[arg(long, value_name = "NAME")]
    node_id: Option<String>,
    /// A configuration file [default: devmind.toml, when it is there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Runs the program.
pub fn run(cli: Cli) -> ExitCode {
    if matches!(cli.command, Some(Command::Program)) {
        // Before any file is read: it can be started by nobody but a server, and has nothing of the server's.
        return devmind_code_mode::serve().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    // Settings of a `.env` count as environment; a missing file is no fault.
    if let Err(error) = dotenvy::dotenv()
        && !error.not_found()
    {
        return fail(
            ErrorCode::ConfigInvalid,
            &format!("the .env file cannot be read: {error}"),
            Some("correct it, or remove it"),
        );
    }
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| {
        EnvFilter::new(if matches!(cli.command, Some(Command::Demo(_))) { "warn" } else { "info" })
    });
    // These clients log what others say as it came; an endpoint may repeat a key there.
    let quiet = ["async_openai=off", "rmcp=off"].iter().filter_map(|directive| directive.parse().ok());
    let filter = quiet.fold(filter, EnvFilter::add_directive);
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        // A log that cannot be written must not end the program that writes it.
        .log_internal_errors(false)
        .init();
    let runtime = match crate::runtime() {
        Ok(runtime) => runtime,
        Err(error) => return fail(ErrorCode::Internal, &error.to_string(), None),
    };
    let done = match cli.command {
        None => runtime.block_on(serve(cli.serve)),
        Some(Command::Serve(args)) => runtime.block_on(serve(args)),
        Some(Command::Demo(args)) => runtime.block_on(demo::run(args)),
        Some(Command::Token { user, role }) => token(&user, role),
        Some(Command::Openapi) => openapi(),
        Some(Command::Program) => Ok(ExitCode::SUCCESS),
    };
    // A confirmation may still block on the terminal: the process must not wait for it.
    runtime.shutdown_background();
    match done {
        Ok(code) => code,
        Err(error) => fail(error.code, &error.message, error.hint.as_deref()),
    }
}

fn fail(code: ErrorCode, message: &str, hint: Option<&str>) -> ExitCode {
    crate::note!("error[{code}]: {message}");
    crate::note!("hint: {}", hint.unwrap_or(code.help()));
    ExitCode::FAILURE
}

async fn serve(args: ServeArgs) -> Result<ExitCode, StartError> {
    let flags = Flags {
        listen: args.listen,
        data: args.data,
        database_url: args.database_url.map(DatabaseUrl),
        accept_data_loss: args.accept_data_loss.then_some(true),
        node_id: args.node_id,
    };
    let config = ServerConfig::load(args.config.as_deref(), &flags)?;
    tracing::debug!(?config, "settings");
    let stop = stop_signal()?;
    let server = Server::open(&config).await?;
    crate::say!("listening on http://{}", server.address());
    match &config.model {
        Some(model) => crate::note!("model: {} at {}", model.name, model.base_url()),
        None => {
            crate::note!(
                "model: the built-in demo model (set MODEL_BASE_URL, MODEL_NAME, MODEL_API_KEY for a real one)"
            )
        }
    }
    match config.places()?.0 {
        Place::File(_) => crate::note!("ledger: {}", config.data.display()),
        Place::Postgres(url) => crate::note!("ledger: {url}"),
    }
    if config.identities().development {
        crate::note!("development mode: X-Dev-User names the user (X-Dev-Role the role), on this machine only");
    }
    server.serve(stop).await?;
    crate::note!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Cancelled on Ctrl-C and SIGTERM, also on one that comes right after this call: until a signal is
/// taken over, it kills the process.
fn stop_signal() -> Result<CancellationToken, StartError> {
    let signal = first_signal().map_err(|error| StartError::new(ErrorCode::Internal, error.to_string()))?;
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        signal.await;
        crate::note!("stopping");
        token.cancel();
    });
    Ok(stop)
}

#[cfg(unix)]
pub(crate) fn first_signal() -> std::io::Result<impl Future<Output = ()> + Send> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

#[cfg(not(unix))]
pub(crate) fn first_signal() -> std::io::Result<impl Future<Output = ()> + Send> {
    Ok(async { drop(tokio::signal::ctrl_c().await) })
}

fn parse_role(name: &str) -> Result<Role, String> {
    identity::role_of(name).ok_or_else(|| "must be user, auditor or operator".to_owned())
}

fn openapi() -> Result<ExitCode, StartError> {
    let text = serde_json::to_string_pretty(&crate::http::description());
    crate::say!("{}", text.map_err(|error| StartError::new(ErrorCode::Internal, error.to_string()))?);
    Ok(ExitCode::SUCCESS)
}

fn token(user: &str, role: Role) -> Result<ExitCode, StartError> {
    if !identity::is_user_name(user) {
        let message = format!("{user:?}: a user's name has 1-64 letters, digits, . _ @ -");
        return Err(StartError::new(ErrorCode::ConfigInvalid, message));
    }
    let token = new_secret().map_err(|error| StartError::new(ErrorCode::Internal, error.to_string()))?;
    crate::say!("{token}");
    crate::note!("Give the line above to {user}; it is shown once. Put these lines into {DEFAULT_FILE}:\n");
    let hash = sha256_hex(token.as_bytes());
    crate::note!("[[users]]\nname = \"{user}\"\nrole = \"{}\"\ntoken_sha256 = \"{hash}\"", role.as_str());
    Ok(ExitCode::SUCCESS)
}
