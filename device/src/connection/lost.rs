//! Why a connection ended or did not come about, and what that means for the next.

use devmind_domain::ErrorCode;
use devmind_domain::protocol::CloseCode;
use std::time::Duration;

/// The end of one connection.
#[derive(Debug)]
pub(super) enum Lost {
    /// Connecting again may help, after a while.
    Retry {
        reason: String,
        /// The server asked to wait so long.
        after: Option<Duration>,
    },
    /// The ticket was not taken: a fresh one may be, at once, but only once in a row.
    Ticket { reason: String },
    /// One side broke the protocol: trying a few times covers a server that is being replaced.
    Protocol { reason: String },
    /// Connecting again cannot help, or would fight.
    Final { code: ErrorCode, reason: String },
    /// The device hung up.
    HungUp,
}

impl Lost {
    pub(super) fn retry(reason: impl Into<String>) -> Self {
        Self::Retry { reason: reason.into(), after: None }
    }

    /// What a close code says (4.. are this protocol's, the others RFC 6455's).
    pub(super) fn by_close(number: u16, reason: &str) -> Self {
        let said = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        match CloseCode::from_u16(number) {
            Some(CloseCode::Denied) => {
                let code = named_code(reason).unwrap_or(ErrorCode::Forbidden);
                Self::Final { code, reason: format!("the server refused this device{said}") }
            }
            Some(CloseCode::Replaced) => Self::Final {
                code: ErrorCode::DeviceReplaced,
                reason: "another program connected as this device".to_owned(),
            },
            Some(CloseCode::Ticket) => Self::Ticket { reason: format!("the ticket was not taken{said}") },
            Some(CloseCode::Protocol | CloseCode::NotText) => {
                Self::Protocol { reason: format!("the server complains{said}") }
            }
            Some(CloseCode::GoingAway | CloseCode::Restarting) => Self::retry(format!("the server is stopping{said}")),
            Some(CloseCode::Busy) => Self::retry(format!("the server is busy{said}")),
            Some(CloseCode::Silent) => Self::retry(format!("the server heard nothing{said}")),
            Some(CloseCode::RateLimited) => Self::retry(format!("too many messages{said}")),
            Some(CloseCode::TooBig) => Self::retry(format!("a message was too large{said}")),
            None => Self::retry(format!("the server closed the connection ({number}){said}")),
        }
    }
}

/// A close reason may begin with a stable code.
fn named_code(reason: &str) -> Option<ErrorCode> {
    reason.split(|c: char| !c.is_ascii_uppercase() && c != '_').next().and_then(ErrorCode::parse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_close_code_has_its_consequence() {
        for code in CloseCode::ALL {
            let lost = Lost::by_close(code.as_u16(), "");
            assert_eq!(matches!(lost, Lost::Final { .. }), code.is_final_for_device(), "{code:?}");
        }
        let Lost::Final { code, .. } = Lost::by_close(4403, "JOURNAL_ROLLED_BACK") else { panic!("final") };
        assert_eq!(code, ErrorCode::JournalRolledBack);
        assert!(matches!(Lost::by_close(4401, ""), Lost::Ticket { .. }));
    }
}
