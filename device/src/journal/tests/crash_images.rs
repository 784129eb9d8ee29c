//! What a loss of power may leave of the journal, at every write.
//!
//! A process of its own takes calls while strace writes down each write, flush and cut of the journal's
//! files. From that, the disk after a loss of power at each moment is made: what was flushed is there;
//! of what was not, each 512-byte sector with a certain probability. (Files once made and removed are
//! taken as such: the order of a folder's own changes is left to the file system.) Every such image must
//! open whole and know every step that the journal had confirmed. That the check can fail is shown by the
//! same journal with its flushes gone astray: `synchronous=NORMAL` alone does not wait for the disk (SQLite,
//! "PRAGMA synchronous").

use super::*;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection as _, SqliteConnection};
use std::collections::HashMap;
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::process::Command;

/// Set in the process that is watched: the folder it works in.
const FOLDER: &str = "DEVMIND_TEST_CRASH_FOLDER";
/// And how: `full`, `full folded`, `normal`.
const MODE: &str = "DEVMIND_TEST_CRASH_MODE";
/// Calls that are taken.
const CALLS: usize = 14;
/// Bytes of their outputs, by turns.
const OUTPUT_BYTES: [usize; 3] = [50, 2_000, 9_000];
/// What survives without having been flushed happens in units of this many bytes.
const SECTOR: usize = 512;
/// How likely such a unit survives.
const SURVIVAL: [f64; 4] = [0.0, 0.3, 0.7, 1.0];
/// Every so many images is opened as the device opens it.
const OPEN_EVERY: usize = 50;

/// One thing that happened to a file.
enum Op {
    Write(String, usize, Vec<u8>),
    Cut(String, usize),
    Flush(String),
    Remove(String),
    /// The journal confirmed: this call has got so far.
    Confirmed(String, u8),
}

/// A call's steps by rank.
const RESERVED: u8 = 1;
const EXECUTING: u8 = 2;
const SETTLED: u8 = 3;

#[tokio::test]
async fn no_confirmed_step_is_lost_in_any_image_of_a_lost_power() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return take_calls(Path::new(&folder), &std::env::var(MODE).expect("a mode")).await;
    }
    let (mut images, mut lost, mut corrupt) = (0, 0, 0);
    // Once as it is, once with the log folded into the file all the time.
    for mode in ["full", "full folded"] {
        let found = examine(&record(mode)).await;
        println!("{mode}: {found:?}");
        (images, lost, corrupt) = (images + found.images, lost + found.lost, corrupt + found.corrupt);
    }
    assert!(images >= 4_000, "only {images} images");
    assert_eq!((lost, corrupt), (0, 0), "of {images}");
    let canary = examine(&record("normal")).await;
    println!("normal: {canary:?}");
    assert!(canary.lost > canary.images / 4, "the check finds a journal that loses steps: {canary:?}");
}

/// The journal at work.
async fn take_calls(folder: &Path, mode: &str) {
    let state = StateDir::open(&folder.join("state")).expect("state");
    let fold_every = if mode == "full folded" { 2 } else { u64::MAX };
    let mut journal = Journal::open_with(state, "instance", fold_every).await.expect("journal opens");
    if mode == "normal" {
        journal.commits.astray(std::fs::File::create(folder.join("elsewhere")).expect("a file"));
    }
    let mut marks = std::fs::File::create(folder.join("marks")).expect("marks");
    let mut confirm = |id: &str, rank: u8| marks.write_all(format!("{id} {rank}").as_bytes()).expect("mark");
    for n in 0..CALLS {
        let id = format!("call-{n}");
        journal.reserve(&request(&id), &owner("s")).await.expect("reserved");
        confirm(&id, RESERVED);
        assert!(journal.begin(&id.as_str().into()).await.expect("begun"));
        confirm(&id, EXECUTING);
        // Not compressible, and different each time.
        let output: String = (0..OUTPUT_BYTES[n % 3] / 32).map(|_| uuid::Uuid::now_v7().simple().to_string()).collect();
        journal
            .settle(&id.as_str().into(), &Settlement::succeeded(&json!({ "content": output })))
            .await
            .expect("settled");
        confirm(&id, SETTLED);
    }
}

/// Lets a process of its own take calls, and reads what strace saw.
fn record(mode: &str) -> Vec<Op> {
    let folder = tempfile::tempdir().expect("folder");
    let trace = folder.path().join("trace");
    let test = std::thread::current().name().expect("the test's name").to_owned();
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-y", "-xx", "-s", "1000000", "-e"]);
    strace.arg("trace=pwrite64,write,fsync,fdatasync,ftruncate,unlink").arg("-o").arg(&trace);
    strace.arg(std::env::current_exe().expect("this program")).args(["--exact", &test, "--nocapture"]);
    let ran = strace.env(FOLDER, folder.path()).env(MODE, mode).output().expect("strace: install it to run this test");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let text = std::fs::read_to_string(&trace).expect("a trace");
    let ops: Vec<Op> = text.lines().filter_map(op).collect();
    let count = |wanted: fn(&Op) -> bool| ops.iter().filter(|op| wanted(op)).count();
    assert_eq!(count(|op| matches!(op, Op::Confirmed(..))), 3 * CALLS, "the trace is whole");
    assert!(count(|op| matches!(op, Op::Write(..))) > 3 * CALLS && count(|op| matches!(op, Op::Flush(_))) > 0);
    ops
}

/// One line: `PID  call(FD</path>, "data", length, offset) = …`, all text in `\xhh`.
fn op(line: &str) -> Option<Op> {
    let (_, call) = line.split_once(' ')?;
    let (call, rest) = call.trim_start().split_once('(')?;
    if call == "unlink" {
        return Some(Op::Remove(journal_file(&bytes(between(rest, '"', '"')?))?));
    }
    let path = bytes(between(rest, '<', '>')?);
    let data = || between(rest, '"', '"').map(bytes);
    let last_number = || {
        let arguments = rest.split(" = ").next()?.split(" <unfinished").next()?;
        arguments.rsplit(", ").next()?.trim_end_matches(')').parse::<usize>().ok()
    };
    if call == "write" {
        if !path.ends_with(b"/marks") {
            return None;
        }
        let text = String::from_utf8(data()?).ok()?;
        let (id, rank) = text.split_once(' ')?;
        return Some(Op::Confirmed(id.to_owned(), rank.parse().ok()?));
    }
    let file = journal_file(&path)?;
    Some(match call {
        "pwrite64" => Op::Write(file, last_number()?, data()?),
        "ftruncate" => Op::Cut(file, last_number()?),
        "fsync" | "fdatasync" => Op::Flush(file),
        _ => return None,
    })
}

/// The name, if it is one of the journal's files that a restart reads.
fn journal_file(path: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(path).ok()?.rsplit('/').next()?.to_owned();
    ["journal.sqlite", "journal.sqlite-wal", "journal.sqlite-journal"].contains(&name.as_str()).then_some(name)
}

fn between(text: &str, open: char, close: char) -> Option<&str> {
    text.split_once(open)?.1.split_once(close).map(|(inside, _)| inside)
}

fn bytes(escaped: &str) -> Vec<u8> {
    escaped.split("\\x").skip(1).filter_map(|hex| u8::from_str_radix(hex.get(..2)?, 16).ok()).collect()
}

#[derive(Debug, Default)]
struct FoundImages {
    images: usize,
    lost: usize,
    corrupt: usize,
}

/// Files by name.
type Disk = HashMap<String, Vec<u8>>;

/// Makes and checks the images of every moment.
async fn examine(ops: &[Op]) -> FoundImages {
    let mut found = FoundImages::default();
    let (mut flushed, mut pending) = (Disk::new(), Vec::<&Op>::new());
    let mut confirmed: HashMap<&str, u8> = HashMap::new();
    let mut random = Random(7);
    for op in ops {
        match op {
            Op::Write(file, ..) | Op::Cut(file, _) => {
                flushed.entry(file.clone()).or_default();
                pending.push(op);
            }
            Op::Flush(file) => pending.retain(|op| {
                let is_its = name(op) == Some(file);
                if is_its {
                    apply(&mut flushed, op, |_| true);
                }
                !is_its
            }),
            Op::Remove(file) => {
                flushed.remove(file);
                pending.retain(|op| name(op) != Some(file));
            }
            Op::Confirmed(id, rank) => {
                confirmed.insert(id, *rank);
                continue;
            }
        }
        for survival in SURVIVAL {
            let mut image = flushed.clone();
            for op in &pending {
                apply(&mut image, op, |_| random.below(survival));
            }
            found.images += 1;
            let thoroughly = found.images % OPEN_EVERY == 0;
            match check(&image, &confirmed, thoroughly).await {
                Ok(()) => {}
                Err(Fault::Lost) => found.lost += 1,
                Err(Fault::Corrupt) => found.corrupt += 1,
            }
        }
    }
    found
}

fn name(op: &Op) -> Option<&String> {
    match op {
        Op::Write(file, ..) | Op::Cut(file, _) | Op::Flush(file) | Op::Remove(file) => Some(file),
        Op::Confirmed(..) => None,
    }
}

/// Does to the disk what survives of an operation.
fn apply(disk: &mut Disk, op: &Op, mut survives: impl FnMut(usize) -> bool) {
    match op {
        Op::Write(file, offset, data) => {
            let content = disk.entry(file.clone()).or_default();
            for (sector, part) in data.chunks(SECTOR).enumerate() {
                if !survives(sector) {
                    continue;
                }
                let at = offset + sector * SECTOR;
                if content.len() < at + part.len() {
                    content.resize(at + part.len(), 0);
                }
                content[at..at + part.len()].copy_from_slice(part);
            }
        }
        Op::Cut(file, bytes) if survives(0) => {
            disk.entry(file.clone()).or_default().truncate(*bytes);
        }
        Op::Cut(..) | Op::Flush(_) | Op::Remove(_) | Op::Confirmed(..) => {}
    }
}

enum Fault {
    Lost,
    Corrupt,
}

/// Opens an image and asks it for every confirmed step.
async fn check(image: &Disk, confirmed: &HashMap<&str, u8>, thoroughly: bool) -> Result<(), Fault> {
    let folder = tempfile::tempdir_in(fast_disk()).expect("folder");
    let state = folder.path().join("state");
    std::fs::DirBuilder::new().mode(0o700).create(&state).expect("folder");
    for (name, content) in image {
        std::fs::write(state.join(name), content).expect("file");
    }
    if thoroughly && !confirmed.is_empty() {
        let journal = open(folder.path()).await;
        for (id, rank) in confirmed {
            let row = journal.find(&(*id).into()).expect("readable").ok_or(Fault::Lost)?;
            let result = row.outcome.expect("settled by the start");
            let may_run = *rank >= EXECUTING && result.status == ResultStatus::Cancelled;
            if may_run || *rank == SETTLED && result.output.is_none() {
                return Err(Fault::Lost);
            }
        }
        return Ok(());
    }
    let rows = async {
        let options = SqliteConnectOptions::new().filename(state.join("journal.sqlite"));
        let mut connection = SqliteConnection::connect_with(&options).await?;
        let whole: String = sqlx::query_scalar("PRAGMA integrity_check").fetch_one(&mut connection).await?;
        let is_there = "SELECT count(*) FROM sqlite_schema WHERE name = 'calls'";
        let is_there: i64 = sqlx::query_scalar(is_there).fetch_one(&mut connection).await?;
        let rows: Vec<(String, String, bool)> = if is_there == 1 {
            let select = "SELECT tool_call_id, phase, output IS NOT NULL FROM calls";
            sqlx::query_as(select).fetch_all(&mut connection).await?
        } else {
            Vec::new()
        };
        connection.close().await?;
        Ok::<_, sqlx::Error>((whole, rows))
    };
    let (whole, rows) = match rows.await {
        Ok(read) => read,
        // Before the file's first flush there is nothing to lose.
        Err(_) if confirmed.is_empty() => return Ok(()),
        Err(_) => return Err(Fault::Corrupt),
    };
    if whole != "ok" {
        return Err(Fault::Corrupt);
    }
    let rank = |phase: &str, has_output: bool| match phase {
        "reserved" => RESERVED,
        "executing" => EXECUTING,
        _ if has_output => SETTLED,
        _ => 0,
    };
    let known: HashMap<&str, u8> =
        rows.iter().map(|(id, phase, has_output)| (id.as_str(), rank(phase, *has_output))).collect();
    let is_known = |(id, rank): (&&str, &u8)| known.get(*id).is_some_and(|known| known >= rank);
    if confirmed.iter().all(is_known) { Ok(()) } else { Err(Fault::Lost) }
}

/// Memory, where there is a folder of it: the images themselves need no disk.
fn fast_disk() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

/// SplitMix64: the same images in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, probability: f64) -> bool {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64 <= probability && probability > 0.0
    }
}
