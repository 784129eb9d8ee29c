//! Which rule has the first word, what a grant does to it, and what becomes of a policy with a fault.

use super::*;
use crate::conversation::GrantScope;
use serde_json::json;

fn rule(json: Value) -> PolicyRule {
    serde_json::from_value(json).expect("a rule")
}
fn rules(list: Value) -> Result<Rules, RulesError> {
    Rules::new(&list.as_array().expect("a list").iter().cloned().map(rule).collect::<Vec<_>>())
}
fn read(path: Value) -> PolicyCall {
    PolicyCall {
        conversation_id: "c".into(),
        user_id: "ann".into(),
        device_id: Some("laptop".into()),
        tool: "workspace.read_file".into(),
        tool_version: "1".into(),
        target: Target::Device,
        risk: Risk::Medium,
        approval: Approval::Never,
        arguments: json!({ "path": path, "max_bytes": 10 }),
    }
}
/// Decision, code and decider in one line.
fn line(verdict: &Verdict) -> String {
    format!("{:?} {} {}", verdict.decision, verdict.code, verdict.by).to_lowercase()
}
fn word(list: Value, call: &PolicyCall) -> String {
    rules(list).expect("usable rules").first_word(call).as_ref().map_or_else(|| "passes".to_owned(), line)
}

#[test]
fn a_rule_is_about_what_every_one_of_its_patterns_matches() {
    let denied = "deny tool_denied policy:r";
    let about = |more: Value, path: Value| {
        let mut rule = json!({ "id": "r", "decision": "deny" });
        rule.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        word(json!([rule]), &read(path)) == denied
    };
    let glob = |pattern: &str| json!({ "arguments": { "/path": { "glob": pattern } } });
    let regex = |pattern: &str| json!({ "arguments": { "/path": { "regex": pattern } } });
    for (more, path, expected) in [
        (json!({}), json!("a"), true),
        (json!({"tool": "workspace.*"}), json!("a"), true),
        (json!({"tool": "workspace_read_file"}), json!("a"), true),
        (json!({"tool": "{add,workspace.read_file}"}), json!("a"), true),
        (json!({"tool": "read_file"}), json!("a"), false),
        (json!({"risk": ["LOW", "MEDIUM"]}), json!("a"), true),
        (json!({"risk": ["HIGH"]}), json!("a"), false),
        (json!({"user": "a*"}), json!("a"), true),
        (json!({"user": "bob"}), json!("a"), false),
        (json!({"device": "laptop"}), json!("a"), true),
        (json!({"device": "phone"}), json!("a"), false),
        (json!({"user": "ann", "device": "phone"}), json!("a"), false),
        (glob("secrets/**"), json!("secrets/a/b"), true),
        (glob("secrets/**"), json!("./docs/../secrets//a"), true),
        (glob("secrets/**"), json!(r"docs\..\secrets\a"), true),
        (glob("secrets/**"), json!("docs/a"), false),
        (glob("*.md"), json!("docs/a.md"), false),
        (glob("**/*.md"), json!("docs/a.md"), true),
        (glob("."), json!("docs/.."), true),
        (glob("**"), json!(["docs/a"]), true),
        (glob("secrets/**"), json!(["docs/a", "secrets/a"]), true),
        (regex("sec.*"), json!("secrets"), true),
        (regex("cre"), json!("secrets"), false),
        (regex(".*cre.*"), json!("line\nsecrets"), true),
        (regex("a|b"), json!("xb"), false),
        (regex("7"), json!(7), true),
        (regex("true|null"), json!(true), true),
        (json!({"arguments": {"/path": {"glob": "a"}, "/max_bytes": {"regex": "10"}}}), json!("a"), true),
        (json!({"arguments": {"/path": {"glob": "a"}, "/max_bytes": {"regex": "11"}}}), json!("a"), false),
        (json!({"arguments": {"/offset": {"regex": ".*"}}}), json!("a"), false),
    ] {
        assert_eq!(about(more.clone(), path.clone()), expected, "{more} about {path}");
    }
}

#[test]
fn no_list_of_arguments_smuggles_a_part_past_a_rule() {
    let docs =
        |decision: &str| json!([{ "id": "r", "decision": decision, "arguments": { "/path": { "glob": "docs/**" } } }]);
    for (paths, allowed, denied) in [
        (json!(["docs/a", "docs/b"]), true, true),
        (json!(["docs/a", "secrets/b"]), false, true),
        (json!(["secrets/b"]), false, false),
        (json!([]), false, false),
    ] {
        assert_eq!(word(docs("allow"), &read(paths.clone())) != "passes", allowed, "{paths}");
        assert_eq!(word(docs("deny"), &read(paths.clone())) != "passes", denied, "{paths}");
    }
}

#[test]
fn what_is_left_out_of_a_call_is_judged_by_its_default() {
    let schema = json!({ "properties": { "path": { "default": "." }, "limit": { "default": 5 }, "glob": {} } });
    assert_eq!(with_defaults(&schema, &json!({"limit": 1})), json!({"path": ".", "limit": 1}));
    assert_eq!(with_defaults(&json!({}), &json!({"limit": 1})), json!({"limit": 1}));
}

#[test]
fn the_first_rule_about_a_call_has_the_word_and_without_one_the_tool_has() {
    let list = json!([
        { "id": "secrets", "decision": "deny", "code": "SECRETS", "reason": "not these", "arguments": { "/path": { "glob": "secrets/**" } } },
        { "id": "docs", "decision": "allow", "arguments": { "/path": { "glob": "{docs,secrets}/**" } } },
        { "id": "bob", "user": "bob", "decision": "ask", "reason": "bob is new" },
    ]);
    let rules = rules(list).expect("usable");
    for (path, user, approval, expected) in [
        ("secrets/a", "ann", Approval::Never, "deny secrets policy:secrets"),
        ("docs/a", "bob", Approval::Always, "allow tool_allowed policy:docs"),
        ("src/a", "bob", Approval::Never, "ask approval_required policy:bob"),
        ("src/a", "ann", Approval::Never, "allow tool_allowed tool"),
        ("src/a", "ann", Approval::Always, "ask approval_required tool"),
        ("src/a", "ann", Approval::Policy, "ask approval_required tool"),
        ("docs/a", "ann", Approval::Policy, "allow tool_allowed policy:docs"),
    ] {
        let call = PolicyCall { user_id: user.into(), approval, ..read(json!(path)) };
        assert_eq!(line(&judge(&rules, &[], &call, true)), expected, "{path} {user} {approval:?}");
    }
    assert_eq!(judge(&rules, &[], &read(json!("secrets/a")), true).reason, "not these");
    assert_eq!(
        judge(&rules, &[], &PolicyCall { user_id: "bob".into(), ..read(json!("a")) }, true).reason,
        "bob is new"
    );
}

#[test]
fn a_grant_turns_ask_into_allow_for_exactly_its_scope_and_never_a_refusal() {
    let grant = |tool: &str, version: &str, scope| Grant {
        grant_id: "g".into(),
        interrupt_id: "i".into(),
        tool: tool.into(),
        tool_version: version.into(),
        scope,
    };
    let mine = |scope| grant("workspace.read_file", "1", scope);
    let path = |path: &str| GrantScope::Path { path: path.into() };
    let folder = |path: &str| GrantScope::Folder { path: path.into() };
    let ask = json!([{ "id": "r", "decision": "ask" }]);
    let deny = json!([{ "id": "r", "decision": "deny" }]);
    let medium = Risk::Medium;
    for (list, grant, called, risk, granted) in [
        (&ask, mine(GrantScope::Tool), "any/thing", medium, true),
        (&ask, mine(path("docs/a")), "./docs/x/../a", medium, true),
        (&ask, mine(path("docs/a")), "docs/ab", medium, false),
        (&ask, mine(folder("docs")), "docs/a/b", medium, true),
        (&ask, mine(folder("docs")), "docs/../src/a", medium, false),
        (&ask, mine(folder("docs")), "docs2/a", medium, false),
        (&ask, mine(folder(".")), "../a", medium, false),
        (&ask, grant("workspace.read_file", "2", GrantScope::Tool), "a", medium, false),
        (&ask, grant("workspace.list_files", "1", GrantScope::Tool), "a", medium, false),
        (&ask, mine(GrantScope::Tool), "a", Risk::High, false),
        (&deny, mine(GrantScope::Tool), "a", medium, false),
    ] {
        let rules = rules(list.clone()).expect("usable");
        let verdict = judge(&rules, std::slice::from_ref(&grant), &PolicyCall { risk, ..read(json!(called)) }, true);
        assert_eq!(verdict.by == "grant:g" && verdict.decision == Decision::Allow, granted, "{grant:?} {called}");
        assert_eq!(verdict.grant().is_some(), granted, "{grant:?} {called}");
    }
}

#[test]
fn where_nobody_can_be_asked_to_ask_is_to_refuse() {
    let rules = rules(json!([{ "id": "r", "decision": "ask" }])).expect("usable");
    let verdict = judge(&rules, &[], &read(json!("a")), false);
    assert_eq!(line(&verdict), "deny approval_unavailable absence");
    assert!(verdict.reason.contains("policy:r"), "{}", verdict.reason);
    let allowed = judge(&Rules::default(), &[], &read(json!("a")), false);
    assert_eq!(line(&allowed), "allow tool_allowed tool");
}

#[test]
fn a_policy_that_panics_or_lies_refuses_the_call_with_its_fault() {
    struct Says(fn() -> PolicyAnswer);
    impl Policy for Says {
        fn judge(&self, _: &PolicyCall) -> PolicyAnswer {
            (self.0)()
        }
    }
    let deny = |code: &str| PolicyAnswer::Deny { code: code.into(), reason: "because".into() };
    let said = |says: fn() -> PolicyAnswer| hear("p", &Says(says), &read(json!("a"))).as_ref().map(line);
    assert_eq!(said(|| PolicyAnswer::Pass), None);
    assert_eq!(said(|| panic!("a fault")).as_deref(), Some("deny policy_failed policy:p"));
    for lie in ["APPROVAL_GIVEN", "UNKNOWN_TOOL", "", "lower", "A B", "_A", &"A".repeat(65)] {
        let verdict = Verdict::of_answer("p", deny(lie)).expect("a word");
        assert_eq!(line(&verdict), "deny policy_failed policy:p", "{lie}");
    }
    for own in ["TOOL_DENIED", "NOT_AT_NIGHT", "E42"] {
        assert_eq!(Verdict::of_answer("p", deny(own)).expect("a word").code, own);
    }
    let endless = PolicyAnswer::Ask { reason: "é".repeat(10_000) };
    let asked = Verdict::of_answer("p", endless).expect("a word");
    assert_eq!(asked.reason.chars().count(), MAX_REASON_CHARS);
    let silent = Verdict::of_answer("p", PolicyAnswer::Ask { reason: " ".into() }).expect("a word");
    assert_eq!(silent.reason, "the policy p has a person asked");
}

#[test]
fn a_rule_that_cannot_be_used_is_named() {
    let good = json!({ "id": "good", "decision": "allow" });
    for (bad, complaint) in [
        (json!({ "id": "", "decision": "allow" }), "id"),
        (json!({ "id": "a:b", "decision": "allow" }), "id"),
        (json!({ "id": "good", "decision": "deny" }), "earlier rule has this id"),
        (json!({ "id": "r", "decision": "allow", "code": "X" }), "only a refusal"),
        (json!({ "id": "r", "decision": "allow", "reason": "x" }), "nobody is told"),
        (json!({ "id": "r", "decision": "deny", "code": "APPROVAL_GIVEN" }), "something else"),
        (json!({ "id": "r", "decision": "deny", "tool": "[" }), "tool"),
        (json!({ "id": "r", "decision": "deny", "user": "" }), "user"),
        (json!({ "id": "r", "decision": "deny", "device": "{a" }), "device"),
        (json!({ "id": "r", "decision": "deny", "arguments": { "path": { "glob": "a" } } }), "JSON Pointer"),
        (json!({ "id": "r", "decision": "deny", "arguments": { "/path": {} } }), "one of them"),
        (
            json!({ "id": "r", "decision": "deny", "arguments": { "/path": { "glob": "a", "regex": "a" } } }),
            "one of them",
        ),
        (json!({ "id": "r", "decision": "deny", "arguments": { "/path": { "regex": "a)|(b" } } }), "/path"),
        (json!({ "id": "r", "decision": "deny", "arguments": { "/path": { "regex": "x".repeat(1025) } } }), "bytes"),
    ] {
        let id = bad["id"].clone();
        let error = rules(json!([good, bad])).expect_err("refused").to_string();
        assert!(error.contains(&format!("rule 2 ({id})")) && error.contains(complaint), "{error}, not {complaint}");
    }
    let many: Vec<Value> = (0..=MAX_POLICIES).map(|n| json!({ "id": n.to_string(), "decision": "allow" })).collect();
    assert!(rules(json!(many)).expect_err("too many").problem.contains("at most"));
    let ids: Vec<_> = rules(json!([good])).expect("usable").ids().map(str::to_owned).collect();
    assert_eq!(ids, ["good"]);
}
