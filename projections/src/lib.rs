//! DevMind Ledger's read models: pure projections, one runner, rebuild
