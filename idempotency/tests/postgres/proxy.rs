//! A TCP proxy that stands between a pool and the server and can do what networks do.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::AbortHandle;

/// What happens to the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// They pass.
    Pass,
    /// They stay where they are, and no connection is closed: a frozen server.
    Stall,
    /// The next COMMIT reaches the server, its answer does not reach the client.
    LoseCommitReply,
    /// The next COMMIT is lost on its way, and the server hears nothing of the end.
    LoseCommit,
}

const MODES: [Mode; 4] = [Mode::Pass, Mode::Stall, Mode::LoseCommitReply, Mode::LoseCommit];

#[derive(Clone)]
pub struct Proxy {
    port: u16,
    state: Arc<State>,
    door: AbortHandle,
    /// Bound where nobody listens any more.
    held: Arc<Mutex<Option<TcpSocket>>>,
}

struct State {
    mode: AtomicU8,
    hits: AtomicU32,
}

impl State {
    fn mode(&self) -> Mode {
        MODES[usize::from(self.mode.load(SeqCst))]
    }

    /// Uses a mode up: it happens to one COMMIT only.
    fn hit(&self) {
        self.mode.store(Mode::Pass as u8, SeqCst);
        self.hits.fetch_add(1, SeqCst);
    }

    async fn stalled(&self) {
        while self.mode() == Mode::Stall {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Proxy {
    /// A proxy to where these options lead, and the options that lead through it.
    pub async fn before(options: &PgConnectOptions) -> (Self, PgConnectOptions) {
        let upstream = (options.get_host().to_owned(), options.get_port());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State { mode: AtomicU8::new(0), hits: AtomicU32::new(0) });
        let shared = state.clone();
        let door = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (upstream, state) = (upstream.clone(), shared.clone());
                tokio::spawn(async move {
                    state.stalled().await;
                    if let Ok(server) = TcpStream::connect(upstream).await {
                        between(client, server, state).await;
                    }
                });
            }
        });
        let proxy = Self { port, state, door: door.abort_handle(), held: Arc::default() };
        let through = options.clone().host("127.0.0.1").port(proxy.port);
        (proxy, through)
    }

    pub fn set(&self, mode: Mode) {
        self.state.mode.store(mode as u8, SeqCst);
    }

    /// Refuses new connections from now on; those that stand go on.
    pub async fn close_door(&self) {
        self.door.abort();
        // Held, the port is nobody else's meanwhile: a listener's of a test beside, or a client's
        // own, which would meet itself there.
        let address = ([127, 0, 0, 1], self.port).into();
        loop {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_reuseaddr(true).unwrap();
            if socket.bind(address).is_ok() {
                *self.held.lock().unwrap() = Some(socket);
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        while TcpStream::connect(("127.0.0.1", self.port)).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// How many COMMITs were hit.
    pub fn hits(&self) -> u32 {
        self.state.hits.load(SeqCst)
    }
}

async fn between(client: TcpStream, server: TcpStream, state: Arc<State>) {
    let (client_in, client_out) = client.into_split();
    let (server_in, server_out) = server.into_split();
    let back = tokio::spawn(copy(server_in, client_out, state.clone()));
    up(client_in, server_out, state, back.abort_handle()).await;
    let _ = back.await;
}

/// From the server to the client.
async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, state: Arc<State>) {
    let mut buffer = [0; 16 * 1024];
    loop {
        let Ok(read @ 1..) = from.read(&mut buffer).await else { return };
        state.stalled().await;
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// From the client to the server.
async fn up(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    state: Arc<State>,
    back: tokio::task::AbortHandle,
) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let Ok(read @ 1..) = from.read(&mut buffer).await else { return };
        state.stalled().await;
        let bytes = &buffer[..read];
        if bytes.windows(8).any(|window| window == b"; COMMIT") {
            match state.mode() {
                Mode::LoseCommitReply => {
                    // The way back is cut first, so that no answer gets through.
                    back.abort();
                    state.hit();
                    let _ = to.write_all(bytes).await;
                    // The server sees the end of the connection only after it did its part.
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    return;
                }
                Mode::LoseCommit => {
                    back.abort();
                    state.hit();
                    // Half open: the server waits for a client that is gone.
                    tokio::spawn(async move {
                        tokio::time::sleep(Duration::from_secs(60)).await;
                        drop(to);
                    });
                    return;
                }
                _ => {}
            }
        }
        if to.write_all(bytes).await.is_err() {
            return;
        }
    }
}
