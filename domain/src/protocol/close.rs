//! Close codes (RFC 6455 §7.4): why a socket ended and what the device does about it.

/// A close code of the device channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum CloseCode {
    /// The server ends.
    GoingAway = 1001,
    /// A message was not text.
    NotText = 1003,
    /// A frame was larger than agreed.
    TooBig = 1009,
    /// The server restarts.
    Restarting = 1012,
    /// The server has too much to do.
    Busy = 1013,
    /// The peer broke the protocol.
    Protocol = 4400,
    /// The ticket is unknown, used or expired.
    Ticket = 4401,
    /// The origin or the device is refused.
    Denied = 4403,
    /// The peer was silent for too long.
    Silent = 4408,
    /// A newer socket of the device took over.
    Replaced = 4409,
    /// Too many messages.
    RateLimited = 4429,
}

impl CloseCode {
    /// Every code.
    pub const ALL: [Self; 11] = [
        Self::GoingAway,
        Self::NotText,
        Self::TooBig,
        Self::Restarting,
        Self::Busy,
        Self::Protocol,
        Self::Ticket,
        Self::Denied,
        Self::Silent,
        Self::Replaced,
        Self::RateLimited,
    ];

    /// The number on the wire.
    pub const fn as_u16(self) -> u16 {
        self as u16
    }

    /// The code with this number.
    pub fn from_u16(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.as_u16() == number)
    }

    /// Whether the device stays off after it: connecting again cannot help, or would fight.
    pub const fn is_final_for_device(self) -> bool {
        match self {
            Self::Denied | Self::Replaced => true,
            Self::GoingAway
            | Self::NotText
            | Self::TooBig
            | Self::Restarting
            | Self::Busy
            | Self::Protocol
            | Self::Ticket
            | Self::Silent
            | Self::RateLimited => false,
        }
    }
}
