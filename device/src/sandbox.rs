//! A second wall on Linux: the kernel itself keeps this program within its folders (Landlock).
//!
//! From here on the process may read the workspace, read and write its state folder, and read what
//! TLS and name resolution need; nothing else on disk, and it may start no program. The first wall,
//! the path policy, decides which files of the workspace are opened; this one holds if it ever failed.
//! It counts for the threads that are started afterwards, so it comes before the runtime.

use crate::config::SandboxMode;
use crate::error::DeviceError;
use devmind_domain::ErrorCode;
use std::path::Path;

/// Closes the sandbox around this thread and all it starts; answers in words what holds.
///
/// # Errors
/// `CONFIG_INVALID` when it is required and the kernel cannot; `INTERNAL` when the kernel refused
/// rules that it knows.
pub fn enter(mode: SandboxMode, workspace: &Path, state: &Path) -> Result<String, DeviceError> {
    if mode == SandboxMode::Off {
        return Ok("off: the kernel forbids this program nothing".to_owned());
    }
    let told = restrict(workspace, state)?;
    match (told, mode) {
        (Ok(held), _) => Ok(held),
        (Err(why), SandboxMode::Required) => {
            Err(DeviceError::new(ErrorCode::ConfigInvalid, format!("there is no sandbox: {why}"))
                .with_hint("use --sandbox auto to go without one"))
        }
        (Err(why), SandboxMode::Auto | SandboxMode::Off) => Ok(format!("none: {why}")),
    }
}

/// `Ok(Err)`: this computer has no Landlock.
#[cfg(not(target_os = "linux"))]
fn restrict(_workspace: &Path, _state: &Path) -> Result<Result<String, String>, DeviceError> {
    Ok(Err("this operating system has no Landlock".to_owned()))
}

#[cfg(target_os = "linux")]
use linux::restrict;

#[cfg(target_os = "linux")]
mod linux {
    use super::*;
    use landlock::{
        ABI, Access as _, AccessFs, CompatLevel, Compatible as _, LandlockStatus, Ruleset, RulesetAttr as _,
        RulesetCreatedAttr as _, RulesetError, RulesetStatus, path_beneath_rules,
    };
    use std::path::PathBuf;

    /// What TLS and name resolution read: certificates, resolver settings, the libraries that the C
    /// library loads for them.
    const SYSTEM: [&str; 22] = [
        "/etc/ssl",
        "/etc/pki",
        "/etc/ca-certificates",
        "/usr/share/ca-certificates",
        "/usr/local/share/ca-certificates",
        "/etc/resolv.conf",
        "/run/systemd/resolve",
        "/run/resolvconf",
        "/run/NetworkManager",
        "/etc/hosts",
        "/etc/host.conf",
        "/etc/gai.conf",
        "/etc/nsswitch.conf",
        "/etc/services",
        "/etc/localtime",
        "/etc/ld.so.cache",
        "/lib",
        "/lib64",
        "/usr/lib",
        "/usr/lib64",
        "/dev/urandom",
        "/dev/null",
    ];
    /// Where the user may have put certificates instead.
    const NAMED: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];
    /// The newest rules that this program knows; an older kernel holds those that it knows.
    const ABI_KNOWN: ABI = ABI::V5;

    pub(super) fn restrict(workspace: &Path, state: &Path) -> Result<Result<String, String>, DeviceError> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let system = SYSTEM.iter().map(PathBuf::from);
        let named = NAMED.iter().filter_map(std::env::var_os).map(PathBuf::from);
        let readable: Vec<PathBuf> = system.chain(named).chain([workspace.to_owned()]).collect();
        let rules = || -> Result<_, RulesetError> {
            Ruleset::default()
                .set_compatibility(CompatLevel::BestEffort)
                .handle_access(AccessFs::from_all(ABI_KNOWN))?
                .create()?
                // What is not there needs no rule.
                .add_rules(path_beneath_rules(readable, read))?
                .add_rules(path_beneath_rules([state], AccessFs::from_all(ABI_KNOWN)))?
                .restrict_self()
        };
        let held = rules().map_err(|error| {
            DeviceError::new(ErrorCode::Internal, "the kernel refused the sandbox")
                .with_hint("use --sandbox off to go without one, and report this")
                .caused_by(error)
        })?;
        let all = match held.ruleset {
            RulesetStatus::FullyEnforced => "all rules",
            RulesetStatus::PartiallyEnforced => "the rules that this kernel knows",
            RulesetStatus::NotEnforced => {
                let why = match held.landlock {
                    LandlockStatus::NotEnabled => "this kernel has Landlock switched off",
                    _ => "this kernel has no Landlock",
                };
                return Ok(Err(why.to_owned()));
            }
        };
        Ok(Ok(format!("Landlock holds {all}: the workspace read-only, the state folder, certificates and resolver")))
    }
}
