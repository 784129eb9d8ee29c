//! Who may have the pages, and what of them; over real HTTP, against a server that says what it was asked.

use super::*;
use axum::http::header::{AUTHORIZATION, CONTENT_SECURITY_POLICY, SET_COOKIE};
use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};

const FRAMED_BY: &str = "127.0.0.1:4711";

/// The pages of a server that answers each request with what it was.
struct Served {
    host: String,
    address: SocketAddr,
    client: Client,
}

impl Served {
    async fn start() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let behind = Loopback::bind().await.expect("a port");
        let server = Server::parse(&format!("http://{}", behind.address), false).expect("a server");
        tokio::spawn(behind.serve(Router::new().fallback(tell)));
        Self::of(server).await
    }

    async fn of(server: Server) -> Self {
        let framed_by = FRAMED_BY.parse().expect("an address");
        let pages = Pages::bind(server, Identity::Bearer("the-token".to_owned()), "dev".into(), framed_by).await;
        let pages = pages.expect("a port");
        let (host, address) = (pages.app.host.to_string(), pages.loopback.address);
        assert_eq!(pages.url(), format!("http://{host}/"));
        tokio::spawn(pages.serve());
        let client = Client::builder().no_proxy().tls_certs_only([]).redirect(reqwest::redirect::Policy::none());
        Self { host, address, client: client.build().expect("a client") }
    }

    fn get(&self, path: &str) -> RequestBuilder {
        self.client.get(format!("http://{}{path}", self.address)).header(HOST, &self.host)
    }

    fn post(&self, path: &str) -> RequestBuilder {
        self.client.post(format!("http://{}{path}", self.address)).header(HOST, &self.host).body("a=b")
    }
}

async fn tell(request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 10).await.expect("a body");
    let headers: serde_json::Map<_, _> =
        head.headers.iter().map(|(name, value)| (name.to_string(), json!(value.to_str().expect("text")))).collect();
    let told = json!({
        "path": head.uri.to_string(), "headers": headers, "body": String::from_utf8_lossy(&body),
    });
    let more = [(SET_COOKIE, "a=b"), (LOCATION, "http://elsewhere.example/"), (CONTENT_SECURITY_POLICY, "x")];
    (more, axum::Json(told)).into_response()
}

#[tokio::test]
async fn the_server_is_asked_as_the_user_and_hears_nothing_else_of_the_browser() {
    let served = Served::start().await;
    let reply = served.get("/chat?c=1").header("cookie", "a=b").header(AUTHORIZATION, "Bearer other").send().await;
    let reply = reply.expect("served");
    assert!(reply.headers().get(SET_COOKIE).is_none() && reply.headers().get(LOCATION).is_none());
    let policy = reply.headers()[CONTENT_SECURITY_POLICY].to_str().expect("text").to_owned();
    assert!(policy.contains(&format!("frame-ancestors http://{FRAMED_BY} http://localhost:4711")), "{policy}");
    assert!(policy.contains("script-src 'self'") && !policy.contains("unsafe"), "{policy}");
    let told: Value = reply.json().await.expect("JSON");
    assert_eq!((&told["path"], &told["headers"]["authorization"]), (&json!("/chat?c=1"), &json!("Bearer the-token")));
    assert_eq!(told["headers"][DEVICE_HEADER], "dev");
    assert_eq!(told["headers"]["cookie"], Value::Null);
}

#[tokio::test]
async fn a_change_comes_from_these_pages_or_not_at_all() {
    let served = Served::start().await;
    let own = format!("http://{}", served.host);
    let reply = served.post("/chat/ask").header(ORIGIN, &own).send().await.expect("served");
    let told: Value = reply.json().await.expect("JSON");
    assert_eq!(told["body"], "a=b");
    assert_ne!(told["headers"]["origin"], Value::Null);
    for origin in ["null", "http://evil.example", &format!("http://{FRAMED_BY}"), &format!("{own}.example")] {
        let reply = served.post("/chat/ask").header(ORIGIN, origin).send().await.expect("served");
        assert_eq!(reply.status(), 403, "{origin}");
    }
    assert_eq!(served.post("/chat/ask").send().await.expect("served").status(), 403, "no origin at all");
}

#[tokio::test]
async fn a_name_that_is_not_the_key_gets_nothing_and_neither_does_the_devices_own_interface() {
    let served = Served::start().await;
    let port = served.address.port();
    for host in [format!("127.0.0.1:{port}"), format!("localhost:{port}"), format!("{}0", served.host)] {
        let reply = served.client.get(format!("http://{}/chat", served.address)).header(HOST, &host).send().await;
        assert_eq!(reply.expect("served").status(), 403, "{host}");
    }
    for path in ["/api/desktop/ws", "/x/../api/desktop/connection-ticket", "//api/desktop/ws"] {
        assert_eq!(served.get(path).send().await.expect("served").status(), 404, "{path}");
    }
}

#[tokio::test]
async fn where_the_server_is_not_there_people_get_a_page_that_tries_again_and_scripts_a_code() {
    let gone = Loopback::bind().await.expect("a port").address;
    let served = Served::of(Server::parse(&format!("http://{gone}"), false).expect("a server")).await;
    let page = served.get("/").header(ACCEPT, "text/html").send().await.expect("served");
    assert_eq!(page.status(), 503);
    assert!(page.text().await.expect("text").contains("http-equiv=\"refresh\""));
    let reply = served.get("/chat/stream").send().await.expect("served");
    assert_eq!(reply.json::<Value>().await.expect("JSON")["error"]["code"], "SERVER_UNREACHABLE");
}
