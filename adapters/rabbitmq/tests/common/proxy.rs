//! A cable between client and server that can be pulled.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Passes connections on to a server, on threads of its own.
pub struct Proxy {
    port: u16,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    cut: bool,
    streams: Vec<TcpStream>,
}

impl Proxy {
    /// A proxy for a server at `host:port`.
    pub fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (state, server) = (Arc::<Mutex<State>>::default(), server.to_owned());
        let shared = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                pass_on(client, &server, &shared);
            }
        });
        Self { port, state }
    }

    /// The URL of the server behind, by way of this proxy.
    pub fn url(&self, url: &str) -> String {
        let (start, rest) = url.split_once('@').unwrap();
        let (_, path) = rest.split_once('/').unwrap();
        format!("{start}@127.0.0.1:{}/{path}", self.port)
    }

    pub fn cut(&self) {
        let mut state = self.state.lock().unwrap();
        state.cut = true;
        for stream in state.streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub fn mend(&self) {
        self.state.lock().unwrap().cut = false;
    }
}

fn pass_on(client: TcpStream, server: &str, shared: &Mutex<State>) {
    let mut state = shared.lock().unwrap();
    if state.cut {
        return;
    }
    let Ok(server) = TcpStream::connect(server) else { return };
    for (from, to) in [(&client, &server), (&server, &client)] {
        let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        state.streams.push(from.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(n @ 1..) = from.read(&mut buffer) {
                if to.write_all(&buffer[..n]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}
