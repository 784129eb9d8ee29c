//! What holds whatever the projections are: the runner, the file, rebuild and check.

mod build;
mod file;
mod fragile;
mod past;
mod poison;
mod random;
mod rebuild;
mod runner;
mod upcast;
mod version;
