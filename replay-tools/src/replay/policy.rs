//! Recorded calls before other rules: the first one about which they decide otherwise.
//!
//! Rules are judged as the server judges them: the first word about a call, then grants, then the tool itself
//! ([`devmind_domain::tools::judge`]). Calls of a program are calls like all others. What was refused before any policy
//! was heard is refused by no rule, and a person's answer is no decision of a rule.

use super::Difference;
use super::ports::{Halt, RecordedCall};
use super::record::{Record, readable};
use devmind_domain::ErrorCode;
use devmind_domain::conversation::Grant;
use devmind_domain::ids::{RunId, ToolCallId};
use devmind_domain::tool_call::{Decision, ToolCallEvent, ToolCallRequested};
use devmind_domain::tools::{BY_ABSENCE, PolicyCall, Registry, Rules, Verdict, judge};
use devmind_ledger::{EventFilter, LedgerReader, MAX_PAGE_EVENTS};

/// How many calls of a run are judged in the same way, and the first that is not.
pub(super) async fn judged(
    reader: &LedgerReader,
    record: &Record,
    tools: &Registry,
    run_id: &RunId,
    rules: &Rules,
) -> Result<(u32, Option<Difference>), Halt> {
    let filter = EventFilter {
        run_id: Some(run_id.clone()),
        event_type: Some("ToolCallRequested".to_owned()),
        ..EventFilter::default()
    };
    let (mut same, mut after) = (0, 0);
    loop {
        let page = reader.query(&filter, after, MAX_PAGE_EVENTS).await?;
        let Some(last) = page.last() else { return Ok((same, None)) };
        after = last.position;
        for event in page.iter().filter(|event| event.position < record.until()) {
            for fact in readable::<ToolCallEvent>(event).map_err(Halt::Unreadable)? {
                let ToolCallEvent::ToolCallRequested(request) = fact else { continue };
                let id = ToolCallId::from(event.stream.aggregate_id.as_str());
                let recorded = RecordedCall::read(reader, &id, record.until()).await?;
                let grants = record.grants_at(event.position);
                match difference(grants, tools, rules, &request, (event.position, &id), &recorded)? {
                    None => same += 1,
                    Some(difference) => return Ok((same, Some(difference))),
                }
            }
        }
    }
}

/// `grants` are those that counted when the call was asked for.
fn difference(
    grants: &[Grant],
    tools: &Registry,
    rules: &Rules,
    request: &ToolCallRequested,
    (position, id): (u64, &ToolCallId),
    recorded: &RecordedCall,
) -> Result<Option<Difference>, Halt> {
    recorded.check_known(tools)?;
    let Some(definition) = tools.get(&request.tool).filter(|_| !recorded.was_refused_unheard()) else {
        return Ok(None);
    };
    let (at, was) = match recorded.verdict() {
        Some(found) => found,
        None => (position, Verdict::of_tool(definition.approval)),
    };
    // A question that is not recorded was never asked: the run ended before anybody decided anything.
    if recorded.verdict().is_none() && was.decision == Decision::Ask {
        return Ok(None);
    }
    let call = PolicyCall::of(definition, request);
    let now = judge(rules, grants, &call, was.by != BY_ABSENCE);
    // A permission that was taken back after it had counted is no word of a rule.
    let revoked = was.by.starts_with("grant:") && was.code == ErrorCode::ApprovalCancelled.as_str();
    let decision = if revoked { Decision::Allow } else { was.decision };
    if now.decision == decision && (decision != Decision::Deny || now.code == was.code) {
        return Ok(None);
    }
    let call = format!("{} with {} ({id})", request.tool, request.arguments);
    let words = |verdict: &Verdict| {
        let decision = match verdict.decision {
            Decision::Allow => "allow",
            Decision::Ask => "ask",
            Decision::Deny => "deny",
        };
        format!("{decision} {call}: {} by {}", verdict.code, verdict.by)
    };
    Ok(Some(Difference { position: at, replay: words(&now), log: words(&was) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use devmind_domain::conversation::GrantScope;
    use devmind_domain::tool_call::{Target, ToolCallDecided, ToolError};
    use devmind_domain::tools::{PolicyRule, catalogue};
    use serde_json::{Value, json};

    /// One rule about every call.
    fn rule(decision: Decision) -> Rules {
        let rule = json!({ "id": "p", "decision": decision });
        Rules::new(&[serde_json::from_value::<PolicyRule>(rule).expect("a rule")]).expect("rules")
    }

    fn request(tool: &str, arguments: Value) -> ToolCallRequested {
        let definition = catalogue().get(tool).expect("a tool of the catalogue");
        ToolCallRequested {
            conversation_id: "c".into(),
            turn_id: "t".into(),
            run_id: "r".into(),
            user_id: "ann".into(),
            graph_thread_id: "g".into(),
            model_call_id: "call".into(),
            parent_tool_call_id: None,
            tool: tool.to_owned(),
            tool_version: definition.version.clone(),
            target: Target::Server,
            device_id: None,
            arguments,
            call_hash: String::new(),
            risk: definition.risk,
        }
    }

    /// What other rules decide otherwise about a call of which this was recorded, in a conversation with a grant.
    fn judged(request: &ToolCallRequested, decided: Option<ToolCallDecided>, rules: &Rules) -> Option<Difference> {
        let found = judged_with(true, request, decided, rules);
        found.unwrap_or_else(|_| panic!("it can be judged"))
    }

    fn judged_with(
        granted: bool,
        request: &ToolCallRequested,
        decided: Option<ToolCallDecided>,
        rules: &Rules,
    ) -> Result<Option<Difference>, Halt> {
        let own = (7, ToolCallEvent::ToolCallRequested(request.clone()));
        let decided = decided.map(|decided| (8, ToolCallEvent::ToolCallDecided(decided)));
        let recorded = RecordedCall(std::iter::once(own).chain(decided).collect());
        let given = Grant {
            grant_id: "given".into(),
            interrupt_id: "asked".into(),
            tool: request.tool.clone(),
            tool_version: request.tool_version.clone(),
            scope: GrantScope::Tool,
        };
        let id = ToolCallId::from("g:call");
        let grants = [given];
        let grants = if granted { &grants[..] } else { &[] };
        difference(grants, catalogue(), rules, request, (7, &id), &recorded)
    }

    #[test]
    fn a_permission_that_was_taken_back_after_it_counted_is_held_to_have_allowed_the_call() {
        let call = request("demo_text", json!({}));
        let granted =
            Verdict { by: "grant:given".to_owned(), ..Verdict::of_tool(catalogue().get("add").expect("add").approval) };
        let revoked = granted.revoked().decided();
        // The grant would be found again; a rule that refuses differs from it, and names what the log has.
        assert_eq!(judged(&call, Some(revoked.clone()), &Rules::default()), None);
        assert_eq!(judged(&call, Some(revoked.clone()), &rule(Decision::Allow)), None);
        let denied = judged(&call, Some(revoked), &rule(Decision::Deny)).expect("another decision");
        assert!(denied.position == 8 && denied.log.contains("APPROVAL_CANCELLED by grant:given"), "{denied:?}");
    }

    #[test]
    fn a_question_that_nobody_was_asked_is_no_decision_that_rules_could_differ_from() {
        let call = request("demo_text", json!({}));
        for decision in [Decision::Allow, Decision::Ask, Decision::Deny] {
            assert_eq!(judged(&call, None, &rule(decision)), None, "{decision:?}");
        }
        // What needs no question was decided by that.
        let sum = request("add", json!({ "a": 1, "b": 2 }));
        assert_eq!(judged(&sum, None, &rule(Decision::Allow)), None);
        assert!(judged(&sum, None, &rule(Decision::Deny)).is_some());
    }

    #[test]
    fn a_call_that_was_refused_before_any_policy_was_heard_is_refused_by_no_rule() {
        let sum = request("add", json!({ "a": "one" }));
        let error = ToolError { code: "ARGUMENTS_INVALID".to_owned(), message: String::new() };
        for stage in ["parse", "resolve", "validate", "limit"] {
            let refused = ToolCallDecided::deny(stage, &error, "server");
            assert_eq!(judged(&sum, Some(refused), &rule(Decision::Deny)), None, "{stage}");
        }
        // A later refusal was not before the policies.
        let refused = ToolCallDecided::deny("device", &error, "server");
        assert!(judged(&sum, Some(refused), &rule(Decision::Deny)).is_some());
    }

    #[test]
    fn a_refusal_is_the_same_with_the_same_code_alone_and_by_absence_where_nobody_could_be_asked() {
        let sum = request("add", json!({ "a": 1, "b": 2 }));
        let coded = json!({ "id": "p", "decision": "deny", "code": "NO_SUMS" });
        let coded = Rules::new(&[serde_json::from_value::<PolicyRule>(coded).expect("a rule")]).expect("rules");
        let error = |code: &str| ToolError { code: code.to_owned(), message: String::new() };
        let denied = |code: &str| Some(ToolCallDecided::deny("policy", &error(code), "policy:p"));
        assert_eq!(judged(&sum, denied("NO_SUMS"), &coded), None);
        assert!(judged(&sum, denied("TOOL_DENIED"), &coded).is_some());
        let call = request("demo_text", json!({}));
        let absent = Some(ToolCallDecided::deny("policy", &error("APPROVAL_UNAVAILABLE"), BY_ABSENCE));
        let judged = judged_with(false, &call, absent, &Rules::default());
        assert_eq!(judged.unwrap_or_else(|_| panic!("it can be judged")), None);
    }

    #[test]
    fn a_call_of_a_tool_that_is_not_at_hand_cannot_be_judged_unless_it_never_was_one() {
        let known = request("add", json!({ "a": 1, "b": 2 }));
        let gone = ToolCallRequested { tool: "gone".to_owned(), ..known };
        let refused = judged_with(true, &gone, None, &rule(Decision::Deny));
        assert!(matches!(refused, Err(Halt::Unreadable((ErrorCode::RunNotReplayable, _)))));
        let invented = ToolCallRequested { tool_version: String::new(), ..gone };
        assert_eq!(judged(&invented, None, &rule(Decision::Deny)), None);
    }
}
