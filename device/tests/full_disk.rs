//! The journal on a disk that is really full: a file system of a few megabytes, mounted in a namespace of
//! this test's own.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use devmind_device::StateDir;
use devmind_device::journal::{Journal, JournalError, Owner, Settlement};
use devmind_domain::protocol::CallRequest;
use devmind_domain::tool_call::ResultStatus;
use serde_json::json;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

/// Set in the process that runs inside the namespace: the mounted folder.
const DISK: &str = "DEVMIND_TEST_DISK";
/// Room for the journal, the ballast and as much again.
const DISK_BYTES: &str = "size=12m";

fn request(id: &str) -> CallRequest {
    CallRequest {
        tool_call_id: id.into(),
        run_id: "run".into(),
        attempt_no: 1,
        tool_name: "workspace.read_file".into(),
        tool_version: "1".into(),
        arguments_json: "{}".into(),
        call_hash: "hash".into(),
        requires_confirmation: true,
        execution_timeout_ms: 1_000,
        ttl_ms: 1_000,
        expires_at: None,
        call_created_at: devmind_device::clock::now(),
        device_id: "device".into(),
        conversation_title: "title".into(),
    }
}

/// Somebody else fills the disk to the last byte.
fn fill(disk: &Path, name: &str) {
    let mut file = File::create(disk.join(name)).unwrap();
    for block in [1 << 16, 1 << 12, 1] {
        while file.write(&vec![1; block]).is_ok_and(|written| written > 0) {}
    }
    file.sync_all().unwrap();
}

async fn outcome(journal: &Journal, id: &str) -> (ResultStatus, Option<String>, bool) {
    let result = journal.find(&id.into()).unwrap().unwrap().outcome.unwrap();
    (result.status, result.error.map(|error| error.code), result.output.is_some())
}

async fn story(disk: &Path) {
    let owner = Owner { server_id: "s".into(), user_hash: "u".into() };
    let journal = Journal::open(StateDir::open(&disk.join("state")).unwrap(), "instance").await.unwrap();
    for id in ["first", "second", "third"] {
        journal.reserve(&request(id), &owner).await.unwrap();
        assert!(journal.begin(&id.into()).await.unwrap());
    }
    // Larger than what the log may reuse of itself.
    let output = Settlement::succeeded(&json!({ "content": "x".repeat(1_000_000) }));
    fill(disk, "others-1");
    assert!(journal.settle(&"first".into(), &output).await.unwrap(), "the ballast makes room for an output");
    assert_eq!(outcome(&journal, "first").await, (ResultStatus::Succeeded, None, true));
    fill(disk, "others-2");
    assert!(journal.settle(&"second".into(), &output).await.unwrap(), "and for the end of the next call");
    let stored = (ResultStatus::Succeeded, Some("OUTPUT_NOT_STORED".to_owned()), false);
    assert_eq!(outcome(&journal, "second").await, stored);
    // New calls are not taken, and that is no damage.
    assert_eq!(journal.admit(devmind_device::clock::now()), Err(JournalError::Full));
    drop(journal);

    for name in ["others-1", "others-2"] {
        std::fs::remove_file(disk.join(name)).unwrap();
    }
    // What could not be settled was not lost: the next start settles it as what nobody can know.
    let journal = Journal::open(StateDir::open(&disk.join("state")).unwrap(), "instance").await.unwrap();
    assert_eq!(outcome(&journal, "first").await, (ResultStatus::Succeeded, None, true));
    assert_eq!(outcome(&journal, "second").await, stored);
    let unknown = (ResultStatus::Indeterminate, Some("DEVICE_RESTARTED".to_owned()), false);
    assert_eq!(outcome(&journal, "third").await, unknown);
    assert_eq!(std::fs::metadata(disk.join("state/ballast")).unwrap().len(), 4 << 20, "room is kept again");
}

#[tokio::test]
async fn calls_that_have_begun_are_settled_on_a_full_disk_and_new_ones_refused() {
    if let Some(disk) = std::env::var_os(DISK) {
        return story(Path::new(&disk)).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = format!("mount -t tmpfs -o {DISK_BYTES} none \"${DISK}\" && exec \"$0\" --exact {NAME} --nocapture");
    let mut inside = Command::new("unshare");
    inside.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]);
    inside.arg(std::env::current_exe().unwrap()).env(DISK, folder.path());
    let ran = inside.output().expect("unshare, of util-linux");
    let told = format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && told.contains("1 passed"), "{told}");
}

const NAME: &str = "calls_that_have_begun_are_settled_on_a_full_disk_and_new_ones_refused";
