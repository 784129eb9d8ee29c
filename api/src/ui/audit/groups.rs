//! A run's facts folded into what a person would call one thing: a round of the model, a tool call, an approval.
//! Pure: a function of the timeline's lines.

use devmind_projections::TimelineLine;
use std::collections::HashMap;

/// What a group is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The question, and the run's own life.
    Run,
    /// A round of the model.
    Model,
    /// A tool call.
    Call,
    /// A decision of a person.
    Approval,
    /// The device or the server process.
    Machine,
}

impl Kind {
    pub const fn words(self) -> &'static str {
        match self {
            Self::Run => "Run",
            Self::Model => "Model",
            Self::Call => "Tool call",
            Self::Approval => "Approval",
            Self::Machine => "Connection",
        }
    }

    /// What a line is about.
    pub fn of(line: &TimelineLine) -> Self {
        match (line.stream.split('/').next().unwrap_or_default(), line.event_type.as_str()) {
            ("tool_call", _) | (_, "ToolResultObserved" | "ContextDeferred" | "TurnConcluded") => Self::Call,
            // The journal begins with the run.
            ("thread", "ThreadStarted") => Self::Run,
            ("thread", _) => Self::Model,
            (_, "InterruptRaised" | "InterruptResolved" | "InterruptCancelled" | "InterruptExpired") => Self::Approval,
            (_, "ToolGrantGiven" | "ToolGrantRevoked") => Self::Approval,
            ("conversation", _) => Self::Run,
            _ => Self::Machine,
        }
    }
}

/// Lines that belong together, in order.
#[derive(Debug)]
pub struct Group<'a> {
    pub kind: Kind,
    /// The tool call, where it is one.
    pub call: Option<&'a str>,
    pub lines: Vec<&'a TimelineLine>,
}

impl Group<'_> {
    /// From its first fact to its last (milliseconds).
    pub fn took_ms(&self) -> i64 {
        match (self.lines.first(), self.lines.last()) {
            (Some(first), Some(last)) => last.offset_ms - first.offset_ms,
            _ => 0,
        }
    }
}

/// The groups, each where its first line stands. A tool call is one group, however it is interleaved with others;
/// a round of the model ends where the next begins; everything else is a group as long as nothing else comes between.
pub fn groups(lines: &[TimelineLine]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut calls: HashMap<&str, usize> = HashMap::new();
    for line in lines {
        let kind = Kind::of(line);
        let call = call_of(line);
        let known = call.and_then(|call| calls.get(call).copied());
        // A new round is a group of its own, also right after another.
        let goes_on = line.event_type != "ModelRequested" && call.is_none();
        let last = groups
            .len()
            .checked_sub(1)
            .filter(|last| goes_on && groups[*last].kind == kind && groups[*last].call.is_none());
        match known.or(last) {
            Some(at) => groups[at].lines.push(line),
            None => {
                if let Some(call) = call {
                    calls.insert(call, groups.len());
                }
                groups.push(Group { kind, call, lines: vec![line] });
            }
        }
    }
    groups
}

fn call_of(line: &TimelineLine) -> Option<&str> {
    let observed = || line.ended.as_deref()?.strip_prefix("call ");
    line.stream.strip_prefix("tool_call/").or_else(observed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use devmind_domain::Timestamp;

    fn line(position: u64, stream: &str, event_type: &str) -> TimelineLine {
        TimelineLine {
            position,
            recorded_at: Timestamp::from_micros(0),
            offset_ms: i64::try_from(position).expect("small"),
            duration_ms: None,
            ended: None,
            actor: "server:n".to_owned(),
            event_type: event_type.to_owned(),
            stream: stream.to_owned(),
            text: String::new(),
            undecodable: false,
        }
    }

    #[test]
    fn calls_that_run_side_by_side_are_one_group_each_and_every_round_is_one() {
        let lines = [
            line(1, "conversation/c", "TurnPrepared"),
            line(2, "conversation/c", "RunPrepared"),
            line(3, "thread/t", "ModelRequested"),
            line(4, "thread/t", "ModelResponded"),
            line(5, "tool_call/t:a", "ToolCallRequested"),
            line(6, "tool_call/t:b", "ToolCallRequested"),
            line(7, "tool_call/t:a", "ToolResultRecorded"),
            line(8, "conversation/c", "InterruptRaised"),
            line(9, "tool_call/t:b", "ToolResultRecorded"),
            TimelineLine { ended: Some("call t:b".to_owned()), ..line(13, "thread/t", "ToolResultObserved") },
            line(10, "thread/t", "ModelRequested"),
            line(11, "thread/t", "ModelFailed"),
            line(12, "thread/t", "ModelRequested"),
        ];
        let told: Vec<_> = groups(&lines)
            .iter()
            .map(|group| (group.kind, group.lines.iter().map(|line| line.position).collect::<Vec<_>>()))
            .collect();
        let expected = vec![
            (Kind::Run, vec![1, 2]),
            (Kind::Model, vec![3, 4]),
            (Kind::Call, vec![5, 7]),
            (Kind::Call, vec![6, 9, 13]),
            (Kind::Approval, vec![8]),
            (Kind::Model, vec![10, 11]),
            (Kind::Model, vec![12]),
        ];
        assert_eq!(told, expected);
    }
}
