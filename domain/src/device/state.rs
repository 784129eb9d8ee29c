//! The rules of a device.

use super::event::*;
use crate::ErrorCode;
use crate::aggregate::{Decider, adapt_to_cqrs_es};
use crate::conversation::Claim;
use crate::event::{AggregateType, Role};
use crate::ids::*;
use crate::limits::{MAX_OPEN_TICKETS, TICKET_TTL_MS};
use crate::protocol::{Names, RegisteredTool};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What can be asked of a device.
#[derive(Clone, Debug)]
pub enum DeviceCommand {
    /// Gives out a ticket.
    IssueTicket {
        /// Its SHA-256.
        ticket_hash: String,
        /// The time.
        now: Timestamp,
    },
    /// Burns a presented ticket.
    ConsumeTicket {
        /// Its SHA-256.
        ticket_hash: String,
    },
    /// Registers a socket; an older one is replaced.
    Connect {
        /// The socket.
        connection_id: ConnectionId,
        /// The start of a server process that holds it.
        holder: Claim,
        /// The device program's start.
        instance_id: String,
        /// The device's journal.
        journal_id: String,
        /// Which opening of the journal.
        journal_epoch: u64,
        /// The device program's version.
        version: String,
        /// Where it connected from.
        remote: String,
        /// What it is called.
        names: Names,
    },
    /// Replaces the set of tools.
    SyncRegistry {
        /// The socket.
        connection_id: ConnectionId,
        /// The full set.
        tools: Vec<RegisteredTool>,
    },
    /// Ends the socket, where it still counts.
    Disconnect {
        /// The socket.
        connection_id: ConnectionId,
        /// The close code.
        code: u16,
        /// Why.
        reason: String,
    },
    /// Records that somebody with a role reads what belongs to another.
    RecordRead {
        /// Who reads.
        by: UserId,
        /// By which right.
        role: Role,
        /// What is asked for.
        what: String,
    },
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// Unknown and used tickets look the same to the caller.
    #[error("the ticket is unknown, used or expired")]
    TicketInvalid,
    /// The journal is an older copy of one that was seen: what it forgot could run again.
    #[error("the device's journal went back from epoch {seen} to {got}")]
    JournalRolledBack {
        /// The newest epoch seen.
        seen: u64,
        /// What the device says.
        got: u64,
    },
    /// Another socket counts now.
    #[error("this socket was replaced")]
    NotCurrent,
}

impl DeviceError {
    /// The stable code.
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::TicketInvalid => ErrorCode::TicketInvalid,
            Self::JournalRolledBack { .. } => ErrorCode::JournalRolledBack,
            Self::NotCurrent => ErrorCode::DeviceOffline,
        }
    }
}

/// What must be known to decide about a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Open tickets by hash, newest last, at most [`MAX_OPEN_TICKETS`].
    pub tickets: Vec<(String, Timestamp)>,
    /// The socket that counts.
    pub connection: Option<Connection>,
    /// Sockets so far.
    pub connection_epoch: u64,
    /// The newest epoch of each journal.
    pub journals: BTreeMap<String, u64>,
    /// The tools of the last sync.
    pub tools: Vec<RegisteredTool>,
    /// Whether there was a sync at all: a first one without tools is news as well.
    pub synced: bool,
    /// What it said last that it is called.
    pub names: Names,
}

/// The socket that counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Connection {
    /// The socket.
    pub connection_id: ConnectionId,
    /// The start of a server process that holds it; absent where the log does not say which.
    pub holder: Option<Claim>,
    /// The device's journal.
    pub journal_id: String,
}

impl Device {
    fn is_current(&self, connection_id: &ConnectionId) -> bool {
        self.connection.as_ref().is_some_and(|own| own.connection_id == *connection_id)
    }

    /// Whether the device offers this tool in this version, as it said last.
    pub fn offers(&self, tool: &str, version: &str) -> bool {
        self.synced && self.tools.iter().any(|own| own.name == tool && own.version == version)
    }

    /// When a presented ticket ends; the caller compares it with the time *after* burning it.
    pub fn ticket_expiry(&self, ticket_hash: &str) -> Option<Timestamp> {
        self.tickets.iter().find(|(hash, _)| hash == ticket_hash).map(|(_, expires_at)| *expires_at)
    }
}

impl Decider for Device {
    const TYPE: AggregateType = AggregateType::Device;
    const STATE_VERSION: u32 = 3;
    type Command = DeviceCommand;
    type Event = DeviceEvent;
    type Error = DeviceError;

    fn decide(&self, command: DeviceCommand) -> Result<Vec<DeviceEvent>, DeviceError> {
        match command {
            DeviceCommand::IssueTicket { ticket_hash, now } => {
                Ok(vec![DeviceTicketIssued { ticket_hash, expires_at: now.plus_millis(TICKET_TTL_MS) }.into()])
            }
            DeviceCommand::ConsumeTicket { ticket_hash } => match self.ticket_expiry(&ticket_hash) {
                Some(_) => Ok(vec![DeviceTicketConsumed { ticket_hash }.into()]),
                None => Err(DeviceError::TicketInvalid),
            },
            DeviceCommand::Connect {
                connection_id,
                holder,
                instance_id,
                journal_id,
                journal_epoch,
                version,
                remote,
                names,
            } => {
                // One instance of the program opens its journal once, so the same epoch may come
                // again after a lost socket; a lower one is an older copy.
                if let Some(seen) = self.journals.get(&journal_id).copied().filter(|seen| *seen > journal_epoch) {
                    return Err(DeviceError::JournalRolledBack { seen, got: journal_epoch });
                }
                let mut events = Vec::new();
                if let Some(old) = &self.connection {
                    events.push(
                        DeviceReplaced {
                            old_connection_id: old.connection_id.clone(),
                            new_connection_id: connection_id.clone(),
                        }
                        .into(),
                    );
                }
                let described = (names != self.names)
                    .then(|| DeviceDescribed { connection_id: connection_id.clone(), names }.into());
                events.push(
                    DeviceConnected {
                        connection_id,
                        connection_epoch: self.connection_epoch + 1,
                        node_id: holder.node_id,
                        node_epoch: Some(holder.epoch),
                        instance_id,
                        journal_id,
                        journal_epoch,
                        version,
                        remote,
                    }
                    .into(),
                );
                events.extend(described);
                Ok(events)
            }
            DeviceCommand::SyncRegistry { connection_id, .. } if !self.is_current(&connection_id) => {
                Err(DeviceError::NotCurrent)
            }
            DeviceCommand::SyncRegistry { tools, .. } if self.synced && tools == self.tools => Ok(vec![]),
            DeviceCommand::SyncRegistry { connection_id, tools } => {
                Ok(vec![ToolRegistrySynced { connection_id, tools }.into()])
            }
            DeviceCommand::Disconnect { connection_id, .. } if !self.is_current(&connection_id) => Ok(vec![]),
            DeviceCommand::Disconnect { connection_id, code, reason } => {
                Ok(vec![DeviceDisconnected { connection_id, code, reason }.into()])
            }
            DeviceCommand::RecordRead { by, role, what } => Ok(vec![DeviceRead { by, role, what }.into()]),
        }
    }

    fn evolve(&mut self, event: &DeviceEvent) {
        match event {
            DeviceEvent::DeviceTicketIssued(e) => {
                self.tickets.push((e.ticket_hash.clone(), e.expires_at));
                let surplus = self.tickets.len().saturating_sub(MAX_OPEN_TICKETS);
                self.tickets.drain(..surplus);
            }
            DeviceEvent::DeviceTicketConsumed(e) => self.tickets.retain(|(hash, _)| *hash != e.ticket_hash),
            DeviceEvent::DeviceConnected(e) => {
                self.connection_epoch = e.connection_epoch;
                self.journals.insert(e.journal_id.clone(), e.journal_epoch);
                self.connection = Some(Connection {
                    connection_id: e.connection_id.clone(),
                    holder: e.node_epoch.map(|epoch| Claim { node_id: e.node_id.clone(), epoch }),
                    journal_id: e.journal_id.clone(),
                });
            }
            DeviceEvent::DeviceDescribed(e) => self.names.clone_from(&e.names),
            DeviceEvent::ToolRegistrySynced(e) => {
                self.tools.clone_from(&e.tools);
                self.synced = true;
            }
            DeviceEvent::DeviceDisconnected(e) => {
                if self.is_current(&e.connection_id) {
                    self.connection = None;
                }
            }
            DeviceEvent::DeviceReplaced(e) => {
                if self.is_current(&e.old_connection_id) {
                    self.connection = None;
                }
            }
            DeviceEvent::DeviceRead(_) => {}
        }
    }
}

adapt_to_cqrs_es!(Device, "device");
