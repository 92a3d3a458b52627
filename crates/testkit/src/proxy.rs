//! A TCP proxy in front of an S3 service that does not keep connections alive: each connection is one request, and some go wrong. Or in front of
//! anything else that is to be out of reach at times.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context, Result};

/// What happens to requests. One of so many is afflicted; 0: none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Weather {
    /// Nothing gets through, and what is under way is broken off.
    pub outage: bool,
    /// Held up for two seconds.
    pub late: u64,
    /// Told to slow down (503).
    pub throttled: u64,
    /// Broken off before the answer.
    pub reset: u64,
    /// Answered with a part of the body.
    pub cut: u64,
}

/// How long requests are held up that are.
const LATE: Duration = Duration::from_secs(2);
/// How often a connection looks whether it is to end.
const TICK: Duration = Duration::from_millis(50);
/// Bytes of an answer that is cut: the head and some of the body.
const CUT_BYTES: usize = 900;
const SLOW_DOWN: &[u8] =
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: 42\r\nConnection: close\r\n\r\n\
    <Error><Code>SlowDown</Code></Error>      ";

/// The proxy; it ends when it is dropped.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    service: String,
    weather: Mutex<Weather>,
    requests: AtomicU64,
    afflicted: AtomicU64,
    ended: AtomicBool,
}

impl Proxy {
    /// A proxy in front of the service at `service` (`HOST:PORT`).
    pub fn start(service: &str) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            service: service.to_owned(),
            weather: Mutex::default(),
            requests: AtomicU64::new(0),
            afflicted: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        let acceptor = std::thread::spawn(move || accepting.accept(&listener));
        Ok(Self { address, shared, acceptor: Some(acceptor) })
    }

    /// `http://HOST:PORT`
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// `HOST:PORT`
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on.
    pub fn set(&self, weather: Weather) {
        *self.shared.weather.lock().unwrap_or_else(PoisonError::into_inner) = weather;
    }

    /// Requests so far, and those that something was done to.
    pub fn counts(&self) -> (u64, u64) {
        (self.shared.requests.load(Relaxed), self.shared.afflicted.load(Relaxed))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Relaxed);
        // Wakes the acceptor.
        drop(TcpStream::connect(self.address));
        let _ = self.acceptor.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        let mut connections: Vec<JoinHandle<()>> = Vec::new();
        for client in listener.incoming().flatten() {
            if self.ended.load(Relaxed) {
                break;
            }
            connections.retain(|connection| !connection.is_finished());
            let shared = Arc::clone(self);
            connections.push(std::thread::spawn(move || {
                // Whatever fails here is one more broken connection.
                let _ = shared.serve(client);
            }));
        }
        connections.into_iter().for_each(|connection| drop(connection.join()));
    }

    fn weather(&self) -> Weather {
        *self.weather.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut client: TcpStream) -> Result<()> {
        let number = self.requests.fetch_add(1, Relaxed) + 1;
        let weather = self.weather();
        // Primes, so that faults of different kinds do not always meet the same requests.
        let strikes = |one_of: u64, offset: u64| {
            let strikes = one_of > 0 && (number + offset).is_multiple_of(one_of);
            self.afflicted.fetch_add(u64::from(strikes), Relaxed);
            strikes
        };
        if weather.outage || strikes(weather.reset, 1) {
            return Ok(());
        }
        if strikes(weather.late, 0) {
            std::thread::sleep(LATE);
        }
        if strikes(weather.throttled, 3) {
            let mut head = [0; 4096];
            let _ = client.read(&mut head)?;
            return Ok(client.write_all(SLOW_DOWN)?);
        }
        let most = if strikes(weather.cut, 5) { CUT_BYTES } else { usize::MAX };
        let service = TcpStream::connect(&self.service).context("the service")?;
        let (upward, from) = (service.try_clone()?, client.try_clone()?);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ = self.pass(from, upward, usize::MAX);
            });
            let passed = self.pass(service.try_clone()?, client.try_clone()?, most);
            // Ends the other direction as well.
            let _ = client.shutdown(std::net::Shutdown::Both);
            let _ = service.shutdown(std::net::Shutdown::Both);
            passed
        })
    }

    /// Passes on until the end, or `most` bytes, or an outage.
    fn pass(&self, mut from: TcpStream, mut to: TcpStream, most: usize) -> Result<()> {
        from.set_read_timeout(Some(TICK))?;
        let (mut buffer, mut passed) = ([0; 16 << 10], 0);
        while passed < most && !self.weather().outage && !self.ended.load(Relaxed) {
            match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => {
                    let count = count.min(most - passed);
                    to.write_all(&buffer[..count])?;
                    passed += count;
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
