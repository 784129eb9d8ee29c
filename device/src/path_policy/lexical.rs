//! What a path says by itself, before the disk is touched.
//!
//! The forms of every operating system are judged on every operating system: a path that is
//! harmless here may have been written for, or may be carried to, another one.

use super::PathDenied;
use devmind_domain::ErrorCode;
use devmind_domain::limits::MAX_PATH_BYTES;

/// The components of a path that is relative and never climbs above the workspace.
///
/// # Errors
/// `INVALID_ARGUMENTS` (empty, over 4,096 bytes, NUL), `ABSOLUTE_PATH_DENIED`, `PATH_OUT_OF_SCOPE`.
pub fn components(path: &str) -> Result<Vec<&str>, PathDenied> {
    if path.is_empty() || path.len() > MAX_PATH_BYTES || path.contains('\0') {
        return Err(PathDenied::new(ErrorCode::InvalidArguments));
    }
    if is_absolute(path) {
        return Err(PathDenied::new(ErrorCode::AbsolutePathDenied));
    }
    let components: Vec<&str> = path.split(['/', '\\']).collect();
    let mut depth = 0usize;
    for component in &components {
        depth = match *component {
            "" | "." => depth,
            ".." => depth.checked_sub(1).ok_or(PathDenied::new(ErrorCode::PathOutOfScope))?,
            _ => depth + 1,
        };
    }
    Ok(components)
}

/// Whether any operating system would take the path as starting somewhere else than here:
/// `/x`, `\x`, `\\server\share`, `\\?\…`, `C:\x`, `C:x`.
pub fn is_absolute(path: &str) -> bool {
    let mut bytes = path.bytes();
    match (bytes.next(), bytes.next()) {
        (Some(b'/' | b'\\'), _) => true,
        (Some(letter), Some(b':')) => letter.is_ascii_alphabetic(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c18_climbing_above_the_workspace_is_refused_even_when_the_path_comes_back() {
        for path in ["..", "a/../..", "a/../../a", r"..\x", r"a\..\..\x", "./..", "../ws/x"] {
            assert_eq!(components(path).map_err(|denied| denied.code), Err(ErrorCode::PathOutOfScope), "{path}");
        }
        for path in ["..foo", "a/..", "a/b/../../c", "...", "a..b"] {
            assert!(components(path).is_ok(), "{path}");
        }
    }

    #[test]
    fn a_path_at_its_longest_is_judged_and_one_byte_more_is_not() {
        assert!(components(&"x".repeat(MAX_PATH_BYTES)).is_ok());
        let code = components(&"x".repeat(MAX_PATH_BYTES + 1)).err().map(|denied| denied.code);
        assert_eq!(code, Some(ErrorCode::InvalidArguments));
    }
}
