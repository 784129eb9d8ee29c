//! The path policy against the corpus of `tests/corpus/paths.jsonl`.
//!
//! Every case is set up on a real disk, in a folder of its own with the same neighbours: `outside`,
//! `ws-evil` and `ws2` beside the workspace `ws`, and asked in every way that paths can be opened: with the
//! kernel's `openat2`, with cap-std as it is here, and with cap-std on a kernel that has no `openat2`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use devmind_device::path_policy::Backend;
use devmind_device::tools::{Execution, ListFiles, LocalTool, SearchText};
use devmind_device::workspace::Workspace;
use devmind_domain::ErrorCode;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

const CORPUS: &str = include_str!("corpus/paths.jsonl");
/// What has no answer by then waits for somebody (a pipe's writer), which is as bad as letting through. Far more than any
/// busy machine takes.
const ONE_ANSWER: Duration = Duration::from_secs(20);

/// How long a neighbour keeps swapping a link while it is looked at, in each way of opening.
const RACE: Duration = Duration::from_secs(10);

/// A way to open paths.
#[derive(Clone, Copy, Debug)]
enum Way {
    #[cfg(target_os = "linux")]
    Openat2,
    CapStd,
    /// cap-std where `openat2` does not exist: what other systems do.
    #[cfg(target_os = "linux")]
    CapStdWalking,
}

impl Way {
    #[cfg(target_os = "linux")]
    const ALL: [Self; 3] = [Self::Openat2, Self::CapStd, Self::CapStdWalking];
    #[cfg(not(target_os = "linux"))]
    const ALL: [Self; 1] = [Self::CapStd];

    fn open(self, ws: &Path) -> Workspace {
        let workspace = Workspace::open(ws).unwrap();
        match self {
            #[cfg(target_os = "linux")]
            Self::Openat2 => {
                assert_eq!(workspace.backend(), Backend::Openat2, "the best that there is, unless told otherwise");
                workspace
            }
            #[cfg(target_os = "linux")]
            Self::CapStdWalking => {
                assert_eq!(workspace.backend(), Backend::Portable, "without openat2 there is no choice");
                workspace
            }
            Self::CapStd => workspace.with_backend(Backend::Portable),
        }
    }
}

/// Does the same in every way of opening, each on a thread of its own.
fn in_every_way(look: impl Fn(Way) + Sync) {
    for way in Way::ALL {
        std::thread::scope(|scope| {
            let looking = scope.spawn(|| {
                #[cfg(target_os = "linux")]
                if matches!(way, Way::CapStdWalking) {
                    without_openat2();
                }
                look(way);
            });
            if let Err(panicked) = looking.join() {
                println!("this was with {way:?}");
                std::panic::resume_unwind(panicked);
            }
        });
    }
}

/// From here on this thread's kernel answers `openat2` as one that never had it.
#[cfg(target_os = "linux")]
fn without_openat2() {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
    /// The same number on every architecture (openat2 came with Linux 5.6, after the numbers were unified).
    const OPENAT2: i64 = 437;
    /// "No such system call".
    const ENOSYS: u32 = 38;
    let (other, openat2) = (SeccompAction::Allow, SeccompAction::Errno(ENOSYS));
    let architecture = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new([(OPENAT2, Vec::new())].into(), other, openat2, architecture).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
}

struct Fixture {
    folder: tempfile::TempDir,
    listeners: Vec<UnixListener>,
}

impl Fixture {
    fn new(case: &Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut fixture = Self { folder, listeners: Vec::new() };
        for (path, content) in [
            ("ws/README.md", "# readme\n"),
            ("ws/LICENSE", "licence\n"),
            ("ws/src/main.rs", "fn main() {}\n"),
            ("ws/docs/guide.md", "guide\n"),
            ("ws/sub/inner/deep.txt", "deep\n"),
            ("outside/secret.txt", "secret\n"),
            ("outside/id_rsa", "key\n"),
            ("ws-evil/secret.txt", "secret\n"),
            ("ws2/secret.txt", "secret\n"),
        ] {
            write(&fixture.folder.path().join(path), content);
        }
        for step in case["setup"].as_array().unwrap() {
            fixture.set_up(step);
        }
        fixture
    }

    fn ws(&self) -> PathBuf {
        self.folder.path().join("ws")
    }

    /// The corpus's three variables, and no others.
    fn substitute(&self, text: &str) -> String {
        let outside = self.folder.path().join("outside");
        text.replace("${WSNAME}", "ws")
            .replace("${WS}", self.ws().to_str().unwrap())
            .replace("${OUTSIDE}", outside.to_str().unwrap())
    }

    fn set_up(&mut self, step: &Value) {
        let at = self.ws().join(step["path"].as_str().unwrap());
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        let target = step["target"].as_str().map(|target| self.substitute(target));
        match step["kind"].as_str().unwrap() {
            "file" => write(&at, step["content"].as_str().unwrap_or("x\n")),
            "dir" => fs::create_dir_all(&at).unwrap(),
            "symlink" => std::os::unix::fs::symlink(target.unwrap(), &at).unwrap(),
            "hardlink" => fs::hard_link(self.ws().join(target.unwrap()), &at).unwrap(),
            "socket" => self.listeners.push(UnixListener::bind(&at).unwrap()),
            "fifo" => {
                let made = std::process::Command::new("mkfifo").arg(&at).status().unwrap();
                assert!(made.success());
            }
            other => panic!("unknown setup {other}"),
        }
    }
}

fn write(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

fn cases() -> Vec<Value> {
    CORPUS.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The policy's answer before anything is read: `OK` or a code.
fn answer(workspace: &Workspace, tool: &str, path: &str) -> &'static str {
    let denied = match tool {
        "workspace.read_file" => workspace.open_file(path).err(),
        "workspace.list_files" => workspace.open_folder(path).err(),
        other => panic!("unknown tool {other}"),
    };
    denied.map_or("OK", |denied| denied.code.as_str())
}

fn listed_names(workspace: &Arc<Workspace>, folder: &str) -> Vec<String> {
    let execution = Execution {
        tool_call_id: "call".into(),
        ends_at: Instant::now() + Duration::from_secs(60),
        cancel: CancellationToken::new(),
    };
    let listing = ListFiles.prepare(workspace, &json!({ "path": folder })).expect("folder opens");
    let listing = listing.run(&execution).expect("folder lists");
    listing["entries"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
}

/// Every folder below the workspace that may be listed.
fn folders(workspace: &Arc<Workspace>, folder: &str) -> Vec<String> {
    let mut found = vec![folder.to_owned()];
    for name in listed_names(workspace, folder) {
        let path = format!("{folder}/{name}");
        let is_folder = fs::symlink_metadata(workspace.path().join(&path)).is_ok_and(|metadata| metadata.is_dir());
        if is_folder {
            found.extend(folders(workspace, &path));
        }
    }
    found
}

#[test]
fn c19_every_path_of_the_corpus_gets_a_safe_answer_and_waits_for_nobody() {
    in_every_way(ask_the_corpus);
}

fn ask_the_corpus(way: Way) {
    let (mut core, mut policy) = (0, 0);
    let mut wrong = Vec::new();
    for case in cases() {
        let fixture = Fixture::new(&case);
        let workspace = way.open(&fixture.ws());
        let path = fixture.substitute(case["path"].as_str().unwrap());
        let (tool, asked) = (case["tool"].as_str().unwrap().to_owned(), path.clone());
        // A thread of its own, which is left behind where it does not come back.
        let (say, said) = std::sync::mpsc::channel();
        std::thread::spawn(move || say.send(answer(&workspace, &tool, &asked)));
        let got = said.recv_timeout(ONE_ANSWER).unwrap_or("NO ANSWER");
        if !case["accept"].as_array().unwrap().iter().any(|accepted| accepted == got) {
            wrong.push(format!("{} {path:?}: {got}, expected {}", case["id"], case["expected"]));
        }
        match case["tier"].as_str().unwrap() {
            "core" => core += 1,
            _ => policy += 1,
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!((core, policy), (232, 38), "the corpus is whole");
    println!("path corpus, {way:?}: {core} core and {policy} policy cases answered as accepted");
}

#[test]
fn c19_nothing_that_would_be_refused_as_sensitive_is_ever_listed() {
    in_every_way(list_the_corpus);
}

fn list_the_corpus(way: Way) {
    let mut looked_at = 0;
    for case in cases() {
        let fixture = Fixture::new(&case);
        let workspace = Arc::new(way.open(&fixture.ws()));
        for folder in folders(&workspace, ".") {
            for name in listed_names(&workspace, &folder) {
                let path = format!("{folder}/{name}");
                looked_at += 1;
                for tool in ["workspace.read_file", "workspace.list_files"] {
                    assert_ne!(answer(&workspace, tool, &path), "SENSITIVE_PATH_DENIED", "{}: {path}", case["id"]);
                }
            }
        }
    }
    assert!(looked_at > 1_000, "only {looked_at} names");
    println!("listings: {looked_at} names, none sensitive");
}

#[test]
fn c17_outside_and_sensitive_paths_answer_the_same_whether_they_exist_or_not() {
    let fixture = Fixture::new(&json!({ "setup": [
        { "kind": "symlink", "path": "there", "target": "../outside/secret.txt" },
        { "kind": "symlink", "path": "not_there", "target": "../outside/missing.txt" },
        { "kind": "symlink", "path": "env_there", "target": ".env" },
        { "kind": "symlink", "path": "env_not_there", "target": "docs/.env" },
        { "kind": "file", "path": ".env" },
    ]}));
    let workspace = Workspace::open(&fixture.ws()).unwrap();
    for (present, absent, code) in [
        ("../outside/secret.txt", "../outside/missing.txt", ErrorCode::PathOutOfScope),
        ("there", "not_there", ErrorCode::PathOutOfScope),
        ("env_there", "env_not_there", ErrorCode::SensitivePathDenied),
        (".env", "docs/.env", ErrorCode::SensitivePathDenied),
    ] {
        let answers = [present, absent].map(|path| workspace.open_file(path).expect_err(path));
        assert_eq!(answers[0], answers[1], "{present} and {absent}");
        assert_eq!(answers[0].code, code, "{present}");
    }
}

#[test]
fn a_second_name_of_a_secret_is_a_secret() {
    let fixture = Fixture::new(&json!({ "setup": [
        { "kind": "file", "path": "docs/.env" },
        { "kind": "hardlink", "path": "docs/innocent.txt", "target": "docs/.env" },
        { "kind": "hardlink", "path": "docs/twin.md", "target": "docs/guide.md" },
    ]}));
    let workspace = Workspace::open(&fixture.ws()).unwrap();
    assert_eq!(answer(&workspace, "workspace.read_file", "docs/innocent.txt"), "SENSITIVE_PATH_DENIED");
    assert_eq!(answer(&workspace, "workspace.read_file", "docs/twin.md"), "OK");
}

/// Lets a neighbour replace the link `swap` by turns while `looking` is called, for some time and on until it has answered
/// both `true` and `false`: a race that did not happen shows nothing.
fn while_swapping(what: &str, fixture: &Fixture, targets: [&str; 2], looking: impl Fn() -> bool) {
    let swap = fixture.ws().join("swap");
    let _ = fs::remove_file(&swap);
    std::os::unix::fs::symlink(targets[0], &swap).unwrap();
    let stop = CancellationToken::new();
    std::thread::scope(|scope| {
        let (ws, stopping) = (fixture.ws(), stop.clone());
        scope.spawn(move || {
            for target in targets.iter().cycle() {
                if stopping.is_cancelled() {
                    return;
                }
                std::os::unix::fs::symlink(target, ws.join("next")).unwrap();
                fs::rename(ws.join("next"), ws.join("swap")).unwrap();
            }
        });
        // Also when looking panics: the neighbour must not keep the test from ending.
        let _stops = stop.drop_guard();
        let (began, mut seen) = (Instant::now(), [0u64, 0]);
        while began.elapsed() < RACE || seen.contains(&0) {
            seen[usize::from(looking())] += 1;
        }
        let [refused, opened] = seen;
        println!("{what}: {opened} opened, {refused} refused, none leaked");
    });
}

#[test]
fn a_link_swapped_between_inside_and_outside_never_leaks_what_is_outside() {
    in_every_way(|way| {
        let fixture = Fixture::new(&json!({ "setup": [] }));
        let workspace = way.open(&fixture.ws());
        while_swapping(&format!("outside, {way:?}"), &fixture, ["docs", "../outside"], || {
            assert!(workspace.open_file("swap/secret.txt").is_err(), "read outside the workspace");
            let opened = workspace.open_file("swap/guide.md");
            if let Ok(file) = &opened {
                assert_eq!(file.resolved, "docs/guide.md");
            }
            opened.is_ok()
        });
    });
}

#[test]
fn a_link_swapped_between_a_document_and_a_secret_never_leaks_the_secret() {
    in_every_way(|way| {
        let fixture = Fixture::new(&json!({ "setup": [{ "kind": "file", "path": ".env", "content": "SECRET" }] }));
        let workspace = way.open(&fixture.ws());
        while_swapping(&format!("secret, {way:?}"), &fixture, ["docs/guide.md", ".env"], || {
            match workspace.open_file("swap") {
                Ok(file) => {
                    assert_eq!(std::io::read_to_string(file.file).unwrap(), "guide\n");
                    true
                }
                Err(_) => false,
            }
        });
    });
}

#[test]
fn a_folder_swapped_for_a_link_while_it_is_searched_never_leaks_what_is_outside() {
    let fixture = Fixture::new(&json!({ "setup": [{ "kind": "dir", "path": "real" }] }));
    let workspace = Arc::new(Workspace::open(&fixture.ws()).unwrap());
    for n in 0..50 {
        write(&fixture.ws().join(format!("real/{n}/secret.txt")), "inside\n");
    }
    let stop = CancellationToken::new();
    std::thread::scope(|scope| {
        let (ws, stopping) = (fixture.ws(), stop.clone());
        scope.spawn(move || {
            std::os::unix::fs::symlink("../../outside", ws.join("link")).unwrap();
            for n in (0..50).cycle() {
                if stopping.is_cancelled() {
                    return;
                }
                // The folder gives way to a link, and comes back.
                let place = ws.join(format!("real/{n}"));
                fs::rename(&place, ws.join("aside")).unwrap();
                fs::rename(ws.join("link"), &place).unwrap();
                fs::rename(&place, ws.join("link")).unwrap();
                fs::rename(ws.join("aside"), &place).unwrap();
            }
        });
        let _stops = stop.drop_guard();
        let (began, mut searches, mut found) = (Instant::now(), 0, 0);
        while began.elapsed() < RACE {
            let execution = Execution {
                tool_call_id: "call".into(),
                ends_at: Instant::now() + Duration::from_secs(60),
                cancel: CancellationToken::new(),
            };
            let search =
                SearchText.prepare(&workspace, &json!({ "pattern": "secret|inside", "path": "real" })).unwrap();
            let answer = search.run(&execution).unwrap();
            for line in answer["matches"].as_array().unwrap() {
                assert_eq!(line["text"], "inside", "{line}");
                found += 1;
            }
            searches += 1;
        }
        println!("searching: {searches} searches, {found} lines, none leaked");
        assert!(found > 0);
    });
}
