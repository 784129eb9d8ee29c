//! TLS for calls that leave this process.

/// Gives the process its one TLS provider; must come before the first HTTP client is made. Calling it
/// again changes nothing.
pub fn install_provider() {
    drop(rustls::crypto::ring::default_provider().install_default());
}
