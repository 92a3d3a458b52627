//! A service that is far away: a proxy that delays bytes and lets them through at full rate otherwise.
//!
//! Half of the latency goes to each direction, so that an answer comes that much later. A new connection costs nothing more: services
//! under test may open one for each request, which those that are far away do not. Threads and not tasks, because the runtime's clock
//! has ticks of a millisecond.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

/// What one read takes.
const PIECE_BYTES: usize = 64 << 10;
/// Pieces on their way in one direction of one connection: 64 MiB, far more than passes in 10 ms.
const PIECES_MAX: usize = 1024;

/// Listens until it is dropped. Connections end with their clients.
pub(super) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    listening: Option<JoinHandle<()>>,
}

struct Shared {
    service: String,
    latency: Duration,
    /// From the service to its clients.
    bytes: AtomicU64,
    ended: AtomicBool,
}

/// Bytes, and when they arrive.
struct Piece {
    due: Instant,
    bytes: Vec<u8>,
}

impl Proxy {
    /// Stands before `service`, HOST:PORT.
    pub(super) fn start(service: &str, latency: Duration) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot start a proxy")?;
        let address = listener.local_addr()?;
        let (bytes, ended) = (AtomicU64::new(0), AtomicBool::new(false));
        let shared = Arc::new(Shared { service: service.to_owned(), latency, bytes, ended });
        let theirs = shared.clone();
        let listening =
            std::thread::Builder::new().name("proxy".to_owned()).spawn(move || listen(&listener, &theirs))?;
        Ok(Self { address, shared, listening: Some(listening) })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What has come from the service so far, heads of answers included.
    pub(super) fn bytes(&self) -> u64 {
        self.shared.bytes.load(Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Relaxed);
        // It wakes up, looks, and ends.
        if TcpStream::connect(self.address).is_ok()
            && let Some(thread) = self.listening.take()
        {
            let _ = thread.join();
        }
    }
}

fn listen(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        if shared.ended.load(Relaxed) {
            return;
        }
        // A client that cannot be served sees its connection close.
        if let Ok(client) = client
            && let Err(error) = serve(client, shared)
        {
            tracing::warn!(service = shared.service, %error, "the proxy cannot pass on a connection");
        }
    }
}

/// Starts both directions of a connection.
fn serve(client: TcpStream, shared: &Arc<Shared>) -> std::io::Result<()> {
    let service = TcpStream::connect(&shared.service)?;
    client.set_nodelay(true)?;
    service.set_nodelay(true)?;
    pass_on(client.try_clone()?, service.try_clone()?, shared.clone(), false)?;
    pass_on(service, client, shared.clone(), true)
}

fn pass_on(from: TcpStream, to: TcpStream, shared: Arc<Shared>, counted: bool) -> std::io::Result<()> {
    let (sender, receiver) = sync_channel(PIECES_MAX);
    let read = move || take(from, &sender, &shared, counted);
    std::thread::Builder::new().name("proxy-read".to_owned()).spawn(read)?;
    std::thread::Builder::new().name("proxy-write".to_owned()).spawn(move || give(to, &receiver))?;
    Ok(())
}

fn take(mut from: TcpStream, pieces: &SyncSender<Piece>, shared: &Shared, counted: bool) {
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let bytes = match from.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => return,
            Ok(length) => buffer[..length].to_vec(),
        };
        if counted {
            shared.bytes.fetch_add(bytes.len() as u64, Relaxed);
        }
        let due = Instant::now() + shared.latency / 2;
        if pieces.send(Piece { due, bytes }).is_err() {
            return;
        }
    }
}

fn give(mut to: TcpStream, pieces: &Receiver<Piece>) {
    for Piece { due, bytes } in pieces {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    // Both ways: the other direction ends, too.
    let _ = to.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_comes_later_by_the_latency_and_is_whole() {
        const LATENCY: Duration = Duration::from_millis(20);
        let service = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let proxy = Proxy::start(&service.local_addr().unwrap().to_string(), LATENCY).unwrap();
        let answer = vec![7; 3 * PIECE_BYTES];
        let expected = answer.clone();
        let serving = std::thread::spawn(move || {
            let (mut connection, _) = service.accept().unwrap();
            for _ in 0..2 {
                connection.read_exact(&mut [0]).unwrap();
                connection.write_all(&answer).unwrap();
            }
        });
        let mut client = TcpStream::connect(proxy.address()).unwrap();
        let mut ask = || {
            let (began, mut answer) = (Instant::now(), vec![0; expected.len()]);
            client.write_all(&[1]).unwrap();
            client.read_exact(&mut answer).unwrap();
            assert_eq!(answer, expected);
            began.elapsed()
        };
        assert!(ask() >= LATENCY && ask() >= LATENCY);
        serving.join().unwrap();
        assert_eq!(proxy.bytes(), 2 * expected.len() as u64);
    }
}
