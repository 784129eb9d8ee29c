//! `timeline`: one run, one line a fact.

use crate::Verdict;
use crate::cli::TimelineArgs;
use crate::failure::Failure;
use crate::output::{Output, say, unread_json};
use crate::store::Source;
use devmind_domain::ErrorCode;
use devmind_domain::ids::RunId;
use devmind_projections::{Unread, timeline_of_run_at};
use serde_json::json;

pub(crate) async fn run(data: &Source, args: TimelineArgs, output: &mut Output) -> Result<Verdict, Failure> {
    let reader = data.open_ledger().await?;
    let position = data.position(&reader, args.at).await?;
    let run_id = RunId::from(args.run);
    let lines = timeline_of_run_at(&reader, &run_id, position).await?;
    if lines.is_empty() {
        let message = format!("the log knows no run {run_id} up to position {position}");
        return Err(Failure::new(ErrorCode::RunNotFound, message)
            .with_hint("`devmind-replay log --type RunPrepared` lists the runs"));
    }
    if output.is_json() {
        output.json(&json!({ "run_id": run_id, "position": position, "lines": lines, "unread": unread_json(&Unread::default(), data) }))?;
    } else {
        for line in &lines {
            output.line(line)?;
        }
        output.finish()?;
        say(format_args!("read at position {position}"));
    }
    let undecodable = lines.iter().filter(|line| line.undecodable).count();
    if undecodable == 0 {
        return Ok(Verdict::Holds);
    }
    say(format_args!("{undecodable} events could not be decoded"));
    Ok(Verdict::Incomplete)
}
