//! Makes cargo notice a new migration, which `sqlx::migrate!` embeds at compile time.

fn main() {
    println!("cargo:rerun-if-changed=../migrations/sqlite/views");
    println!("cargo:rerun-if-changed=../migrations/postgres/views");
}
