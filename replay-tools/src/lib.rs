//! DevMind Ledger's operator tools
