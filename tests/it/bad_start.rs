//! Programs that cannot start: exit 1, `error[CODE]` and a hint on stderr, no panic, and files left
//! as they were.

use devmind_api::lifecycle::VIEWS_FILE;
use devmind_tests::{Data, DeviceProcess, Process, Question, ServerProcess, workspace};
use std::path::Path;

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// A ledger with something in it, written by a server that has stopped in order.
async fn used_ledger() -> Data {
    let server = ServerProcess::on_sqlite(&[]).await;
    server.client("ann").converse(&Question::new("add 1 and 2")).await;
    let data = server.data.clone();
    server.finish().await;
    data
}

/// A server over this folder refuses with the code, and leaves the ledger's bytes as they are.
async fn refused_and_untouched(data: &Data, code: &str) {
    let before = std::fs::read(data.ledger_file()).unwrap();
    let views = std::fs::read(data.views_file()).ok();
    for program in [&["--listen", "127.0.0.1:0"][..], &["serve", "--listen", "127.0.0.1:0"]] {
        let finished = Process::run("devmind", &[program, &["--data", text(data.path())]].concat(), &[]).await;
        finished.assert_refused(code);
        assert_eq!(finished.stdout, "", "nothing was served");
    }
    assert!(std::fs::read(data.ledger_file()).unwrap() == before, "the ledger's file was changed");
    assert!(std::fs::read(data.views_file()).ok() == views, "the views' file was changed");
}

#[tokio::test]
async fn a_busy_port_is_named_and_nothing_is_written() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let data = tempfile::tempdir().unwrap();
    let folder = data.path().join("data");
    let finished = Process::run("devmind", &["--listen", &address, "--data", text(&folder)], &[]).await;
    finished.assert_refused("ADDRESS_IN_USE");
    assert!(finished.stderr.contains(&address));
    assert!(!folder.exists(), "a server that cannot listen must not write");
}

#[tokio::test]
async fn a_second_server_on_the_same_folder_is_refused_and_the_first_goes_on() {
    let server = ServerProcess::on_sqlite(&[]).await;
    let ann = server.client("ann");
    ann.converse(&Question::new("hello")).await;
    let events = server.log().await.head().await;
    let folder = text(server.data.path()).to_owned();
    let second = Process::run("devmind", &["--listen", "127.0.0.1:0", "--data", &folder], &[]).await;
    second.assert_refused("STATE_LOCKED");
    assert_eq!(server.log().await.head().await, events, "the second one wrote");
    ann.converse(&Question::new("hello again")).await;
    server.finish().await;
}

#[tokio::test]
async fn a_file_that_is_no_ledger_or_a_damaged_one_is_refused_and_left_as_it_is() {
    let garbage = Data::sqlite();
    std::fs::write(garbage.ledger_file(), "not a database, but somebody's notes".repeat(100)).unwrap();
    refused_and_untouched(&garbage, "LEDGER_CORRUPT").await;

    let foreign = Data::sqlite();
    foreign.change_ledger("CREATE TABLE notes (text TEXT); INSERT INTO notes VALUES ('mine')").await;
    refused_and_untouched(&foreign, "LEDGER_CORRUPT").await;

    let tampered = used_ledger().await;
    let change = "DROP TRIGGER events_no_update;
        UPDATE events SET payload = '{}' WHERE position = (SELECT max(position) FROM events)";
    tampered.change_ledger(change).await;
    refused_and_untouched(&tampered, "LEDGER_CORRUPT").await;
    let finished = Process::run("devmind-replay", &["--data", text(tampered.path()), "verify"], &[]).await;
    finished.assert_no_panic();
    assert_eq!(finished.code, Some(3), "{finished:#?}");

    let truncated = used_ledger().await;
    let bytes = std::fs::read(truncated.ledger_file()).unwrap();
    std::fs::write(truncated.ledger_file(), &bytes[..bytes.len() / 2]).unwrap();
    refused_and_untouched(&truncated, "LEDGER_CORRUPT").await;
}

#[tokio::test]
async fn a_ledger_of_a_newer_program_is_refused_and_left_as_it_is() {
    let data = used_ledger().await;
    let newer = "INSERT INTO _sqlx_migrations (version, description, installed_on, success, checksum, execution_time)
        SELECT 99999999999999, 'of tomorrow', installed_on, success, checksum, execution_time FROM _sqlx_migrations LIMIT 1";
    data.change_ledger(newer).await;
    refused_and_untouched(&data, "LEDGER_SCHEMA_NEWER").await;
    let finished = Process::run("devmind-replay", &["--data", text(data.path()), "verify"], &[]).await;
    finished.assert_refused("LEDGER_SCHEMA_NEWER");
}

#[tokio::test]
async fn settings_that_cannot_be_used_are_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let data = text(&data);
    for (arguments, environment, code) in [
        (&["--listen", "localhost"][..], &[][..], "ADDRESS_INVALID"),
        (&["--listen", "127.0.0.1:99999"], &[], "ADDRESS_INVALID"),
        (&["--listen", "0.0.0.0:0"], &[], "CONFIG_INVALID"),
        (&["--node-id", "a/b"], &[], "CONFIG_INVALID"),
        (&["--config", "no-such-file.toml"], &[], "CONFIG_INVALID"),
        (&[], &[("MODEL_BASE_URL", "http://127.0.0.1:1/v1")], "CONFIG_INVALID"),
        (&[], &[("MODEL_BASE_URL", "ftp://x"), ("MODEL_NAME", "m")], "CONFIG_INVALID"),
        (&[], &[("DEVMIND_MODEL_IDLE_MS", "0")], "CONFIG_INVALID"),
        (&[], &[("DEVMIND_LISTEN", "nowhere")], "ADDRESS_INVALID"),
    ] {
        let finished = Process::run("devmind", &[arguments, &["--data", data]].concat(), environment).await;
        finished.assert_refused(code);
    }
    let usage = Process::run("devmind", &["--no-such-flag"], &[]).await;
    assert_eq!(usage.code, Some(2), "{usage:#?}");
    assert!(!Path::new(data).exists());
}

#[tokio::test]
async fn a_data_folder_that_is_a_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("data");
    std::fs::write(&file, "a file").unwrap();
    let finished = Process::run("devmind", &["--listen", "127.0.0.1:0", "--data", text(&file)], &[]).await;
    finished.assert_refused("LEDGER_UNAVAILABLE");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "a file");
}

#[tokio::test]
async fn a_workspace_that_is_unknown_a_file_a_disks_root_or_the_home_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    std::fs::create_dir(&home).unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let state = folder.path().join("state");
    for (workspace, code) in [
        (folder.path().join("none"), "WORKSPACE_NOT_FOUND"),
        (folder.path().join("file"), "WORKSPACE_REFUSED"),
        ("/".into(), "WORKSPACE_REFUSED"),
        (home.clone(), "WORKSPACE_REFUSED"),
        (home.join("../home/."), "WORKSPACE_REFUSED"),
    ] {
        let environment = [("HOME", text(&home))];
        let workspace = text(&workspace);
        let device = ["--workspace", workspace, "--state", text(&state), "--server", "http://127.0.0.1:1"];
        Process::run("devmind-device", &device, &environment).await.assert_refused(code);
        let data = folder.path().join("data");
        let demo = ["demo", "--yes", "--workspace", workspace, "--data", text(&data)];
        Process::run("devmind", &demo, &environment).await.assert_refused(code);
        assert!(!data.exists(), "{workspace}: a ledger was made");
    }
}

#[tokio::test]
async fn a_device_keeps_trying_while_its_server_cannot_be_reached_and_connects_when_it_is_back() {
    let (server, folder) = (ServerProcess::on_sqlite(&[]).await, workspace());
    let url = server.url();
    let killed = server.kill().await;
    let mut device = DeviceProcess::start(&url, "ann", folder.path(), tempfile::tempdir().unwrap(), &["--yes"]);
    let line = device.process.line("trying again in").await;
    assert!(line.contains("cannot be reached"), "{line}");
    let server = killed.start().await;
    device.connected().await;
    device.finish().await;
    server.finish().await;
}

#[tokio::test]
async fn a_device_that_the_server_does_not_know_stops_with_the_servers_reason() {
    let (server, folder) = (ServerProcess::on_sqlite(&[]).await, workspace());
    let state = || tempfile::tempdir().unwrap();
    let wrong_name = DeviceProcess::start(&server.url(), "no/name", folder.path(), state(), &["--yes"]);
    wrong_name.process.ended().await.assert_refused("UNAUTHENTICATED");
    let wrong_token =
        DeviceProcess::start(&server.url(), "ann", folder.path(), state(), &["--yes", "--token", "the-secret-token"]);
    let finished = wrong_token.process.ended().await;
    finished.assert_refused("UNAUTHENTICATED");
    assert!(!finished.stderr.contains("the-secret-token"));
    for server in ["127.0.0.1:1", "ftp://127.0.0.1", "http://192.0.2.1:8787", "http://user@127.0.0.1"] {
        let device = DeviceProcess::start(server, "ann", folder.path(), state(), &["--yes"]);
        device.process.ended().await.assert_refused("CONFIG_INVALID");
    }
    server.finish().await;
}

#[tokio::test]
async fn a_views_file_that_is_damaged_stops_nobody() {
    let data = used_ledger().await;
    std::fs::write(data.path().join(VIEWS_FILE), "not a database").unwrap();
    let server = devmind_tests::KilledServer { data, address: "127.0.0.1:0".parse().unwrap() }.start().await;
    let conversations = server.client("ann").get("/api/conversations").await.ok();
    assert_eq!(conversations[0]["title"], "add 1 and 2");
    server.finish().await;
}

#[tokio::test]
async fn a_lost_ledger_is_not_begun_anew_beside_the_views_of_the_old_one() {
    let server = ServerProcess::on_sqlite(&[]).await;
    server.client("ann").converse(&Question::new("hello")).await;
    let killed = server.stop().await;
    std::fs::remove_file(killed.data.path().join("ledger.sqlite")).unwrap();
    let data = killed.data.path().to_str().unwrap();
    let refused = Process::run("devmind", &["--listen", "127.0.0.1:0", "--data", data], &[]).await;
    refused.assert_refused("LEDGER_CORRUPT");
    assert!(!killed.data.path().join("ledger.sqlite").exists(), "a new history was begun");
}

/// `eprintln!` panics when nobody reads stderr any more; the stop must come through all the same.
#[tokio::test]
async fn a_server_whose_stderr_nobody_reads_any_more_still_stops_when_told() {
    let data = devmind_tests::Data::sqlite();
    let mut child = tokio::process::Command::new(devmind_tests::program("devmind"))
        .args(["--listen", "127.0.0.1:0", "--data", data.path().to_str().unwrap()])
        .env_clear()
        .env("RUST_LOG", "info")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("a server");
    drop(child.stderr.take());
    let mut lines = tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(child.stdout.take().unwrap()));
    assert!(lines.next_line().await.unwrap().unwrap().starts_with("listening on"));
    let id = rustix::process::Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::TERM).expect("a signal");
    let ended = tokio::time::timeout(devmind_tests::DEADLINE, child.wait()).await;
    assert!(ended.expect("the server did not stop").unwrap().success());
    assert!(data.log().await.all().await.pop().unwrap().is("NodeStopped"), "it did not stop in order");
    data.check().await;
}
