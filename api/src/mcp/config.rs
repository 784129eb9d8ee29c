//! The settings of MCP servers: `[[mcp]]` of the file. Secrets are named, and come from the environment.

use super::secrets::Secrets;
use crate::config::ConfigError;
use devmind_domain::tool_call::Risk;
use devmind_domain::tools::Approval;
use globset::{Glob, GlobSet, GlobSetBuilder};
use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Servers, at most.
const MAX_SERVERS: usize = 32;
/// Characters of a server's name, at most: it is part of its tools' names, which have 64.
const MAX_NAME_CHARS: usize = 24;
/// A server may take this long to start and to say which tools it has, unless configured otherwise (milliseconds).
const START_MS: u64 = 10_000;
/// A call may take this long, unless configured otherwise (milliseconds).
const CALL_MS: u64 = 60_000;
/// What may be configured, at most (milliseconds).
const MAX_START_MS: u64 = 120_000;
const MAX_CALL_MS: u64 = 3_600_000;
/// What the protocol itself sends.
const RESERVED_HEADERS: [&str; 6] =
    ["accept", "content-type", "host", "last-event-id", "mcp-protocol-version", "mcp-session-id"];

/// An MCP server: a program, or an address.
#[derive(Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct McpConfig {
    /// What its tools are named after: `mcp_<name>_<tool>`.
    pub name: String,
    /// A program that speaks over its standard input and output.
    pub command: Option<String>,
    /// The program's arguments.
    pub args: Vec<String>,
    /// Variables of the program's environment. It has no others but `PATH`, `HOME` and their like.
    #[serde(skip_serializing)]
    pub env: BTreeMap<String, String>,
    /// Variables of the program's environment, by the name of the variable here that holds the value.
    pub env_from: BTreeMap<String, String>,
    /// The program's working folder; absent: this process's.
    pub folder: Option<PathBuf>,
    /// The address of a server that speaks streamable HTTP.
    pub url: Option<String>,
    /// Headers of every request.
    #[serde(skip_serializing)]
    pub headers: BTreeMap<String, String>,
    /// Headers of every request, by the name of the variable that holds the value.
    pub headers_from: BTreeMap<String, String>,
    /// Which of its tools are offered: names, `*` for any characters.
    pub tools: Vec<String>,
    /// How much harm its tools can do: `low`, `medium` or `high`.
    #[serde(with = "risk")]
    pub risk: Risk,
    /// Whether a person is asked: `always`, `never`, or `policy`.
    pub approval: Approval,
    /// Whether its calls may run beside others.
    pub parallel: bool,
    /// It may take this long to start and to say which tools it has (milliseconds).
    pub start_ms: u64,
    /// A call may take this long (milliseconds).
    pub call_ms: u64,
}

impl Default for McpConfig {
    fn default() -> Self {
        Self {
            name: String::new(),
            command: None,
            args: Vec::new(),
            env: BTreeMap::new(),
            env_from: BTreeMap::new(),
            folder: None,
            url: None,
            headers: BTreeMap::new(),
            headers_from: BTreeMap::new(),
            tools: vec!["*".to_owned()],
            risk: Risk::High,
            approval: Approval::Always,
            parallel: false,
            start_ms: START_MS,
            call_ms: CALL_MS,
        }
    }
}

/// Values of variables and headers are not shown: whoever writes a key there has written it once too often.
impl fmt::Debug for McpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |map: &BTreeMap<String, String>| map.keys().cloned().collect::<Vec<_>>();
        f.debug_struct("McpConfig")
            .field("name", &self.name)
            .field("command", &self.command)
            .field("url", &self.url)
            .field("env", &names(&self.env))
            .field("env_from", &self.env_from)
            .field("headers", &names(&self.headers))
            .field("headers_from", &self.headers_from)
            .finish_non_exhaustive()
    }
}

/// Lower case in settings, upper case in events.
mod risk {
    use super::{Deserialize, Risk};
    use serde::{Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(risk: &Risk, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&risk.as_str().to_lowercase())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Risk, D::Error> {
        match String::deserialize(deserializer)?.to_lowercase().as_str() {
            "low" => Ok(Risk::Low),
            "medium" => Ok(Risk::Medium),
            "high" => Ok(Risk::High),
            other => Err(D::Error::custom(format!("risk is low, medium or high, not {other:?}"))),
        }
    }
}

/// Where a server is, with its secrets.
#[derive(Clone)]
pub(super) enum Address {
    /// A program to start.
    Program { command: String, args: Vec<String>, env: Vec<(String, String)>, folder: Option<PathBuf> },
    /// An address to post to.
    Http { url: Url, headers: HeaderMap },
}

impl Address {
    /// What is told apart by: an approval of a tool counts for this place alone. No secret is part of it.
    pub fn identity(&self) -> String {
        match self {
            Self::Program { command, args, folder, .. } => format!("{command} {args:?} {folder:?}"),
            Self::Http { url, .. } => url.to_string(),
        }
    }

    pub fn transport(&self) -> &'static str {
        match self {
            Self::Program { .. } => "stdio",
            Self::Http { .. } => "http",
        }
    }
}

/// Whether all servers can be used.
///
/// # Errors
/// `CONFIG_INVALID` naming the server and the setting.
pub(crate) fn check(servers: &[McpConfig]) -> Result<(), ConfigError> {
    if servers.len() > MAX_SERVERS {
        return Err(ConfigError::invalid(format!("mcp: {MAX_SERVERS} servers at most")));
    }
    for (index, server) in servers.iter().enumerate() {
        if servers[..index].iter().any(|earlier| earlier.name == server.name) {
            return Err(ConfigError::invalid(format!("mcp: the name {} stands twice", server.name)));
        }
        server.resolve(|name| std::env::var(name).ok())?;
    }
    Ok(())
}

impl McpConfig {
    /// Where the server is, which of its tools are wanted, and what must not be repeated.
    ///
    /// # Errors
    /// `CONFIG_INVALID` naming the server and the setting; no value is repeated.
    pub(super) fn resolve(
        &self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<(Address, GlobSet, Secrets), ConfigError> {
        let invalid = |problem: String| ConfigError::invalid(format!("mcp {:?}: {problem}", self.name));
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if self.name.is_empty() || self.name.len() > MAX_NAME_CHARS || !self.name.bytes().all(is_name) {
            return Err(invalid(format!("name: 1-{MAX_NAME_CHARS} letters, digits and -")));
        }
        for (setting, value, most) in
            [("start_ms", self.start_ms, MAX_START_MS), ("call_ms", self.call_ms, MAX_CALL_MS)]
        {
            if value == 0 || value > most {
                return Err(invalid(format!("{setting}: 1-{most}")));
            }
        }
        let wanted = self.wanted().map_err(&invalid)?;
        let mut secrets = Secrets::default();
        let mut from = |setting: &str, named: &BTreeMap<String, String>| {
            let find = |(name, source): (&String, &String)| {
                let value = variable(source)
                    .ok_or_else(|| invalid(format!("{setting}.{name}: the environment has no variable {source}")))?;
                secrets.add(&value);
                Ok((name.clone(), value))
            };
            named.iter().map(find).collect::<Result<Vec<_>, ConfigError>>()
        };
        let (env, headers) = (from("env_from", &self.env_from)?, from("headers_from", &self.headers_from)?);
        let address = match (&self.command, &self.url) {
            (Some(command), None) => {
                if command.trim().is_empty() {
                    return Err(invalid("command is empty".to_owned()));
                }
                if !(self.headers.is_empty() && self.headers_from.is_empty()) {
                    return Err(invalid("headers are for a url".to_owned()));
                }
                let own = self.env.iter().map(|(name, value)| (name.clone(), value.clone()));
                let env: Vec<_> = own.chain(env).collect();
                if let Some((name, _)) = env.iter().find(|(name, _)| name.is_empty() || name.contains(['=', '\0'])) {
                    return Err(invalid(format!("env: {name:?} is no name of a variable")));
                }
                Address::Program { command: command.clone(), args: self.args.clone(), env, folder: self.folder.clone() }
            }
            (None, Some(url)) => {
                if !(self.args.is_empty() && self.env.is_empty() && self.env_from.is_empty() && self.folder.is_none()) {
                    return Err(invalid("args, env, env_from and folder are for a command".to_owned()));
                }
                let own = self.headers.iter().map(|(name, value)| (name.clone(), value.clone()));
                let headers =
                    own.chain(headers).map(|header| sent(header).map_err(&invalid)).collect::<Result<_, _>>()?;
                Address::Http { url: address_of(url).map_err(&invalid)?, headers }
            }
            (None, None) | (Some(_), Some(_)) => {
                return Err(invalid("name either a command or a url".to_owned()));
            }
        };
        Ok((address, wanted, secrets))
    }

    fn wanted(&self) -> Result<GlobSet, String> {
        let mut wanted = GlobSetBuilder::new();
        for pattern in &self.tools {
            wanted.add(Glob::new(pattern).map_err(|error| format!("tools: {error}"))?);
        }
        if self.tools.is_empty() {
            return Err("tools: at least one name or pattern".to_owned());
        }
        wanted.build().map_err(|error| format!("tools: {error}"))
    }
}

fn sent((name, value): (String, String)) -> Result<(HeaderName, HeaderValue), String> {
    let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("headers: {name:?} is no header"))?;
    if RESERVED_HEADERS.contains(&header.as_str()) {
        return Err(format!("headers: {name} is sent by the protocol itself"));
    }
    let mut value = HeaderValue::from_str(value.trim())
        .map_err(|_| format!("headers: the value of {name} has characters that no header has"))?;
    value.set_sensitive(true);
    Ok((header, value))
}

/// The address is not repeated: a password may be in it.
fn address_of(url: &str) -> Result<Url, String> {
    let url = Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    let url = url.ok_or("url must begin with http:// or https:// and name a host")?;
    if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
        return Err("url must have no user, password or fragment: secrets go into headers_from".to_owned());
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<(Address, GlobSet, Secrets), String> {
        let config: McpConfig = toml::from_str(text).map_err(|error| error.to_string())?;
        let variable = |name: &str| (name == "SET").then(|| "a-secret-value".to_owned());
        config.resolve(variable).map_err(|error| error.to_string())
    }

    #[test]
    fn a_setting_that_cannot_be_used_is_named_and_no_value_is_repeated() {
        for (text, complaint) in [
            ("command = 'x'", "name: 1-24"),
            ("name = 'a_b'\ncommand = 'x'", "name: 1-24"),
            ("name = 'a'", "a command or a url"),
            ("name = 'a'\ncommand = 'x'\nurl = 'http://x'", "a command or a url"),
            ("name = 'a'\ncommand = ' '", "command is empty"),
            ("name = 'a'\ncommand = 'x'\nheaders = { a = 'secret' }", "headers are for a url"),
            ("name = 'a'\nurl = 'http://x'\nargs = ['secret']", "are for a command"),
            ("name = 'a'\nurl = 'http://ann:secret@x'", "headers_from"),
            ("name = 'a'\nurl = 'ftp://secret'", "http://"),
            ("name = 'a'\nurl = 'http://x'\nheaders = { Accept = 'secret' }", "Accept is sent by"),
            ("name = 'a'\nurl = 'http://x'\nheaders = { 'a b' = 'secret' }", "no header"),
            ("name = 'a'\nurl = 'http://x'\nheaders = { a = \"secret\\u0001\" }", "no header has"),
            ("name = 'a'\nurl = 'http://x'\nheaders_from = { a = 'UNSET' }", "no variable UNSET"),
            ("name = 'a'\ncommand = 'x'\nenv_from = { T = 'UNSET' }", "env_from.T"),
            ("name = 'a'\ncommand = 'x'\nenv = { 'A=B' = 'secret' }", "no name of a variable"),
            ("name = 'a'\ncommand = 'x'\ntools = []", "at least one"),
            ("name = 'a'\ncommand = 'x'\ntools = ['[']", "tools: "),
            ("name = 'a'\ncommand = 'x'\ncall_ms = 0", "call_ms"),
            ("name = 'a'\ncommand = 'x'\nstart_ms = 120001", "start_ms"),
            ("name = 'a'\ncommand = 'x'\nrisk = 'none'", "low, medium or high"),
            ("name = 'a'\ncommand = 'x'\napproval = 'maybe'", "maybe"),
            ("name = 'a'\ncomand = 'x'", "comand"),
        ] {
            let error = config(text).err().unwrap_or_else(|| panic!("{text} is used"));
            assert!(error.contains(complaint) && (!error.contains("secret") || !text.contains("'secret")), "{error}");
        }
    }

    #[test]
    fn secrets_come_from_the_environment_and_are_shown_nowhere() {
        let text = "name = 'a'\nurl = 'http://x/mcp'\nheaders = { b = 'of-the-file' }\nheaders_from = { a = 'SET' }";
        let (address, _, secrets) = config(text).expect("good");
        let Address::Http { headers, .. } = &address else { panic!("a url") };
        assert_eq!(headers["a"], "a-secret-value");
        assert_eq!(secrets.without("it is a-secret-value"), "it is ***");
        let parsed: McpConfig = toml::from_str(text).expect("good");
        let shown = format!("{headers:?}{parsed:?}{}", serde_json::to_string(&parsed).expect("written"));
        assert!(
            !shown.contains("a-secret-value") && !shown.contains("of-the-file") && shown.contains("SET"),
            "{shown}"
        );
        assert!(!address.identity().contains("secret"));
    }

    #[test]
    fn nothing_is_harmless_unless_it_is_said() {
        let config: McpConfig = toml::from_str("name = 'a'\ncommand = 'x'\ntools = ['read_*']").expect("good");
        assert_eq!((config.risk, config.approval, config.parallel), (Risk::High, Approval::Always, false));
        let (_, wanted, _) = config.resolve(|_| None).expect("good");
        assert!(wanted.is_match("read_file") && !wanted.is_match("write_file"));
    }
}
