//! The glob of a search: `*` and `?` stop at a separator, `**` does not, `{a,b}` and `[a-z]` as usual.
//!
//! A glob without a separator matches a name at any depth, as ignore files do.

use super::ToolFailure;
use devmind_domain::ErrorCode;
use globset::{GlobBuilder, GlobMatcher};

/// Compiles a glob for paths below the folder that is searched.
///
/// # Errors
/// `INVALID_ARGUMENTS` with what is wrong.
pub(super) fn compile(pattern: &str) -> Result<GlobMatcher, ToolFailure> {
    let bare = pattern.trim_start_matches("./");
    let anywhere = if bare.contains('/') { bare.to_owned() } else { format!("**/{bare}") };
    let glob = GlobBuilder::new(&anywhere).literal_separator(true).backslash_escape(true).build();
    glob.map(|glob| glob.compile_matcher()).map_err(|error| {
        ToolFailure::new(ErrorCode::InvalidArguments, format!("the glob cannot be used: {}", error.kind()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_name_matches_at_any_depth_and_a_star_stops_at_a_separator() {
        for (pattern, path, expected) in [
            ("*.rs", "main.rs", true),
            ("*.rs", "src/deep/main.rs", true),
            ("*.rs", "main.rs.txt", false),
            ("src/*.rs", "src/main.rs", true),
            ("./src/*.rs", "src/main.rs", true),
            ("src/*.rs", "src/deep/main.rs", false),
            ("src/**/*.rs", "src/main.rs", true),
            ("src/**/*.rs", "src/a/b/main.rs", true),
            ("*.{md,txt}", "docs/a.md", true),
            ("read?e.md", "readme.md", true),
            ("README*", "readme.md", false),
        ] {
            assert_eq!(compile(pattern).expect("a glob").is_match(path), expected, "{pattern} {path}");
        }
        for pattern in ["[a", "{a"] {
            assert_eq!(compile(pattern).err().map(|failure| failure.code), Some(ErrorCode::InvalidArguments));
        }
    }
}
