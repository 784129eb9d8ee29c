//! The tools that run in the server: pure functions of their arguments and the time.

use super::ToolOutcome;
use crate::ErrorCode;
use crate::json::MAX_SAFE_INTEGER;
use crate::time::Timestamp;
use jiff::tz::TimeZoneDatabase;
use serde_json::{Value, json};

/// Runs a server tool on validated arguments.
pub fn execute(tool: &str, arguments: &Value, now: Timestamp) -> ToolOutcome {
    match tool {
        "add" => add(arguments),
        "demo_text" => ToolOutcome::success(json!({ "text": DEMO_TEXT })),
        "get_current_time" => get_current_time(arguments, now),
        other => ToolOutcome::failure(ErrorCode::UnknownTool, format!("{other} does not run in the server")),
    }
}

/// What `demo_text` gives.
const DEMO_TEXT: &str = "Facts first, effects later: what is not in the log did not happen.";

fn add(arguments: &Value) -> ToolOutcome {
    let number = |name: &str| arguments.get(name).and_then(Value::as_f64);
    if let (Some(a), Some(b)) = (arguments["a"].as_i64(), arguments["b"].as_i64()) {
        return match a.checked_add(b).filter(|sum| sum.unsigned_abs() <= MAX_SAFE_INTEGER) {
            Some(sum) => ToolOutcome::success(json!({ "sum": sum })),
            // The ledger would record another number than the model was told.
            None => ToolOutcome::failure(ErrorCode::ExecutionFailed, "the sum is beyond 2^53 - 1 and not exact"),
        };
    }
    match (number("a"), number("b")) {
        (Some(a), Some(b)) if (a + b).is_finite() => ToolOutcome::success(json!({ "sum": a + b })),
        _ => ToolOutcome::failure(ErrorCode::ExecutionFailed, "the sum is not a finite number"),
    }
}

fn get_current_time(arguments: &Value, now: Timestamp) -> ToolOutcome {
    let name = arguments.get("timezone").and_then(Value::as_str).unwrap_or("UTC");
    // The bundled database: the machine's own would be I/O, and another answer on another machine.
    let Ok(zone) = TimeZoneDatabase::bundled().get(name) else {
        return ToolOutcome::failure(
            ErrorCode::InvalidArguments,
            format!("no time zone {name:?}; use an IANA name such as Europe/Berlin"),
        );
    };
    let Ok(moment) = jiff::Timestamp::from_microsecond(now.as_micros()) else {
        return ToolOutcome::failure(ErrorCode::ExecutionFailed, "the server's clock is out of range");
    };
    let local = moment.to_zoned(zone);
    ToolOutcome::success(json!({ "time": local.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(), "timezone": name }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_tool_of_the_catalogue_has_a_body() {
        for definition in
            crate::tools::catalogue().definitions().filter(|d| d.target == crate::tool_call::Target::Server)
        {
            let outcome = execute(&definition.name, &json!({}), Timestamp::default());
            assert_ne!(outcome.error_code().as_deref(), Some("UNKNOWN_TOOL"), "{}", definition.name);
        }
    }

    #[test]
    fn sums_and_times_are_right() {
        let sum = |a: Value, b: Value| execute("add", &json!({"a": a, "b": b}), Timestamp::default()).result;
        assert_eq!(sum(json!(2), json!(3)), Ok(json!({"sum": 5})));
        assert_eq!(sum(json!(0.5), json!(1)), Ok(json!({"sum": 1.5})));
        assert!(sum(json!(f64::MAX), json!(f64::MAX)).is_err());
        assert_eq!(sum(json!(-2), json!(2)), Ok(json!({"sum": 0})));
        assert_eq!(sum(json!(9_007_199_254_740_990_i64), json!(1)), Ok(json!({"sum": 9_007_199_254_740_991_i64})));
        for inexact in [9_007_199_254_740_991_i64, -9_007_199_254_740_991, i64::MAX, i64::MIN] {
            assert!(sum(json!(inexact), json!(inexact.signum())).is_err(), "{inexact}");
        }
        let now = Timestamp::from_micros(1_790_000_000_000_000);
        let time =
            |zone: &str| execute("get_current_time", &json!({"timezone": zone}), now).result.map(|v| v["time"].clone());
        assert_eq!(time("UTC"), Ok(json!("2026-09-21T14:13:20+00:00")));
        assert_eq!(time("Europe/Berlin"), Ok(json!("2026-09-21T16:13:20+02:00")));
        assert!(time("Mars/Olympus").is_err());
    }
}
