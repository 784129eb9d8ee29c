//! What others call durable execution: one durable step of Restate, and of DBOS, that does what our device does.
//!
//! Both are programs of their own beside the bench, with the settings they come with. What is set: where they listen
//! and keep their files, that Restate sends no telemetry, and `TCP_NODELAY` on the service that Restate calls.
//! Restate (`@restatedev/restate-server`) keeps its log on this machine's disk and flushes every commit
//! (`rocksdb-disable-wal-fsync = false`); its service is written with its Rust SDK (`tests/peers/restate`). DBOS
//! (`@dbos-inc/dbos-sdk`) runs in node (`tests/peers/dbos`) on a database of the same PostgreSQL cluster as ours, by
//! ten connections.

use super::kept::{Kept, free_address};
use devmind_test_postgres::{Cluster, Database};
use devmind_tests::{eventually, peers};
use reqwest::Client;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The peers' programs.
pub struct Programs {
    restate_server: PathBuf,
    restate_service: PathBuf,
    dbos: PathBuf,
}

impl Programs {
    /// Fetches and builds them.
    ///
    /// # Errors
    /// What is missing on this machine.
    pub async fn fetch() -> Result<Self, &'static str> {
        let packages = peers::npm("restate").await?;
        let restate_server = server_of(&packages).ok_or("a system for which Restate's server is built")?;
        let dbos = peers::npm("dbos").await?.join("server.mjs");
        Ok(Self { restate_server, restate_service: peers::cargo("restate").await?, dbos })
    }
}

/// The server's program: npm installs the package of this system alone. The one in `.bin` would only start it.
fn server_of(packages: &Path) -> Option<PathBuf> {
    let folders = packages.join("node_modules/@restatedev").read_dir().ok()?;
    folders.map_while(Result::ok).map(|folder| folder.path().join("bin/restate-server")).find(|file| file.is_file())
}

/// A peer that answers.
pub struct Peer {
    /// What it is called.
    pub name: &'static str,
    http: Client,
    url: String,
    _programs: Vec<Kept>,
    _database: Option<Database>,
}

impl Peer {
    /// Restate's server and the service that it calls.
    pub async fn restate(programs: &Programs) -> Self {
        let [node, ingress, admin, service] = [(); 4].map(|()| free_address().to_string());
        let environment = [
            ("RESTATE_BIND_ADDRESS", node.as_str()),
            ("RESTATE_INGRESS__BIND_ADDRESS", &ingress),
            ("RESTATE_ADMIN__BIND_ADDRESS", &admin),
            ("RESTATE_DISABLE_TELEMETRY", "true"),
        ];
        let step = Kept::start(&programs.restate_service, &[&service], &[]);
        let server = Kept::start(&programs.restate_server, &["--base-dir", "data", "--no-logo"], &environment);
        let (http, deployments) = (client(), format!("http://{admin}/deployments"));
        let deployment = json!({ "uri": format!("http://{service}") });
        eventually("Restate knows its service", async || {
            let answer = post(&http, &deployments, &deployment).await;
            answer.map_err(|error| format!("{error}\n{}\n{}", step.said(), server.said()))
        })
        .await;
        let url = format!("http://{ingress}/Peer/list");
        Self::serving("Restate", http, url, vec![server, step], None).await
    }

    /// DBOS in node.
    pub async fn dbos(programs: &Programs) -> Self {
        let (address, database) = (free_address(), Cluster::shared().database());
        let port = address.port().to_string();
        let environment = [("PORT", port.as_str()), ("DBOS_SYSTEM_DATABASE_URL", database.url())];
        let server = programs.dbos.to_str().expect("a plain path");
        let node = Kept::start(Path::new("node"), &[server], &environment);
        let url = format!("http://{address}/list");
        Self::serving("DBOS", client(), url, vec![node], Some(database)).await
    }

    async fn serving(
        name: &'static str,
        http: Client,
        url: String,
        programs: Vec<Kept>,
        database: Option<Database>,
    ) -> Self {
        let peer = Self { name, http, url, _programs: programs, _database: database };
        eventually("a peer does its step", async || {
            let said = || peer._programs.iter().map(Kept::said).collect::<Vec<_>>().join("\n");
            let path = json!(env!("CARGO_MANIFEST_DIR"));
            post(&peer.http, &peer.url, &path).await.map_err(|error| format!("{name}: {error}\n{}", said()))
        })
        .await;
        peer
    }

    /// Has the step done: the names in a folder.
    pub fn list(&self, folder: &Path) -> impl Future<Output = Vec<String>> + Send + use<> {
        let (http, url, path) = (self.http.clone(), self.url.clone(), json!(folder));
        async move {
            let names = post(&http, &url, &path).await.unwrap_or_else(|error| panic!("{url}: {error}"));
            serde_json::from_value(names).expect("names")
        }
    }
}

/// A client that goes straight to this machine.
fn client() -> Client {
    // Idempotent: the first provider of the process stays.
    drop(rustls::crypto::ring::default_provider().install_default());
    Client::builder().no_proxy().build().expect("a client")
}

async fn post(http: &Client, url: &str, body: &Value) -> Result<Value, String> {
    let answer = http.post(url).json(body).send().await.map_err(|error| error.to_string())?;
    let status = answer.status();
    let text = answer.text().await.map_err(|error| error.to_string())?;
    if status.is_success() { serde_json::from_str(&text).map_err(|error| error.to_string()) } else { Err(text) }
}
