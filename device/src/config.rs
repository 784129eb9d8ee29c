//! Where the device program's settings come from: flags, then the environment, then a `.env` file,
//! then defaults.

use crate::confirm::{Confirm, Fixed, Terminal};
use crate::connection::Identity;
use crate::device::DeviceOptions;
use crate::error::DeviceError;
use clap::Parser;
use devmind_domain::ErrorCode;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

/// The name of the state folder below the platform's folder for such things.
const STATE_FOLDER: &str = "devmind-device";

/// The desktop device of DevMind Ledger: runs a model's tool calls in one folder of this computer,
/// each at most once, and asks before it reads a file.
#[derive(Parser, Debug)]
#[command(name = "devmind-device", version, max_term_width = 100)]
pub struct Args {
    /// The server to connect to
    #[arg(long, value_name = "URL", env = "DEVMIND_SERVER", default_value = "http://127.0.0.1:8787")]
    pub server: String,

    /// The only folder that tools may touch
    #[arg(long, value_name = "DIR", env = "DEVMIND_WORKSPACE", default_value = ".")]
    pub workspace: PathBuf,

    /// The device's own folder; one folder is one device [default: devmind-device in the user's state folder]
    #[arg(long, value_name = "DIR", env = "DEVMIND_STATE")]
    pub state: Option<PathBuf>,

    /// Who you are, to a server in development mode [default: the user you are logged in as]
    #[arg(long, value_name = "NAME", env = "DEVMIND_USER")]
    pub user: Option<String>,

    /// Your token, to a server that wants one
    #[arg(long, value_name = "TOKEN", env = "DEVMIND_TOKEN", hide_env_values = true)]
    pub token: Option<String>,

    /// Allow every call without asking
    #[arg(long, conflicts_with = "no")]
    pub yes: bool,

    /// Deny every call that would be asked about
    #[arg(long)]
    pub no: bool,

    /// Speak plain http to another computer: everybody on the way can read and change it
    #[arg(long)]
    pub insecure: bool,
}

impl Args {
    /// What the device is started with.
    ///
    /// # Errors
    /// `CONFIG_INVALID` when there is no user or no place for the state folder.
    pub fn options(&self) -> Result<DeviceOptions, DeviceError> {
        let state = match &self.state {
            Some(state) => state.clone(),
            None => default_state(|name| std::env::var_os(name), std::env::home_dir())?,
        };
        let options = DeviceOptions::new(&self.server, self.workspace.clone(), state, self.identity()?);
        Ok(DeviceOptions { allow_plain_http: self.insecure, ..options })
    }

    /// How the person is asked.
    pub fn confirm(&self) -> Arc<dyn Confirm> {
        match (self.yes, self.no) {
            (true, _) => Arc::new(Fixed(true)),
            (_, true) => Arc::new(Fixed(false)),
            _ => Arc::new(Terminal::new()),
        }
    }

    fn identity(&self) -> Result<Identity, DeviceError> {
        if let Some(token) = &self.token {
            return printable("--token", token).map(Identity::Bearer);
        }
        let logged_in = || std::env::var("USER").ok().filter(|name| !name.is_empty());
        let name = self.user.clone().or_else(logged_in).unwrap_or_else(|| "dev".to_owned());
        printable("--user", &name).map(Identity::DevUser)
    }
}

/// A value that can travel in a header.
fn printable(flag: &str, value: &str) -> Result<String, DeviceError> {
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(value.to_owned());
    }
    let message = format!("{flag} must be printable ASCII without spaces");
    Err(DeviceError::new(ErrorCode::ConfigInvalid, message))
}

/// `$XDG_STATE_HOME/devmind-device`, else `~/.local/state/devmind-device`; on macOS
/// `~/Library/Application Support/devmind-device`.
fn default_state(
    environment: impl Fn(&str) -> Option<OsString>,
    home: Option<PathBuf>,
) -> Result<PathBuf, DeviceError> {
    let given = environment("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let below_home = || {
        let folder = if cfg!(target_os = "macos") { "Library/Application Support" } else { ".local/state" };
        home.filter(|home| home.is_absolute()).map(|home| home.join(folder))
    };
    given.or_else(below_home).map(|folder| folder.join(STATE_FOLDER)).ok_or_else(|| {
        DeviceError::new(ErrorCode::ConfigInvalid, "there is no home folder to keep the device's state in")
            .with_hint("name a folder with --state")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_state_folder_is_the_users_unless_the_platform_names_another() {
        let xdg = |name: &str| (name == "XDG_STATE_HOME").then(|| OsString::from("/x/state"));
        assert_eq!(default_state(xdg, None).expect("given"), PathBuf::from("/x/state/devmind-device"));
        let relative = |_: &str| Some(OsString::from("relative"));
        let home = default_state(relative, Some(PathBuf::from("/home/ada"))).expect("home");
        assert!(home.starts_with("/home/ada") && home.ends_with(STATE_FOLDER), "{}", home.display());
        assert_eq!(default_state(|_| None, None).err().map(|error| error.code()), Some(ErrorCode::ConfigInvalid));
    }

    #[test]
    fn a_name_or_token_that_would_break_a_header_is_refused_without_being_printed() {
        let error = printable("--token", "a\r\nX-Evil: 1").expect_err("refused");
        assert!(!error.to_string().contains("Evil"));
        assert_eq!(printable("--user", "ada").expect("fine"), "ada");
    }
}
