//! How the process stands: log, views, devices, and the tool calls whose outcome nobody knows yet.

use super::audit::parts::{history_link, run_link};
use super::components::{Tone, chip, empty, facts, status, time};
use super::error::PageResult;
use super::layout::{Page, Section};
use super::{Viewer, text, utf8_percent};
use crate::error::ApiError;
use crate::http::access::{Subject, record};
use crate::mcp;
use crate::state::App;
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use devmind_domain::ids::UserId;
use devmind_projections::{DeviceRow, ProjectionStatus, ToolCallRow};
use maud::{Markup, html};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Calls listed, at most.
const MAX_CALLS: usize = 100;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/operations", get(show))
}

async fn show(State(app): State<Arc<App>>, viewer: Viewer) -> PageResult {
    let caller = &viewer.caller;
    let all = caller.role.reads_all();
    let head = app.ledger.reader().head().await.map_err(ApiError::from)?;
    let signed = app.checkpoints.newest_size().await;
    let views = app.views.status().await?;
    let devices = if all { app.views.all_devices().await? } else { app.views.devices(&caller.user_id).await? };
    let unsettled = app.views.unsettled_tool_calls().await?;
    let mut calls: Vec<ToolCallRow> =
        unsettled.into_iter().filter(|call| all || call.user_id == caller.user_id).collect();
    // First what nobody knows, then what is under way.
    calls.sort_by_key(|call| !matches!(call.status.as_str(), "unknown" | "timed_out"));
    let more = calls.len().saturating_sub(MAX_CALLS);
    calls.truncate(MAX_CALLS);
    let mut read: BTreeSet<_> =
        devices.iter().map(|device| Subject::Device(device.user_id.clone(), device.device_id.clone())).collect();
    read.extend(
        calls
            .iter()
            .filter(|call| call.user_id != caller.user_id)
            .map(|call| Subject::Conversation(call.conversation_id.clone())),
    );
    record(&app, caller, read, "operations").await?;
    let content = html! {
        h1 { "Operations" }
        (health(&app, &views))
        (facts(&[
            ("Log", html! { a href="/log" { (head.position) " events" } ", " (signed) " of them under a signed checkpoint" }),
            ("Root", html! { code.id { (hex::encode(head.root)) } }),
            ("Server process", html! { (text::inline(app.claim.node_id.as_str())) ", start " (app.claim.epoch) ", version " (env!("CARGO_PKG_VERSION")) }),
            ("Runs under way here", html! { (app.run_tasks.len()) }),
        ]))
        div.buttons { a.button.quiet href="/verify" { "Verify the log" } a.button.quiet href="/readyz" { "Readiness as JSON" } a.button.quiet href="/metrics" { "Metrics" } }
        h2 { "Views" }
        (projections(&views))
        @let servers = app.mcp.status();
        @if !servers.is_empty() {
            h2 { "MCP servers" }
            (servers_table(&servers, all))
        }
        h2 { @if all { "Devices" } @else { "Your devices" } }
        (devices_table(&devices, all, &caller.user_id))
        h2 { @if all { "Calls without a final outcome" } @else { "Your calls without a final outcome" } }
        (calls_list(&calls, more))
    };
    Ok(Page::new("Operations", Section::Operations).style("audit.css").script("audit.js").show(&viewer, content))
}

fn health(app: &App, views: &[ProjectionStatus]) -> Markup {
    let stopped: Vec<&str> = views.iter().filter(|view| view.failed.is_some()).map(|view| view.name.as_str()).collect();
    html! {
        @if !app.ledger.is_open() {
            div.card.bad role="alert" { p { (chip(Tone::Bad, "the log takes nothing more")) " Restart the server." } }
        } @else if !stopped.is_empty() {
            div.card.bad role="alert" { p { (chip(Tone::Bad, "a view has stopped")) " " (stopped.join(", ")) ": see below. The log goes on, and so does every other view." } }
        } @else {
            div.card.good { p { (chip(Tone::Good, "working")) " The log is open, and every view goes on." } }
        }
    }
}

fn projections(views: &[ProjectionStatus]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Views" {
            table {
                thead { tr { th scope="col" { "View" } th scope="col" { "State" } th.number scope="col" { "Position" } th.number scope="col" { "Behind" } th.number scope="col" { "Version" } } }
                tbody { @for view in views {
                    tr {
                        th scope="row" { (view.name) }
                        td {
                            @if let Some(failure) = &view.failed {
                                (chip(Tone::Bad, if failure.halted { "stopped" } else { "failing" })) " at "
                                a href=(format!("/log/{}", failure.position)) { "event " (failure.position) } ": " (text::cut(&failure.reason, 300))
                                p.hint { code { "devmind-replay projection resume " (view.name) " --yes" } " after the fault is mended" }
                            }
                            @else if view.version != view.program_version { (chip(Tone::Busy, "being rebuilt")) }
                            @else if view.lag > 0 { (chip(Tone::Busy, "catching up")) }
                            @else { (chip(Tone::Good, "up to date")) }
                        }
                        td.number { (view.position) } td.number { (view.lag) } td.number { (view.version) }
                    }
                } }
            }
        }
    }
}

/// What a server says of itself is for operators alone.
fn servers_table(servers: &[mcp::Status], all: bool) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="MCP servers" {
            table {
                thead { tr { th scope="col" { "Server" } th scope="col" { "State" } th scope="col" { "Tools" } th.number scope="col" { "Left out" } } }
                tbody { @for server in servers {
                    tr {
                        th scope="row" { (text::inline(&server.name)) " " span.hint { (server.transport) } }
                        td {
                            (chip(match server.state { "connected" => Tone::Good, "starting" => Tone::Busy, _ => Tone::Bad }, server.state))
                            @if let Some(reason) = server.reason.as_ref().filter(|_| all) { " " (text::cut(reason, 300)) }
                        }
                        td {
                            (server.tools.len())
                            @if !server.tools.is_empty() { details { summary { "names" } ul { @for tool in &server.tools { li { code { (text::inline(tool)) } } } } } }
                        }
                        td.number {
                            (server.left_out)
                            @if all && server.left_out > 0 { details { summary { "why" } ul { @for (tool, reason) in &server.why_left_out { li { code { (text::inline(tool)) } ": " (text::cut(reason, 300)) } } } } }
                        }
                    }
                } }
            }
        }
    }
}

/// What a computer and its workspace are called is for their own user to see.
fn devices_table(devices: &[DeviceRow], owners: bool, viewer: &UserId) -> Markup {
    if devices.is_empty() {
        return empty(
            "No device has connected",
            html! { "Start " code { "devmind-device --workspace DIR" } " on the computer with the files." },
        );
    }
    html! {
        div.scroll tabindex="0" role="region" aria-label="Devices" {
            table {
                thead { tr { th scope="col" { "Device" } @if owners { th scope="col" { "Owner" } } th scope="col" { "State" } th scope="col" { "Last seen" } th.number scope="col" { "Tools" } } }
                tbody { @for device in devices {
                    tr {
                        th scope="row" { a href=(format!("/log?stream={}", utf8_percent(&format!("device/{}/{}", device.user_id, device.device_id)))) { (text::inline(device.device_id.as_str())) }
                            @if device.user_id == *viewer {
                                @for (what, name) in [("workspace", &device.workspace), ("computer", &device.computer)] {
                                    @if let Some(name) = name { " " span.hint { (what) " " (text::inline(name)) } }
                                }
                            }
                        }
                        @if owners { td { (text::inline(device.user_id.as_str())) } }
                        td {
                            @if device.online { (chip(Tone::Good, "connected")) }
                            @else { (chip(Tone::Quiet, "away")) @if let Some(reason) = &device.close_reason { " " (text::cut(reason, 120)) } }
                        }
                        td { (time(device.last_seen)) }
                        td.number { (device.tools.len()) }
                    }
                } }
            }
        }
    }
}

fn calls_list(calls: &[ToolCallRow], more: usize) -> Markup {
    if calls.is_empty() {
        return empty(
            "Every call has a final outcome",
            html! { "A call that was sent and not answered would stand here, with what is known of it." },
        );
    }
    html! {
        ul.rows { @for call in calls { li {
            (status(&call.status)) " "
            a href=(format!("/log?tool_call_id={}", utf8_percent(call.tool_call_id.as_str()))) { (text::inline(&call.tool)) } " " (text::inline(&call.summary))
            @if let Some(code) = &call.error_code { " " code { (text::inline(code)) } }
            p.hint { "asked " (time(call.requested_at)) " by " (text::inline(call.user_id.as_str())) " · " a href=(history_link(call.conversation_id.as_str())) { "conversation" } " · " a href=(run_link(call.run_id.as_str())) { "timeline" } }
        } } }
        @if more > 0 { p.hint { "And " (more) " more: " code { "devmind-replay reconcile" } " lists all." } }
    }
}
