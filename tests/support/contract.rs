//! The description of the API, held against every answer that a test's client gets: a status or a code
//! that is not declared for its route fails the test, whatever it is about.

use serde_json::Value;
use std::sync::OnceLock;

/// The description.
pub fn description() -> &'static Value {
    static DESCRIPTION: OnceLock<Value> = OnceLock::new();
    DESCRIPTION.get_or_init(devmind_api::http::description)
}

/// The operations: path, method in lower case, and what is said about it.
pub fn operations() -> impl Iterator<Item = (&'static str, &'static str, &'static Value)> {
    let paths = description()["paths"].as_object().expect("paths").iter();
    paths.flat_map(|(path, methods)| {
        let methods = methods.as_object().expect("methods").iter();
        methods.map(move |(method, operation)| (path.as_str(), method.as_str(), operation))
    })
}

/// The codes that an operation may answer with a status.
pub fn codes(operation: &'static Value, status: u16) -> Vec<&'static str> {
    let parts = operation["responses"][status.to_string()]["content"]["application/json"]["schema"]["allOf"].as_array();
    let codes = parts.and_then(|parts| parts[1]["properties"]["error"]["properties"]["code"]["enum"].as_array());
    codes.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Fails when an answer is not one that its route declares.
#[track_caller]
pub fn assert_declared(method: &str, path: &str, status: u16, body: &Value) {
    let code = body["error"]["code"].as_str();
    let of_path = description()["paths"].get(path);
    let Some(operation) = of_path.and_then(|path| path.get(method.to_lowercase())) else {
        let expected = if of_path.is_some() { (405, Some("METHOD_NOT_ALLOWED")) } else { (404, Some("NOT_FOUND")) };
        assert_eq!((status, code), expected, "{method} {path} is no route");
        return;
    };
    let declared = operation["responses"].get(status.to_string()).is_some();
    assert!(declared, "{method} {path} answered {status}, which is not declared: {body}");
    if status >= 400 {
        let codes = codes(operation, status);
        assert!(code.is_some_and(|code| codes.contains(&code)), "{method} {path}: {body} is not one of {codes:?}");
    }
}
