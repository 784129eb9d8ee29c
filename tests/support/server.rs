//! A server in this process, on a port of its own of the loopback address and over a temporary folder.

use crate::client::Client;
use crate::data::{self, Data};
use crate::log::Log;
use crate::model::ModelEndpoint;
use crate::port::own_address;
use devmind_api::config::{DatabaseUrl, ModelConfig, ServerConfig};
use devmind_api::model::Model;
use devmind_api::{Server, ServerHandle};
use std::net::SocketAddr;
use std::sync::Arc;

/// A server that serves. A test ends with [`TestServer::finish`], which checks log and views; one
/// that forgets it fails.
pub struct TestServer {
    /// Its files.
    pub data: Data,
    /// Its settings.
    pub config: ServerConfig,
    model: Option<Arc<dyn Model>>,
    handle: Option<ServerHandle>,
    finished: bool,
}

impl TestServer {
    /// With the demo model.
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    /// With a model's endpoint.
    pub async fn with_model(endpoint: &ModelEndpoint) -> Self {
        Self::start_with(|config| config.model = Some(endpoint.config())).await
    }

    /// With a model in this process.
    pub async fn with_scripted(model: Arc<dyn Model>) -> Self {
        Self::scripted_with(model, |_| {}).await
    }

    /// With a model in this process and other settings.
    pub async fn scripted_with(model: Arc<dyn Model>, change: impl FnOnce(&mut ServerConfig)) -> Self {
        let (data, config) = Self::settings(change);
        Self::open(data, config, Some(model)).await
    }

    /// With other settings.
    pub async fn start_with(change: impl FnOnce(&mut ServerConfig)) -> Self {
        let (data, config) = Self::settings(change);
        Self::open(data, config, None).await
    }

    /// Over a database, whatever store the tests run on, with a model in this process.
    pub async fn on_postgres(model: Arc<dyn Model>, change: impl FnOnce(&mut ServerConfig)) -> Self {
        let (data, config) = Self::settings_over(Data::postgres(), change);
        Self::open(data, config, Some(model)).await
    }

    fn settings(change: impl FnOnce(&mut ServerConfig)) -> (Data, ServerConfig) {
        Self::settings_over(Data::new(), change)
    }

    fn settings_over(data: Data, change: impl FnOnce(&mut ServerConfig)) -> (Data, ServerConfig) {
        let mut config = ServerConfig {
            listen: own_address().to_string(),
            data: data.path().to_owned(),
            database_url: data.database_url().map(|url| DatabaseUrl(url.to_owned())),
            node_id: Some("test".to_owned()),
            ..ServerConfig::default()
        };
        change(&mut config);
        (data, config)
    }

    async fn open(data: Data, config: ServerConfig, model: Option<Arc<dyn Model>>) -> Self {
        let server = match &model {
            Some(model) => Server::open_with_model(&config, model.clone()).await,
            None => Server::open(&config).await,
        };
        let server = server.expect("the server starts");
        // A restart serves at the same address, where devices look for it.
        let config = ServerConfig { listen: server.address().to_string(), ..config };
        Self { data, config, model, handle: Some(server.spawn()), finished: false }
    }

    fn handle(&self) -> &ServerHandle {
        self.handle.as_ref().expect("a running server")
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.handle().address
    }

    /// Its address as a URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// What the server shares between its parts.
    pub fn app(&self) -> &devmind_api::state::App {
        &self.handle().app
    }

    /// A client of a user.
    pub fn client(&self, user: &str) -> Client {
        Client::new(self.address(), user)
    }

    /// Its log.
    pub fn log(&self) -> Log {
        Log(self.app().ledger.reader().clone())
    }

    /// Lets the log refuse every event of which this SQL condition on `NEW` holds, until
    /// [`Self::ledger_takes_all`].
    pub async fn ledger_refuses(&self, condition: &str) {
        let refuse = "BEGIN SELECT RAISE(ABORT, 'refused by a test'); END";
        let trigger = format!("CREATE TRIGGER refused_by_a_test BEFORE INSERT ON events WHEN {condition} {refuse}");
        self.data.change_ledger(&trigger).await;
    }

    /// Changes the log behind the server's back.
    pub async fn change_ledger(&self, statements: &str) {
        self.data.change_ledger(statements).await;
    }

    /// Ends [`Self::ledger_refuses`].
    pub async fn ledger_takes_all(&self) {
        self.data.change_ledger("DROP TRIGGER refused_by_a_test").await;
    }

    /// A second server over the same database, under another name, with a model in this process. What the two share
    /// is the database alone.
    pub async fn beside(&self, name: &str, model: Arc<dyn Model>) -> Self {
        let folder = self.data.path().join(name);
        let listen = own_address().to_string();
        let config = ServerConfig { listen, data: folder, node_id: Some(name.to_owned()), ..self.config.clone() };
        Self::open(self.data.clone(), config, Some(model)).await
    }

    /// Stops in order; the end of the process must be the last event, and the log must verify.
    pub async fn stop(mut self) -> Stopped {
        self.stop_and_check().await;
        Stopped { data: self.data.clone(), config: self.config.clone(), model: self.model.clone() }
    }

    /// Stops and starts again over the same files.
    pub async fn restart(self) -> Self {
        self.stop().await.start().await
    }

    /// The end of every test: views and log are checked while the server still serves, then it
    /// stops in order, then the files are checked as they were left.
    pub async fn finish(mut self) {
        self.stop_and_check().await;
    }

    async fn stop_and_check(&mut self) {
        // Set first: a check that fails panics, and the drop must not panic on top of it.
        self.finished = true;
        let app = self.handle().app.clone();
        let head = app.ledger.reader().head().await.expect("the log can be read").position;
        app.views.wait_for(head).await.expect("the views catch up with the log");
        for projection in app.views.status().await.expect("the views tell how they stand") {
            assert!(projection.failed.is_none(), "{projection:?}");
        }
        let tools = app.tools.current();
        data::check(&self.data.views_place(), app.ledger.reader(), tools.registry()).await;
        self.handle.take().expect("a running server").stop().await;
        let facts = self.data.log().await.all().await;
        // Judged by this server's own events: another one on the same database goes on writing.
        let node = self.config.node_id.as_deref().expect("every server of a test has a name");
        let last = facts.iter().rfind(|fact| fact.metadata["node_id"] == node).expect("a server has written");
        assert!(last.is("NodeStopped"), "a stop in order is a server's last event, not {last}");
        self.data.check_with(tools.registry()).await;
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if !self.finished && !std::thread::panicking() {
            panic!("a test must end with `finish().await`, which checks log and views");
        }
    }
}

/// A server that has stopped, with its files.
pub struct Stopped {
    /// Its files.
    pub data: Data,
    /// Its settings.
    pub config: ServerConfig,
    model: Option<Arc<dyn Model>>,
}

impl Stopped {
    /// Starts again over the same files.
    pub async fn start(self) -> TestServer {
        TestServer::open(self.data, self.config, self.model).await
    }

    /// Starts again with a model.
    pub async fn start_with_model(mut self, model: ModelConfig) -> TestServer {
        self.config.model = Some(model);
        self.start().await
    }
}
