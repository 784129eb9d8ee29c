//! DevMind Ledger's desktop device
