//! What the ledger says about the demo's run: timeline, views, and whether all of it holds.

use super::client::{Asked, Ended};
use super::failed;
use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::lifecycle::StartError;
use crate::state::App;
use devmind_ledger::verify::{Published, verify};
use devmind_projections::{ToolCallQuery, TurnRow};
use std::net::SocketAddr;
use std::path::Path;

/// Says what runs where.
pub(super) fn banner(config: &ServerConfig, workspace: &Path, kept: bool, address: SocketAddr) {
    crate::say!("DevMind Ledger demo\n");
    match &config.model {
        Some(model) => crate::say!("  model      {} at {}", model.name, model.base_url()),
        None => crate::say!(
            "  model      the built-in demo model, not a language model; MODEL_BASE_URL, MODEL_NAME and\n             MODEL_API_KEY (an OpenAI-compatible endpoint) give you a real one"
        ),
    }
    crate::say!("  workspace  {}", workspace.display());
    let fate = if kept { "" } else { " (removed at the end; --data DIR keeps it)" };
    crate::say!("  ledger     {}{fate}", config.data.display());
    crate::say!("  server     http://{address}");
}

/// Prints what the ledger says and checks it; true if all of it holds.
pub(super) async fn show(app: &App, runs: &[Asked], ended: &Ended) -> Result<bool, StartError> {
    let position = app.caught_up(&["conversation", "tool_call", "device"]).await?;
    for asked in runs {
        heading(&format!("Timeline of run {} (ledger position {position})", asked.run_id));
        for line in devmind_projections::timeline_of_run(app.ledger.reader(), &asked.run_id).await.map_err(api)? {
            crate::say!("{line}");
        }
    }
    let Some(asked) = runs.first() else { return Ok(false) };

    heading("Conversation view");
    let turns = app.views.turns(&asked.conversation_id).await.map_err(api)?;
    turns.iter().for_each(show_turn);

    heading("Tool call view");
    let calls = app.views.tool_calls(ToolCallQuery::Conversation(asked.conversation_id.clone())).await.map_err(api)?;
    for call in &calls {
        let reason = call.error_code.as_deref().map(|code| format!(" {code}")).unwrap_or_default();
        let attempts = call.attempts.len();
        // A call in the server has nobody to acknowledge to.
        let acks = if call.device_id.is_some() { format!(", acknowledged {}", call.acks) } else { String::new() };
        crate::say!("  {:<24} {:<13}{reason}  attempts {attempts}{acks}", call.tool, call.status);
        crate::say!("  {:<24} {}", "", call.arguments);
    }
    if calls.is_empty() {
        crate::say!("  (no tool was called)");
    }

    heading("Checks");
    let succeeded = ended.last["type"] == "RUN_FINISHED" && turns.last().is_some_and(|turn| turn.status == "completed");
    let mut held = check(succeeded, "the run ended with an answer");
    held &= check_log(app).await?;
    held &= check_views(app).await?;
    Ok(held)
}

async fn check_log(app: &App) -> Result<bool, StartError> {
    let report = verify(app.ledger.reader(), Published::default(), |_, _| {})
        .await
        .map_err(|error| failed(error.code(), error))?;
    for finding in &report.findings {
        crate::say!("    {finding}");
    }
    let what = format!(
        "the log verifies: {} events, gapless order, every hash, Merkle root {}",
        report.position,
        hex::encode(report.root)
    );
    Ok(check(report.is_sound(), &what))
}

async fn check_views(app: &App) -> Result<bool, StartError> {
    let report = devmind_projections::check(&app.views_place, app.ledger.reader(), |_, _| {}).await.map_err(api)?;
    let mut all = true;
    for projection in &report.projections {
        let rows: u64 = projection.tables.iter().map(|table| table.rows).sum();
        for table in projection.tables.iter().filter(|table| table.differences > 0) {
            crate::say!("    {} differs in {} rows", table.table, table.differences);
        }
        let what = format!("view {} rebuilt from the log equals the live one: {rows} rows", projection.name);
        all &= check(projection.is_equal(), &what);
    }
    Ok(all)
}

fn check(held: bool, what: &str) -> bool {
    crate::say!("  {} {what}", if held { "ok    " } else { "FAILED" });
    held
}

fn heading(text: &str) {
    crate::say!("\n── {text}");
}

fn show_turn(turn: &TurnRow) {
    crate::say!(
        "  turn {}     {}{}",
        turn.sequence_no,
        turn.status,
        if turn.partial { ", partial answer" } else { "" }
    );
    crate::say!("  question   {}", turn.question);
    for (line, label) in
        turn.answer.iter().flat_map(|answer| answer.lines()).zip(["answer"].into_iter().chain(std::iter::repeat("")))
    {
        crate::say!("  {label:<10} {line}");
    }
    if let (Some(code), Some(message)) = (&turn.error_code, &turn.error_message) {
        crate::say!("  error      {code}: {message}");
    }
    for call in &turn.tool_calls {
        let code = call.error_code.as_deref().map(|code| format!(" ({code})")).unwrap_or_default();
        crate::say!("  tool call  {} {}: {}{code}", call.tool, call.summary, call.status);
    }
}

fn api(error: impl Into<ApiError>) -> StartError {
    let error: ApiError = error.into();
    failed(error.code, error.message)
}
