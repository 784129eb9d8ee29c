//! Where the device program's settings come from: defaults < file < environment < flags.
//!
//! The file lies in the user's own configuration folder, never in the working folder: that may be the
//! workspace, whose files are not the user's word. For the same reason no `.env` is read. Unknown keys are
//! refused, and a token is never printed.

use crate::connection::Identity;
use crate::device::DeviceOptions;
use crate::error::DeviceError;
use clap::{Args, ValueEnum};
use devmind_domain::ErrorCode;
use figment::Figment;
use figment::providers::{Format as _, Serialized, Toml};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fmt;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The name of the program's folders below the platform's folders for state and for configuration.
const FOLDER: &str = "devmind-device";
/// The file within the configuration folder.
const FILE: &str = "config.toml";

/// How the person is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ConfirmMode {
    /// On the terminal and on the local page; the first answer counts.
    #[default]
    Both,
    /// On the terminal.
    Terminal,
    /// On the local page.
    Page,
    /// Not: everything that would be asked about is allowed.
    Allow,
    /// Not: everything that would be asked about is denied.
    Deny,
}

/// Whether the kernel keeps the program within its folders (Landlock, on Linux).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SandboxMode {
    /// Where the kernel can.
    #[default]
    Auto,
    /// Refuse to start where it cannot.
    Required,
    /// Never.
    Off,
}

/// A token, which no `Debug` prints.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl std::str::FromStr for Token {
    type Err = std::convert::Infallible;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

/// The program's settings.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The server to connect to.
    pub server: String,
    /// The only folder that tools may touch.
    pub workspace: PathBuf,
    /// The device's own folder; absent: the platform's.
    pub state: Option<PathBuf>,
    /// Who the user is, to a server in development mode.
    pub user: Option<String>,
    /// The user's token.
    pub token: Option<Token>,
    /// How the person is asked.
    pub confirm: ConfirmMode,
    /// Whether a question is also a desktop notification.
    pub notify: bool,
    /// Whether the kernel keeps the program within its folders.
    pub sandbox: SandboxMode,
    /// Whether plain http may go to another computer.
    pub insecure: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            server: "http://127.0.0.1:8787".to_owned(),
            workspace: ".".into(),
            state: None,
            user: None,
            token: None,
            confirm: ConfirmMode::default(),
            notify: true,
            sandbox: SandboxMode::default(),
            insecure: false,
        }
    }
}

/// What flags and environment say; what is absent says nothing.
#[derive(Args, Clone, Debug, Default, Serialize)]
pub struct Flags {
    /// The settings' file [default: devmind-device/config.toml in your configuration folder]
    #[arg(long, value_name = "FILE", env = "DEVMIND_DEVICE_CONFIG", global = true)]
    #[serde(skip)]
    pub config: Option<PathBuf>,

    /// The device's own folder; one folder is one device [default: devmind-device in your state folder]
    #[arg(long, value_name = "DIR", env = "DEVMIND_STATE", global = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<PathBuf>,

    /// The only folder that tools may touch [default: the working folder]
    #[arg(long, value_name = "DIR", env = "DEVMIND_WORKSPACE", global = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<PathBuf>,

    /// The server to connect to [default: http://127.0.0.1:8787]
    #[arg(long, value_name = "URL", env = "DEVMIND_SERVER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,

    /// Who you are, to a server in development mode [default: the user you are logged in as]
    #[arg(long, value_name = "NAME", env = "DEVMIND_USER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,

    /// Your token, to a server that wants one
    #[arg(long, value_name = "TOKEN", env = "DEVMIND_TOKEN", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<Token>,

    /// How you are asked [default: both]
    #[arg(long, value_enum, value_name = "HOW", env = "DEVMIND_CONFIRM", hide_possible_values = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirm: Option<ConfirmMode>,

    /// Allow every call without asking: --confirm allow
    #[arg(long, conflicts_with_all = ["no", "confirm"])]
    #[serde(skip)]
    pub yes: bool,

    /// Deny every call that would be asked about: --confirm deny
    #[arg(long, conflicts_with = "confirm")]
    #[serde(skip)]
    pub no: bool,

    /// Show no desktop notifications
    #[arg(long)]
    #[serde(skip)]
    pub no_notify: bool,

    /// Whether the kernel keeps this program within its folders (Linux) [default: auto]
    #[arg(long, value_enum, value_name = "WHEN", env = "DEVMIND_SANDBOX")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxMode>,

    /// Speak plain http to another computer: everybody on the way can read and change it
    #[arg(long)]
    #[serde(skip)]
    pub insecure: bool,
}

impl Settings {
    /// Reads defaults, file, environment and flags, in this order.
    ///
    /// # Errors
    /// `CONFIG_INVALID` naming the setting.
    pub fn load(flags: &Flags) -> Result<Self, DeviceError> {
        let usual = default_file(|name| std::env::var_os(name), std::env::home_dir());
        Self::load_with(flags, usual.filter(|file| file.exists()))
    }

    fn load_with(flags: &Flags, usual: Option<PathBuf>) -> Result<Self, DeviceError> {
        let mut figment = Figment::from(Serialized::defaults(Self::default()));
        let file = flags.config.clone().or(usual);
        if let Some(file) = &file {
            let others = rights_of_others(file)?;
            figment = figment.merge(Toml::file_exact(file));
            let text = || DeviceError::new(ErrorCode::ConfigInvalid, format!("others may change {}", file.display()));
            if others & 0o022 != 0 {
                return Err(text().with_hint(format!("chmod 600 {}", file.display())));
            }
            if others != 0
                && figment.contains("token")
                && figment.find_value("token").is_ok_and(|v| v.as_str().is_some())
            {
                let error = format!("{} holds a token and others may read it", file.display());
                return Err(DeviceError::new(ErrorCode::ConfigInvalid, error)
                    .with_hint(format!("chmod 600 {}", file.display())));
            }
        }
        let read = |figment: &Figment| -> Result<Self, DeviceError> {
            figment
                .extract()
                .map_err(|error| DeviceError::new(ErrorCode::ConfigInvalid, without_excerpt(&error.to_string())))
        };
        let mut settings = read(&figment)?;
        // A file's own paths are meant from where the file is.
        if let Some(folder) = file.as_deref().and_then(Path::parent) {
            if settings.workspace != Self::default().workspace {
                settings.workspace = folder.join(&settings.workspace);
            }
            settings.state = settings.state.map(|state| folder.join(state));
        }
        let mut settings = read(&Figment::from(Serialized::defaults(settings)).merge(Serialized::defaults(flags)))?;
        match (flags.yes, flags.no) {
            (true, _) => settings.confirm = ConfirmMode::Allow,
            (_, true) => settings.confirm = ConfirmMode::Deny,
            _ => {}
        }
        settings.notify &= !flags.no_notify;
        settings.insecure |= flags.insecure;
        Ok(settings)
    }

    /// The device's own folder.
    ///
    /// # Errors
    /// `CONFIG_INVALID` when there is no place for it.
    pub fn state_folder(&self) -> Result<PathBuf, DeviceError> {
        match &self.state {
            Some(state) => Ok(state.clone()),
            None => default_state(|name| std::env::var_os(name), std::env::home_dir()),
        }
    }

    /// What the device is started with.
    ///
    /// # Errors
    /// `CONFIG_INVALID` when a name cannot be used, or there is no place for the state folder.
    pub fn options(&self) -> Result<DeviceOptions, DeviceError> {
        let options = DeviceOptions::new(&self.server, self.workspace.clone(), self.state_folder()?, self.identity()?);
        Ok(DeviceOptions { allow_plain_http: self.insecure, ..options })
    }

    fn identity(&self) -> Result<Identity, DeviceError> {
        if let Some(Token(token)) = &self.token {
            return printable("token", token).map(Identity::Bearer);
        }
        let logged_in = || std::env::var("USER").ok().filter(|name| !name.is_empty());
        let name = self.user.clone().or_else(logged_in).unwrap_or_else(|| "dev".to_owned());
        printable("user", &name).map(Identity::DevUser)
    }
}

/// What group and others may do with a file.
fn rights_of_others(file: &Path) -> Result<u32, DeviceError> {
    let metadata = std::fs::metadata(file).map_err(|error| {
        let message = format!("the settings' file {} cannot be read: {error}", file.display());
        DeviceError::new(ErrorCode::ConfigInvalid, message)
    })?;
    Ok(metadata.permissions().mode() & 0o077)
}

/// The message without the lines of the file that it quotes: a token may be in them.
fn without_excerpt(message: &str) -> String {
    let quoted = |line: &str| line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ').starts_with('|');
    message.lines().filter(|line| !quoted(line)).collect::<Vec<_>>().join(" ")
}

/// A value that can travel in a header.
fn printable(setting: &str, value: &str) -> Result<String, DeviceError> {
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(value.to_owned());
    }
    let message = format!("{setting} must be printable ASCII without spaces");
    Err(DeviceError::new(ErrorCode::ConfigInvalid, message))
}

/// A folder of the platform's: the variable's if it is absolute, else one below the home folder.
fn platform_folder(given: Option<OsString>, home: Option<PathBuf>, below_home: &str) -> Option<PathBuf> {
    let given = given.map(PathBuf::from).filter(|path| path.is_absolute());
    let below_home = if cfg!(target_os = "macos") { "Library/Application Support" } else { below_home };
    given.or_else(|| home.filter(|home| home.is_absolute()).map(|home| home.join(below_home)))
}

/// `$XDG_CONFIG_HOME/devmind-device/config.toml`, else the same below `~/.config`; on macOS below
/// `~/Library/Application Support`.
fn default_file(environment: impl Fn(&str) -> Option<OsString>, home: Option<PathBuf>) -> Option<PathBuf> {
    platform_folder(environment("XDG_CONFIG_HOME"), home, ".config").map(|folder| folder.join(FOLDER).join(FILE))
}

/// `$XDG_STATE_HOME/devmind-device`, else `~/.local/state/devmind-device`; on macOS
/// `~/Library/Application Support/devmind-device`.
fn default_state(
    environment: impl Fn(&str) -> Option<OsString>,
    home: Option<PathBuf>,
) -> Result<PathBuf, DeviceError> {
    let folder = platform_folder(environment("XDG_STATE_HOME"), home, ".local/state");
    folder.map(|folder| folder.join(FOLDER)).ok_or_else(|| {
        DeviceError::new(ErrorCode::ConfigInvalid, "there is no home folder to keep the device's state in")
            .with_hint("name a folder with --state")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settings from a file with these rights, and flags.
    fn load(text: &str, mode: u32, flags: Flags) -> Result<Settings, String> {
        let folder = tempfile::tempdir().expect("folder");
        let file = folder.path().join("config.toml");
        std::fs::write(&file, text).expect("written");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("rights");
        Settings::load_with(&flags, Some(file)).map_err(|error| format!("{} {error}", error.code()))
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let text = "server = \"http://127.0.0.1:1\"\nuser = \"ann\"\nconfirm = \"page\"\nnotify = false";
        let settings = load(text, 0o644, Flags { user: Some("bob".into()), ..Flags::default() }).expect("good");
        assert_eq!(settings.server, "http://127.0.0.1:1");
        assert_eq!(
            (settings.user.as_deref(), settings.confirm, settings.notify),
            (Some("bob"), ConfirmMode::Page, false)
        );
        assert_eq!((settings.sandbox, settings.insecure), (SandboxMode::Auto, false));
        let flags = Flags { yes: true, ..Flags::default() };
        assert_eq!(load(text, 0o644, flags).expect("good").confirm, ConfirmMode::Allow);
    }

    #[test]
    fn a_files_own_paths_are_meant_from_its_folder_and_a_flags_from_the_working_folder() {
        let text = "workspace = \"ws\"\nstate = \"/x/state\"";
        let settings = load(text, 0o600, Flags::default()).expect("good");
        assert!(settings.workspace.is_absolute() && settings.workspace.ends_with("ws"));
        assert_eq!(settings.state, Some("/x/state".into()));
        let flags = Flags { workspace: Some("other".into()), ..Flags::default() };
        assert_eq!(load(text, 0o600, flags).expect("good").workspace, PathBuf::from("other"));
    }

    #[test]
    fn a_file_with_unknown_keys_or_open_to_others_is_refused_without_repeating_its_token() {
        for (text, mode, complaint) in [
            ("servre = \"x\"", 0o600, "servre"),
            ("confirm = \"always\"", 0o600, "confirm"),
            ("token = \"secret-1\"\nserver = 7", 0o600, "server"),
            ("token = \"secret-1\nserver = 7", 0o600, "line"),
            ("token = \"secret-1\"", 0o640, "others may read"),
            ("user = \"ann\"", 0o602, "others may change"),
        ] {
            let error = load(text, mode, Flags::default()).expect_err(text);
            assert!(error.contains("CONFIG_INVALID") && error.contains(complaint), "{text}: {error}");
            assert!(!error.contains("secret-1"), "{error}");
        }
        let settings = load("token = \"secret-1\"", 0o600, Flags::default()).expect("good");
        assert!(!format!("{settings:?}").contains("secret-1"));
    }

    #[test]
    fn the_folders_are_the_users_unless_the_platform_names_others() {
        let xdg = |name: &str| (name == "XDG_STATE_HOME").then(|| OsString::from("/x/state"));
        assert_eq!(default_state(xdg, None).expect("given"), PathBuf::from("/x/state/devmind-device"));
        let relative = |_: &str| Some(OsString::from("relative"));
        let home = default_state(relative, Some(PathBuf::from("/home/ada"))).expect("home");
        assert!(home.starts_with("/home/ada") && home.ends_with(FOLDER), "{}", home.display());
        assert_eq!(default_state(|_| None, None).err().map(|error| error.code()), Some(ErrorCode::ConfigInvalid));
        assert!(default_file(relative, Some(PathBuf::from("/home/ada"))).expect("home").starts_with("/home/ada"));
    }

    #[test]
    fn a_name_or_token_that_would_break_a_header_is_refused_without_being_printed() {
        let error = printable("token", "a\r\nX-Evil: 1").expect_err("refused");
        assert!(!error.to_string().contains("Evil"));
        assert_eq!(printable("user", "ada").expect("fine"), "ada");
    }
}
