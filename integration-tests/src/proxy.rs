//! A cable that can be cut.

use std::sync::Arc;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A port that leads to a server.
#[derive(Debug)]
pub struct Proxy {
    /// Where to connect to.
    pub address: String,
    cuts: Arc<watch::Sender<u64>>,
}

impl Proxy {
    /// Opens a port in front of a server.
    ///
    /// # Panics
    /// There is no free port.
    pub async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let cuts = Arc::new(watch::Sender::new(0));
        let sender = cuts.clone();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let (server, mut cut) = (server.clone(), sender.subscribe());
                tokio::spawn(async move {
                    let Ok(mut far) = TcpStream::connect(server).await else { return };
                    tokio::select! {
                        _ = copy_bidirectional(&mut near, &mut far) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { address, cuts }
    }

    /// Cuts every connection there is. New ones get through.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}
