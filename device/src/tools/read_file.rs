//! `workspace.read_file`: a part of a UTF-8 text file.
//!
//! Parts rejoin exactly: each ends on a character's end and names the offset of the next. An offset
//! within a character is moved back to its beginning (the answer's `offset` says where it began), and
//! a part holds at least one character, however small `max_bytes` is. `sha256` is of the bytes in
//! `content`: of the whole file when the whole file was read. A NUL makes a file binary.

use super::{Execution, LocalTool, Prepared, Subject, ToolFailure, number, text};
use crate::path_policy::{OpenedFile, PathDenied};
use crate::text::whole_characters;
use crate::workspace::Workspace;
use devmind_domain::ErrorCode;
use devmind_domain::canonical::sha256_hex;
use devmind_domain::limits::MAX_READ_BYTES;
use serde_json::{Value, json};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

/// Bytes read between two looks at the limits.
const CHUNK_BYTES: usize = 64 << 10;
/// The longest UTF-8 character (bytes), and how far back its beginning may lie.
const MAX_CHARACTER_BYTES: u64 = 4;

/// The tool.
pub struct ReadFile;

impl LocalTool for ReadFile {
    fn name(&self) -> &'static str {
        "workspace.read_file"
    }

    fn judge(&self, workspace: &Workspace, path: &str) -> Result<(), PathDenied> {
        workspace.open_file(path).map(drop)
    }

    fn prepare(&self, workspace: &Arc<Workspace>, arguments: &Value) -> Result<Box<dyn Prepared>, ToolFailure> {
        let path = text(arguments, "path", "").to_owned();
        let opened = workspace.open_file(&path)?;
        Ok(Box::new(Reading {
            workspace: workspace.clone(),
            path,
            opened,
            offset: number(arguments, "offset", 0),
            max_bytes: number(arguments, "max_bytes", MAX_READ_BYTES).min(MAX_READ_BYTES),
        }))
    }
}

struct Reading {
    workspace: Arc<Workspace>,
    path: String,
    opened: OpenedFile,
    offset: u64,
    max_bytes: u64,
}

impl Prepared for Reading {
    fn subject(&self) -> Option<Subject> {
        Some(Subject { resolved_path: self.opened.resolved.clone(), facts: Some(self.opened.facts.clone()) })
    }

    /// The path leads to the same file, and nobody has written to it.
    fn is_unchanged(&self) -> bool {
        self.workspace.open_file(&self.path).is_ok_and(|now| now.facts == self.opened.facts)
    }

    fn run(self: Box<Self>, execution: &Execution) -> Result<Value, ToolFailure> {
        let size = self.opened.file.metadata().map_err(|error| ToolFailure::io(&error))?.len();
        let part = read_part(&self.opened.file, self.offset, self.max_bytes, execution)?;
        let next_offset = (!part.at_end).then_some(part.offset + part.content.len() as u64);
        Ok(json!({
            "path": self.path,
            "sha256": sha256_hex(part.content.as_bytes()),
            "content": part.content,
            "size": size,
            "offset": part.offset,
            "truncated": next_offset.is_some(),
            "next_offset": next_offset,
        }))
    }
}

struct Part {
    offset: u64,
    content: String,
    at_end: bool,
}

/// Reads whole characters from `offset` on.
fn read_part(file: &File, offset: u64, max_bytes: u64, execution: &Execution) -> Result<Part, ToolFailure> {
    let not_text = || ToolFailure::new(ErrorCode::NotText, "only UTF-8 text can be read, and this is something else");
    // One character to either side of the part, to find where the first begins and whether the
    // last is whole.
    let from = offset.saturating_sub(MAX_CHARACTER_BYTES - 1);
    let window = read_window(file, from, offset - from + max_bytes + MAX_CHARACTER_BYTES, execution)?;
    let asked = usize::try_from(offset - from).unwrap_or(usize::MAX);
    let Some(begin) = beginning_of_character(&window, asked) else {
        // Nothing stands at the offset: the file ends before it.
        return Ok(Part { offset, content: String::new(), at_end: true });
    };
    let text = window.get(begin..).unwrap_or_default();
    let wanted = usize::try_from(max_bytes).unwrap_or(usize::MAX);
    let valid = match std::str::from_utf8(text) {
        Ok(valid) => valid,
        // Beyond what was asked for: a character cut by the window, or the next part's problem.
        Err(error) if error.valid_up_to() >= wanted => {
            std::str::from_utf8(&text[..error.valid_up_to()]).map_err(|_| not_text())?
        }
        Err(_) => return Err(not_text()),
    };
    let first = valid.chars().next().map_or(0, char::len_utf8);
    let content = whole_characters(valid, wanted.max(first));
    if content.contains('\0') {
        return Err(not_text());
    }
    let at_end = begin + content.len() == window.len();
    Ok(Part { offset: from + begin as u64, content: content.to_owned(), at_end })
}

/// Where the character begins that the byte at `asked` belongs to; `None` past the end. Bytes that
/// belong to no character are left to the check that follows.
fn beginning_of_character(window: &[u8], asked: usize) -> Option<usize> {
    window.get(asked)?;
    let is_continuation = |at: usize| window.get(at).is_some_and(|byte| byte & 0b1100_0000 == 0b1000_0000);
    let mut begin = asked;
    while begin > 0 && is_continuation(begin) {
        begin -= 1;
    }
    Some(begin)
}

/// Up to `length` bytes from `from`, less only at the file's end.
fn read_window(file: &File, from: u64, length: u64, execution: &Execution) -> Result<Vec<u8>, ToolFailure> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let mut window = Vec::new();
    let mut chunk = vec![0; CHUNK_BYTES.min(length)];
    while window.len() < length {
        execution.check()?;
        let room = chunk.len().min(length - window.len());
        match file.read_at(&mut chunk[..room], from + window.len() as u64) {
            Ok(0) => break,
            Ok(read) => window.extend_from_slice(&chunk[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(ToolFailure::io(&error)),
        }
    }
    Ok(window)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::time::{Duration, Instant};
    use tokio_util::sync::CancellationToken;

    fn file(content: &[u8]) -> File {
        let mut file = tempfile::tempfile().expect("file");
        file.write_all(content).expect("written");
        file
    }

    fn execution() -> Execution {
        let ends_at = Instant::now() + Duration::from_secs(60);
        Execution { tool_call_id: "call".into(), ends_at, cancel: CancellationToken::new() }
    }

    fn part(content: &[u8], offset: u64, max_bytes: u64) -> Result<Part, ErrorCode> {
        read_part(&file(content), offset, max_bytes, &execution()).map_err(|failure| failure.code)
    }

    /// One to four bytes a character, in several orders, with and without a line's end.
    const TEXTS: [&str; 6] = ["", "a", "😀", "aé日😀😀日éa\n", "日本語テスト", "x😀y日zé\r\n"];

    #[test]
    fn c20_parts_of_any_size_rejoin_to_exactly_the_file() {
        for text in TEXTS {
            for max_bytes in 1..=12 {
                let (mut joined, mut offset) = (String::new(), 0);
                loop {
                    let part = part(text.as_bytes(), offset, max_bytes).expect("text");
                    assert_eq!(part.offset, offset, "{text:?} by {max_bytes}");
                    assert!(part.content.len() as u64 <= max_bytes || part.content.chars().count() == 1);
                    joined.push_str(&part.content);
                    offset += part.content.len() as u64;
                    if part.at_end {
                        break;
                    }
                    assert!(!part.content.is_empty(), "{text:?} by {max_bytes} stands still at {offset}");
                }
                assert_eq!(joined, text, "by {max_bytes}");
            }
        }
    }

    #[test]
    fn an_offset_within_a_character_begins_at_that_character() {
        for text in TEXTS {
            for offset in 0..text.len() as u64 + 3 {
                let part = part(text.as_bytes(), offset, 100).expect("text");
                assert!(part.at_end && part.offset <= offset);
                let begin = usize::try_from(part.offset).expect("small");
                assert_eq!(part.content, text.get(begin..).unwrap_or_default(), "{text:?} from {offset}");
            }
        }
    }

    #[test]
    fn what_is_not_utf_8_text_is_refused_in_the_part_where_it_stands() {
        for bytes in [&b"ab\xff"[..], b"\x80\x80\x80\x80", b"a\0b", b"cut \xf0\x9f\x98", b"\xed\xa0\x80"] {
            assert_eq!(part(bytes, 0, 100).map(|part| part.content), Err(ErrorCode::NotText), "{bytes:?}");
        }
        assert_eq!(part(b"ab\xff", 0, 2).map(|part| part.content), Ok("ab".to_owned()));
        assert_eq!(part(b"ab\xff", 2, 2).map(|part| part.content), Err(ErrorCode::NotText));
    }

    #[test]
    fn reading_stops_at_the_next_chunk_when_taken_back_or_out_of_time() {
        let content = vec![b'x'; CHUNK_BYTES * 2];
        let cancelled = execution();
        cancelled.cancel.cancel();
        let code =
            |execution: &Execution| read_part(&file(&content), 0, 1, execution).err().map(|failure| failure.code);
        assert_eq!(code(&cancelled), Some(ErrorCode::CancelledByServer));
        let late = Execution { ends_at: Instant::now(), ..execution() };
        assert_eq!(code(&late), Some(ErrorCode::ExecutionTimeout));
    }
}
