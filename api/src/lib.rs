//! DevMind Ledger's server
