//! Names that hold secrets.
//!
//! Whole components are matched, never parts of them: `env.md` is a document, `.env` is not. Names
//! are compared as the most forgiving file system would ([`fold`]); the path that is opened is
//! never folded.
//!
//! Decided here, where either answer was defensible: `.envrc`, `.gitconfig`, `.yarnrc.yml`,
//! `*.key`, `*.env`, Terraform state and variables, other version control folders and Windows short
//! names of all of these are sensitive, and so are copies of a sensitive file (`.bak`, `.old`,
//! `~` …). `.env.example`, `.env.sample`, `.env.template`, `id_rsa.pub`, `*.crt`, `.gitignore` and
//! `.github/` are not.

use crate::text::is_invisible;
use unicode_normalization::UnicodeNormalization;

/// Folders and files that are sensitive by their whole (folded) name.
const NAMES: &[&str] = &[
    ".env",
    ".envrc",
    ".git",
    ".gitconfig",
    ".git-credentials",
    ".hg",
    ".svn",
    ".bzr",
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    ".pypirc",
    ".netrc",
    "_netrc",
    ".pgpass",
    ".my.cnf",
    ".mylogin.cnf",
    ".dockercfg",
    ".s3cfg",
    ".boto",
    ".vault-token",
    ".terraformrc",
    "terraform.rc",
    ".password-store",
    ".1password",
    ".htpasswd",
    ".bash_history",
    ".zsh_history",
    ".sh_history",
    ".ksh_history",
    ".psql_history",
    ".mysql_history",
    ".sqlite_history",
    ".python_history",
    ".node_repl_history",
    ".rediscli_history",
    "fish_history",
    "consolehost_history.txt",
    "kubeconfig",
    "login.keychain-db",
    "logins.json",
    "key4.db",
    "credentials.json",
    "secrets.json",
    "serviceaccountkey.json",
    "application_default_credentials.json",
    "wallet.dat",
];

/// A name that is sensitive within this folder only.
const PAIRS: &[(&str, &str)] = &[
    (".docker", "config.json"),
    (".config", "gcloud"),
    (".config", "gh"),
    (".gem", "credentials"),
    (".m2", "settings.xml"),
    (".m2", "settings-security.xml"),
    (".cargo", "credentials"),
    (".cargo", "credentials.toml"),
    ("gcloud", "credentials.db"),
    ("gcloud", "access_tokens.db"),
    ("gcloud", "legacy_credentials"),
];

/// How the names of keys, key stores, state and variables end.
const SUFFIXES: &[&str] = &[
    ".env",
    ".pem",
    ".key",
    ".p8",
    ".p12",
    ".pfx",
    ".ppk",
    ".keystore",
    ".jks",
    ".kdb",
    ".kdbx",
    ".ovpn",
    ".kubeconfig",
    ".tfstate",
    ".tfvars",
];

/// Private keys, by the name their tools give them; the public half (`.pub`) is not sensitive.
const PRIVATE_KEYS: &[&str] = &["id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk"];

/// How copies of a file are called; the copy of a secret is a secret.
const COPIES: &[&str] = &[".bak", ".backup", ".old", ".orig", ".save", ".swp", ".swo", ".tmp", ".copy", "~"];

/// Endings that make a `.env.*` a template without secrets.
const TEMPLATES: &[&str] = &[".example", ".sample", ".template"];

/// Characters that Windows keeps of a name in its short (8.3) form.
const SHORT_NAME_STEM: usize = 6;

/// Whether `name`, standing in the folder `parent`, is sensitive.
pub fn is_sensitive(parent: Option<&str>, name: &str) -> bool {
    let name = fold(name);
    if parent.is_some_and(|parent| {
        let parent = fold(parent);
        PAIRS.iter().any(|(folder, within)| *folder == parent && *within == name)
    }) {
        return true;
    }
    is_secret(&name) || is_short_name(&name) || without_copy(&name).is_some_and(|original| is_secret(&original))
}

/// A name as the most forgiving file system compares it: compatibility forms merged (NFKC),
/// invisible characters dropped, letter case ignored, cut at a Windows stream's `:`, without the
/// dots and spaces that Windows drops at the end.
///
/// Case is folded by way of upper case, which Unicode's full case folding agrees with for every
/// letter that occurs in the lists; where the two differ (`ı`) this one folds more.
pub fn fold(name: &str) -> String {
    let shown: String = name.nfkc().filter(|character| !is_invisible(*character)).collect();
    let folded: String = shown.to_uppercase().to_lowercase().nfkc().filter(|c| !is_invisible(*c)).collect();
    let file = folded.split(':').next().unwrap_or_default();
    file.trim_end_matches(['.', ' ']).to_owned()
}

fn is_secret(name: &str) -> bool {
    NAMES.contains(&name)
        || PRIVATE_KEYS.iter().any(|key| {
            // `id_rsa` and `id_rsa_work`, but not `id_rsa.pub` nor `id_rsa_howto.md`.
            name.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('_') && !rest.contains('.'))
        })
        || [".env.", ".env-", ".env_"].iter().any(|prefix| name.starts_with(prefix))
            && !TEMPLATES.iter().any(|template| name.ends_with(template))
        || SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
        || name.starts_with("client_secret") && name.ends_with(".json")
}

/// The name of which this one is a copy, all its copy endings (and an editor's leading dot) taken
/// off.
fn without_copy(name: &str) -> Option<String> {
    let mut original = name;
    while let Some(shorter) = COPIES.iter().find_map(|copy| original.strip_suffix(copy)) {
        original = shorter;
    }
    if original == name || original.is_empty() {
        return None;
    }
    // Vim keeps `id_rsa` in `.id_rsa.swp`.
    let editors = original.strip_prefix('.').filter(|bare| is_secret(bare));
    Some(editors.unwrap_or(original).to_owned())
}

/// Whether it is the short form (`GIT~1`) of a sensitive dot name.
fn is_short_name(name: &str) -> bool {
    let Some((stem, rest)) = name.split_once('~') else { return false };
    let numbered = rest.starts_with(|c: char| c.is_ascii_digit());
    numbered
        && NAMES.iter().filter_map(|known| known.strip_prefix('.')).any(|known| {
            let short: String = known.chars().filter(|c| *c != '.').take(SHORT_NAME_STEM).collect();
            short == stem
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_by_every_spelling_a_file_system_may_take_for_them() {
        for name in [
            ".env",
            ".ENV",
            ".env.",
            ".env ",
            ".env. .",
            ".env::$DATA",
            ".e\u{200b}nv",
            "．env",
            "\t.env",
            ".env.local",
            ".env.bak",
            ".env~",
            ".env-prod",
            "prod.env",
            ".envrc",
            ".Git",
            "GIT~1",
            "ENV~1",
            "git~2",
            "id_rsa",
            "ID_RSA",
            "id_rsa.old",
            "id_rsa_work",
            ".id_rsa.swp",
            "server.ｐｅｍ",
            "tls.key.bak",
            ".ſsh",
            "terraform.tfstate",
            "terraform.tfstate.backup",
            "client_secret_1.json",
            "ConsoleHost_history.txt",
            "id_ed25519",
        ] {
            assert!(is_sensitive(None, name), "{name:?}");
        }
    }

    #[test]
    fn look_alikes_and_templates_are_ordinary_names() {
        for name in [
            "env.md",
            "environment.ts",
            ".envoy.yaml",
            "README.env.md",
            ".env.example",
            ".env.sample",
            ".env.template",
            "..foo",
            "...",
            "id_rsa.pub",
            "id_rsa.md",
            "id_rsa_howto.md",
            "cert.crt",
            ".gitignore",
            ".github",
            "my.git.notes.md",
            "key.ts",
            "monkey.txt",
            "keystore.rs",
            "kube",
            "git",
            "ssh-keys.md",
            "a.bak",
            "~",
            ".bak",
            "config.json",
        ] {
            assert!(!is_sensitive(None, name), "{name:?}");
        }
    }

    #[test]
    fn some_names_are_secrets_only_in_their_folder() {
        assert!(is_sensitive(Some(".docker"), "config.json"));
        assert!(is_sensitive(Some(".DOCKER"), "Config.JSON"));
        assert!(!is_sensitive(Some("docker"), "config.json"));
        assert!(is_sensitive(Some(".config"), "gh"));
    }
}
