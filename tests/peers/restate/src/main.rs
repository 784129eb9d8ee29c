//! A service of Restate whose handler does one durable step: it lists a folder. `POST /Peer/list` at Restate's ingress,
//! with a path as JSON, answers the names. The one argument is where it listens.

use restate_sdk::prelude::*;
use std::io;
use tokio::net::TcpSocket;

struct Peer;

#[service]
impl Peer {
    #[handler]
    async fn list(&self, context: Context<'_>, path: Json<String>) -> HandlerResult<Json<Vec<String>>> {
        Ok(context.run(|| async { Ok(Json(names(&path.into_inner())?)) }).name("list").await?)
    }
}

fn names(path: &str) -> io::Result<Vec<String>> {
    std::fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let address = address.expect("an address, as in 127.0.0.1:9080, is the one argument");
    // Its connections inherit this. The SDK's own listener would let each step wait 40 ms for a delayed ACK.
    let socket = TcpSocket::new_v4()?;
    socket.set_nodelay(true)?;
    socket.bind(address)?;
    HttpServer::new(Endpoint::builder().bind(Peer).build()).serve(socket.listen(1024)?).await;
    Ok(())
}
