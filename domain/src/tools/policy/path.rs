//! A path as it is written, without its detours: what patterns and grants compare.
//!
//! Nothing here touches a disk. Links, case and what a name really leads to are the device's to judge, which it does
//! again on the opened file.

/// The path without empty parts, `.` and `..`, with `/` between its parts: `./a//b/../c` is `a/c`, nothing is `.`.
/// A `\` separates, too, as it does where the path may be carried to. What climbs out of its beginning keeps its `..`.
pub fn plain_path(path: &str) -> String {
    let rooted = path.starts_with(['/', '\\']);
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split(['/', '\\']) {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            ".." if rooted => {}
            part => parts.push(part),
        }
    }
    match (rooted, parts.is_empty()) {
        (true, _) => format!("/{}", parts.join("/")),
        (false, true) => ".".to_owned(),
        (false, false) => parts.join("/"),
    }
}

/// Whether a plain path is a folder or below it, part by part.
pub(crate) fn is_within(path: &str, folder: &str) -> bool {
    match folder {
        "." => !path.starts_with('/') && path != ".." && !path.starts_with("../"),
        "/" => path.starts_with('/'),
        folder => path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detours_are_taken_out_and_what_climbs_out_is_seen_to() {
        for (written, plain) in [
            ("", "."),
            (".", "."),
            ("./", "."),
            ("a/..", "."),
            ("./a//b/../c", "a/c"),
            (r"docs\..\secrets\a", "secrets/a"),
            ("docs/../../x", "../x"),
            ("../../x", "../../x"),
            ("/..//etc/./passwd", "/etc/passwd"),
            ("/", "/"),
            ("a/b/", "a/b"),
            ("..foo/...", "..foo/..."),
        ] {
            assert_eq!(plain_path(written), plain, "{written}");
        }
    }

    #[test]
    fn a_folder_holds_what_is_below_it_part_by_part() {
        for (path, folder, within) in [
            ("docs/a.md", "docs", true),
            ("docs", "docs", true),
            ("docs2/a.md", "docs", false),
            ("a/docs/x", "docs", false),
            ("anything/at/all", ".", true),
            ("../x", ".", false),
            ("..", ".", false),
            ("..x", ".", true),
            ("/etc", ".", false),
            ("/etc", "/", true),
            ("/etc/x", "/etc", true),
        ] {
            assert_eq!(is_within(path, folder), within, "{path} in {folder}");
        }
    }
}
