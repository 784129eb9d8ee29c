//! DevMind Ledger's event store: group-commit append, ordered read, follow
