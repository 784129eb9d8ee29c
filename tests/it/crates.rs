//! The arrows between the crates, and one version of what must not be there twice.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

fn metadata() -> Value {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--manifest-path", manifest])
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// What each package of the workspace names in its manifest, without what only its own tests use.
fn direct(metadata: &Value) -> BTreeMap<&str, BTreeSet<&str>> {
    let members: BTreeSet<_> =
        metadata["workspace_members"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
    let packages = metadata["packages"].as_array().unwrap().iter();
    packages
        .filter(|package| members.contains(text(package, "id")))
        .map(|package| {
            let named = package["dependencies"].as_array().unwrap().iter();
            let used =
                named.filter(|dependency| dependency["kind"] != "dev").map(|dependency| text(dependency, "name"));
            (text(package, "name"), used.collect())
        })
        .collect()
}

#[test]
fn arrows_between_the_crates_point_inwards() {
    let metadata = metadata();
    let direct = direct(&metadata);
    let own: BTreeSet<&str> = direct.keys().copied().collect();
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("devmind-domain", &[][..]),
        ("devmind-code-mode", &[]),
        ("devmind-kill-point", &[]),
        ("devmind-ledger", &["devmind-domain", "devmind-kill-point"]),
        ("devmind-projections", &["devmind-domain", "devmind-kill-point", "devmind-ledger"]),
        ("devmind-device", &["devmind-domain", "devmind-kill-point"]),
        (
            "devmind-api",
            &[
                "devmind-code-mode",
                "devmind-device",
                "devmind-domain",
                "devmind-kill-point",
                "devmind-ledger",
                "devmind-projections",
            ],
        ),
        ("devmind-test-postgres", &[]),
        ("devmind-replay-tools", &["devmind-domain", "devmind-ledger", "devmind-projections"]),
    ]);
    for (package, uses) in &direct {
        let uses: BTreeSet<_> = uses.intersection(&own).copied().collect();
        if *package == "devmind-tests" {
            let all: BTreeSet<_> = own.iter().copied().filter(|name| *name != "devmind-tests").collect();
            assert_eq!(uses, all, "the tests depend on all");
            continue;
        }
        let allowed = allowed.get(package).unwrap_or_else(|| panic!("{package} has no place in the layout"));
        let allowed: BTreeSet<_> = allowed.iter().copied().collect();
        assert!(uses.is_subset(&allowed), "{package} uses {uses:?}, allowed are {allowed:?}");
    }
    assert_eq!(direct.len(), allowed.len() + 1, "{:?}", direct.keys());
}

#[test]
fn the_operators_tools_link_neither_server_nor_device() {
    let metadata = metadata();
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    let node = |id: &str| nodes.iter().find(|node| text(node, "id") == id).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let id_of = |name: &str| text(packages.iter().find(|package| text(package, "name") == name).unwrap(), "id");
    let (mut reached, mut next) = (BTreeSet::new(), vec![id_of("devmind-replay-tools")]);
    while let Some(id) = next.pop() {
        if reached.insert(id) {
            let linked = node(id)["deps"].as_array().unwrap().iter().filter(|dependency| {
                dependency["dep_kinds"].as_array().unwrap().iter().any(|kind| kind["kind"].is_null())
            });
            next.extend(linked.map(|dependency| text(dependency, "pkg")));
        }
    }
    let names: BTreeSet<_> = packages
        .iter()
        .filter(|package| reached.contains(text(package, "id")))
        .map(|package| text(package, "name"))
        .collect();
    assert!(names.contains("devmind-ledger") && names.contains("sqlx"), "{names:?}");
    for forbidden in ["devmind-api", "devmind-device", "async-openai", "axum", "tokio-tungstenite"] {
        assert!(!names.contains(forbidden), "{forbidden} is linked");
    }
    // An HTTP client is there for those who are told by their address: a collector, a witness, a model.
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../replay-tools/src");
    let (mut folders, mut with_client) = (vec![source.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if std::fs::read_to_string(&path).unwrap().contains("reqwest") {
                with_client.push(path.strip_prefix(&source).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    with_client.sort();
    assert_eq!(with_client, ["http.rs", "otlp/send.rs", "replay/model.rs", "witness/ask.rs"]);
}

#[test]
fn the_domain_names_nothing_that_does_io_reads_a_clock_or_draws_randomness() {
    let metadata = metadata();
    let uses = &direct(&metadata)["devmind-domain"];
    for impure in
        ["tokio", "sqlx", "reqwest", "axum", "hyper", "getrandom", "rand", "uuid", "tracing", "cap-std", "tempfile"]
    {
        assert!(!uses.contains(impure), "devmind-domain uses {impure}");
    }
}

#[test]
fn what_must_not_be_there_twice_is_there_once() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    for name in [
        "sqlx",
        "sqlx-core",
        "sqlx-sqlite",
        "libsqlite3-sys",
        "cqrs-es",
        "tokio",
        "axum",
        "hyper",
        "http",
        "reqwest",
        "rquickjs",
        "rustls",
        "tokio-tungstenite",
        "tungstenite",
        "cap-std",
        "jsonschema",
        "serde",
        "serde_json",
        "uuid",
    ] {
        let versions: BTreeSet<_> = packages
            .iter()
            .filter(|package| text(package, "name") == name)
            .map(|package| text(package, "version"))
            .collect();
        assert_eq!(versions.len(), 1, "{name}: {versions:?}");
    }
}
