//! Makes cargo notice a new migration, which `sqlx::migrate!` embeds at compile time.

fn main() {
    println!("cargo:rerun-if-changed=../migrations/sqlite/ledger");
    println!("cargo:rerun-if-changed=../migrations/postgres/ledger");
}
