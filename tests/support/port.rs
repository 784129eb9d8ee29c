//! Addresses for servers that are started again where they were.
//!
//! A port that the system gave out (`:0`) is free for everybody while its server is down, and any other test's next
//! listener or connection may get it. The ports from here lie below those that systems give out by themselves
//! (RFC 6335 §6: from 49152; Linux: from 32768), so nobody takes one by chance.

use std::hash::{BuildHasher as _, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The first of them.
const FIRST: u16 = 10_000;
/// How many there are.
const COUNT: u16 = 22_000;

/// An address of this computer that nobody listens on, given to nobody else by this process.
pub fn own_address() -> SocketAddr {
    // Other processes, of other checkouts, begin elsewhere.
    static NEXT: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(RandomState::new().hash_one(()) >> 1));
    loop {
        let offset = NEXT.fetch_add(1, Ordering::Relaxed) % u64::from(COUNT);
        let port = FIRST + u16::try_from(offset).expect("below a count of ports");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}
