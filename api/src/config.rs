//! The server's settings: defaults < file < environment < flags.

use crate::identity::{Caller, Identities, is_user_name};
use crate::lifecycle::{LEDGER_FILE, VIEWS_FILE};
use crate::limits::Limits;
use crate::mcp;
pub use crate::mcp::McpConfig;
pub use crate::model::{ModelConfig, Provider};
use crate::nodes::{MAX_NODE_LEASE_MS, MIN_NODE_LEASE_MS, NODE_LEASE_MS};
use devmind_domain::ErrorCode;
use devmind_domain::event::Role;
use devmind_domain::limits::{APPROVAL_LIFETIME_MS, MODEL_FIRST_BYTE_MS, MODEL_IDLE_MS};
use devmind_domain::tools::{PolicyRule, Rules};
use devmind_ledger::{Place, PostgresUrl};
use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The file that is read when it is there and no other is named.
pub const DEFAULT_FILE: &str = "devmind.toml";

/// The server's settings. Unknown keys are refused.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// Where to listen, `IP:PORT`.
    pub listen: String,
    /// The folder of the ledger and its views, where no database is named.
    pub data: PathBuf,
    /// The PostgreSQL database of the ledger and its views: `postgres://…`; absent: SQLite in `data`.
    pub database_url: Option<DatabaseUrl>,
    /// Whether a database may be used whose settings let acknowledged events be lost.
    pub accept_data_loss: bool,
    /// This process's name; two processes never share one. Absent: `local`, and in a database one that is made at
    /// the first start and kept in `data`.
    pub node_id: Option<String>,
    /// A process in a database that did not renew its lease for so long counts as lost (milliseconds).
    pub node_lease_ms: u64,
    /// Whether `X-Dev-User` names the user, on a loopback address only. Absent: as long as nobody has a token.
    pub development: Option<bool>,
    /// People with a token.
    pub users: Vec<TokenUser>,
    /// Browser origins (`https://host:port`) that may open the device socket.
    pub allowed_origins: Vec<String>,
    /// The model; absent: the built-in demo model.
    pub model: Option<ModelConfig>,
    /// Wait for the first byte of a model's answer (milliseconds).
    pub model_first_byte_ms: u64,
    /// Silence allowed within a model's answer (milliseconds).
    pub model_idle_ms: u64,
    /// How long a person may take to answer an approval (milliseconds); 0: for ever.
    pub approval_lifetime_ms: i64,
    /// MCP servers whose tools are offered, too.
    pub mcp: Vec<McpConfig>,
    /// Whether people are asked about calls in the conversation. Without it, a call that somebody would be asked about is
    /// refused (`APPROVAL_UNAVAILABLE`); what a device asks its user stays.
    pub approvals: bool,
    /// Rules about calls of tools, in their order; the first that is about a call counts.
    pub policies: Vec<PolicyRule>,
    /// How much others may have of the process.
    pub limits: Limits,
    /// The file of the key that signs checkpoints; absent: one that is made in the data folder.
    pub checkpoint_key: Option<PathBuf>,
    /// Whether the model writes programs that call the tools, instead of calling them itself.
    pub code_mode: CodeMode,
}

/// Code mode: the model sees `run_code` alone.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CodeMode {
    /// Whether it is on.
    pub enabled: bool,
    /// The `devmind` that runs programs, each in a process of its own; absent: this one.
    pub executable: Option<PathBuf>,
    /// What one program may use.
    pub limits: devmind_code_mode::Limits,
}

/// A person with a token.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenUser {
    /// The name.
    pub name: String,
    /// SHA-256 of the token, hexadecimal; `devmind token` makes both.
    pub token_sha256: String,
    /// `user`, `auditor` (reads everything, changes nothing) or `operator` (reads everything).
    #[serde(default)]
    pub role: Role,
    /// Whether the token counts no more.
    #[serde(default)]
    pub disabled: bool,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8787".to_owned(),
            data: "data".into(),
            database_url: None,
            accept_data_loss: false,
            node_id: None,
            node_lease_ms: NODE_LEASE_MS,
            development: None,
            users: Vec::new(),
            allowed_origins: Vec::new(),
            model: None,
            model_first_byte_ms: MODEL_FIRST_BYTE_MS,
            model_idle_ms: MODEL_IDLE_MS,
            approval_lifetime_ms: APPROVAL_LIFETIME_MS,
            mcp: Vec::new(),
            approvals: true,
            policies: Vec::new(),
            limits: Limits::default(),
            checkpoint_key: None,
            code_mode: CodeMode::default(),
        }
    }
}

/// The address of a database as it was given; it may hold a password, so it is not shown.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DatabaseUrl(pub String);

impl std::fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// A setting that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ConfigError {
    /// The stable code.
    pub code: ErrorCode,
    /// Which setting, and what is wrong with it.
    pub message: String,
}

impl ConfigError {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self { code: ErrorCode::ConfigInvalid, message: message.into() }
    }
}

/// What flags say; absent ones say nothing.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Flags {
    /// `--listen`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// `--data`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<PathBuf>,
    /// `--database-url`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub database_url: Option<DatabaseUrl>,
    /// `--accept-data-loss`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accept_data_loss: Option<bool>,
    /// `--node-id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_id: Option<String>,
}

impl ServerConfig {
    /// Reads defaults, file, environment (`DEVMIND_…`, `MODEL_…`, `DATABASE_URL`) and flags, in this order.
    ///
    /// # Errors
    /// `CONFIG_INVALID` naming the setting.
    pub fn load(file: Option<&Path>, flags: &Flags) -> Result<Self, ConfigError> {
        let mut figment = Figment::from(Serialized::defaults(Self::default()));
        match file {
            Some(file) if !file.is_file() => {
                return Err(ConfigError::invalid(format!("no configuration file {}", file.display())));
            }
            Some(file) => figment = figment.merge(Toml::file_exact(file)),
            // The working folder's file, never one of a folder above.
            None if Path::new(DEFAULT_FILE).is_file() => figment = figment.merge(Toml::file_exact(DEFAULT_FILE)),
            None => {}
        }
        // Named one by one: other programs of the family read other variables of the same prefix.
        let own = [
            "listen",
            "data",
            "accept_data_loss",
            "node_id",
            "node_lease_ms",
            "development",
            "model_first_byte_ms",
            "model_idle_ms",
            "approval_lifetime_ms",
            "approvals",
            "checkpoint_key",
        ];
        let config: Self = figment
            .merge(Env::prefixed("DEVMIND_").only(&own))
            .merge(Env::raw().only(&["database_url"]))
            .merge(Serialized::defaults(flags))
            .extract()
            .map_err(|error| ConfigError::invalid(without_excerpt(&error.to_string())))?;
        let model = ModelConfig::with_environment(config.model, |name| std::env::var(name).ok())?;
        Self { model, ..config }.checked()
    }

    fn checked(self) -> Result<Self, ConfigError> {
        let address = self.address()?;
        self.places()?;
        if self.node_id.as_ref().is_some_and(|name| !is_user_name(name)) {
            return Err(ConfigError::invalid("node_id: 1-64 letters, digits, . _ @ -"));
        }
        for (index, user) in self.users.iter().enumerate() {
            let hash = &user.token_sha256;
            // One token is one person in one role, or it would depend on the file's order who is asking.
            if self.users[..index].iter().any(|earlier| earlier.token_sha256.eq_ignore_ascii_case(hash)) {
                return Err(ConfigError::invalid(format!("users: token_sha256 of {} stands twice", user.name)));
            }
            if !is_user_name(&user.name) {
                return Err(ConfigError::invalid(format!("users: the name {:?} cannot be used", user.name)));
            }
            if hash.len() != 64 || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(ConfigError::invalid(format!("users: token_sha256 of {} is no SHA-256", user.name)));
            }
        }
        if !address.ip().is_loopback() && self.users.iter().all(|user| user.disabled) {
            return Err(ConfigError::invalid(format!(
                "listen: {address} can be reached from other machines, and no user has a token; \
                 run `devmind token --user NAME` and put its line into {DEFAULT_FILE}"
            )));
        }
        if !self.is_development() && self.users.iter().all(|user| user.disabled) {
            return Err(ConfigError::invalid("development is off and no user has a token: nobody could ask"));
        }
        if !(MIN_NODE_LEASE_MS..=MAX_NODE_LEASE_MS).contains(&self.node_lease_ms) {
            return Err(ConfigError::invalid(format!("node_lease_ms: {MIN_NODE_LEASE_MS}-{MAX_NODE_LEASE_MS}")));
        }
        if self.model_first_byte_ms == 0 || self.model_idle_ms == 0 {
            return Err(ConfigError::invalid("model_first_byte_ms and model_idle_ms must not be 0"));
        }
        if let Some(problem) = self.limits.problem() {
            return Err(ConfigError::invalid(problem));
        }
        self.rules()?;
        if let Some(model) = &self.model {
            model.check()?;
        }
        mcp::config::check(&self.mcp)?;
        Ok(self)
    }

    /// The rules about calls of tools.
    ///
    /// # Errors
    /// `CONFIG_INVALID` naming the first rule that cannot be used.
    pub fn rules(&self) -> Result<Rules, ConfigError> {
        Rules::new(&self.policies).map_err(|error| ConfigError::invalid(error.to_string()))
    }

    /// Where the log is kept, and where the views are.
    ///
    /// # Errors
    /// `CONFIG_INVALID` for a database's address that cannot be used.
    pub fn places(&self) -> Result<(Place, Place), ConfigError> {
        let Some(DatabaseUrl(url)) = &self.database_url else {
            return Ok((Place::File(self.data.join(LEDGER_FILE)), Place::File(self.data.join(VIEWS_FILE))));
        };
        let url: PostgresUrl =
            url.parse().map_err(|error| ConfigError::invalid(format!("database_url (DATABASE_URL): {error}")))?;
        let place = Place::Postgres(url.accepting_data_loss(self.accept_data_loss));
        Ok((place.clone(), place))
    }

    /// Where to listen.
    ///
    /// # Errors
    /// `ADDRESS_INVALID`.
    pub fn address(&self) -> Result<SocketAddr, ConfigError> {
        self.listen.parse().map_err(|_| ConfigError {
            code: ErrorCode::AddressInvalid,
            message: format!("listen: {:?} is not IP:PORT", self.listen),
        })
    }

    /// Whether the development headers may count: unless it is said, as long as nobody has a token.
    fn is_development(&self) -> bool {
        self.development.unwrap_or(self.users.is_empty())
    }

    /// Who may ask. The development headers never count where other machines can reach the server.
    pub fn identities(&self) -> Identities {
        let loopback = self.address().is_ok_and(|address| address.ip().is_loopback());
        let tokens = self.users.iter().filter(|user| !user.disabled).map(|user| {
            (user.token_sha256.to_lowercase(), Caller { user_id: user.name.as_str().into(), role: user.role })
        });
        Identities { tokens: tokens.collect(), development: self.is_development() && loopback }
    }
}

/// The message without the lines of the file that it quotes: a key may be in them.
fn without_excerpt(message: &str) -> String {
    let quoted = |line: &str| line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ').starts_with('|');
    message.lines().filter(|line| !quoted(line)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(file_text: &str, flags: Flags) -> Result<ServerConfig, String> {
        let folder = tempfile::tempdir().expect("folder");
        let file = folder.path().join("devmind.toml");
        std::fs::write(&file, file_text).expect("written");
        ServerConfig::load(Some(&file), &flags).map_err(|error| format!("{} {error}", error.code))
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let config =
            load("listen = \"127.0.0.1:1\"\nnode_id = \"a\"", Flags { node_id: Some("b".into()), ..Flags::default() });
        let config = config.expect("good");
        assert_eq!((config.listen.as_str(), config.node_id.as_deref()), ("127.0.0.1:1", Some("b")));
        assert_eq!(config.data, PathBuf::from("data"));
    }

    #[test]
    fn development_identities_end_with_the_first_token_unless_they_are_asked_for() {
        let user = format!("[[users]]\nname = \"ann\"\ntoken_sha256 = \"{}\"\n", "0".repeat(64));
        for (text, expected) in [
            (String::new(), true),
            (user.clone(), false),
            (format!("development = true\n{user}"), true),
            (format!("development = false\n{user}"), false),
            (format!("development = true\nlisten = \"0.0.0.0:1\"\n{user}"), false),
        ] {
            let config = load(&text, Flags::default()).expect("good");
            assert_eq!(config.identities().development, expected, "{text}");
        }
    }

    #[test]
    fn settings_that_cannot_be_used_are_named() {
        for (text, complaint) in [
            ("listne = \"127.0.0.1:1\"", "listne"),
            ("listen = \"localhost\"", "ADDRESS_INVALID"),
            ("listen = \"0.0.0.0:1\"", "devmind token"),
            ("node_id = \"a/b\"", "node_id"),
            ("node_lease_ms = 1", "node_lease_ms"),
            ("development = false", "nobody could ask"),
            ("[[users]]\nname = \"ann\"\ntoken_sha256 = \"12\"", "token_sha256"),
            ("[[users]]\nname = \"ann\"\ntoken_sha256 = \"12\"\nrole = \"root\"", "root"),
            (&[user("ann", 'a', ""), user("bob", 'A', "")].concat(), "stands twice"),
            (&["listen = \"0.0.0.0:1\"\n".to_owned(), user("ann", 'a', "disabled = true")].concat(), "devmind token"),
            ("[[policies]]\nid = \"r\"\ndecision = \"alow\"", "policies.0.decision"),
            ("[[policies]]\nid = \"r\"\ndecision = \"deny\"\ntoll = \"a\"", "toll"),
            ("[[policies]]\nid = \"r\"\ndecision = \"deny\"\ntool = \"[\"", "policies: rule 1 (\"r\"): tool"),
            ("[limits]\nconnections = 0", "limits.connections"),
            ("[limits]\nconections = 1", "conections"),
            ("[model]\nbase_url = \"ftp://x\"\nname = \"m\"", "MODEL_BASE_URL"),
        ] {
            let error = load(text, Flags::default()).expect_err(text);
            assert!(error.contains(complaint), "{text}: {error}");
        }
    }

    fn user(name: &str, digit: char, more: &str) -> String {
        format!("[[users]]\nname = \"{name}\"\ntoken_sha256 = \"{}\"\n{more}\n", digit.to_string().repeat(64))
    }

    #[test]
    fn a_person_is_a_user_unless_another_role_is_given_and_a_disabled_token_is_nobodys() {
        let users = [user("ann", 'A', ""), user("bob", 'b', "role = \"auditor\""), user("eve", 'e', "disabled = true")];
        let identities = load(&users.concat(), Flags::default()).expect("good").identities();
        let caller = |digit: char| identities.tokens.get(&digit.to_string().repeat(64)).cloned();
        assert_eq!(caller('a'), Some(Caller { user_id: "ann".into(), role: Role::User }));
        assert_eq!(caller('b'), Some(Caller { user_id: "bob".into(), role: Role::Auditor }));
        assert_eq!(caller('e'), None);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_refused_without_repeating_its_key() {
        for (text, complaint) in [
            ("[model]\nname = \"m\"\napi_key = \"sk-secret\nbase_url = \"http://x\"", "line 3"),
            ("[model]\nname = \"m\"\napi_key = [\"sk-secret\"]", "api_key"),
            ("[model]\nname = \"m\"\napi_key = 1234567", "api_key"),
            ("[model]\nname = \"m\"\napikey = \"sk-secret\"", "apikey"),
            ("[model]\nname = \"m\"\nprovider = \"azure\"", "provider"),
        ] {
            let error = load(text, Flags::default()).expect_err(text);
            assert!(error.contains(complaint), "{text}: {error}");
            assert!(!error.contains("secret") && !error.contains("1234567"), "{text}: {error}");
        }
    }

    #[test]
    fn the_model_of_the_file_is_read() {
        let text = "[model]\nprovider = \"anthropic\"\nname = \"m\"\nmax_tokens = 9\nparallel_tool_calls = true";
        let model = load(text, Flags::default()).expect("good").model.expect("a model");
        assert_eq!((model.provider, model.max_tokens, model.parallel_tool_calls), (Provider::Anthropic, Some(9), true));
    }
}
