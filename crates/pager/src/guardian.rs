//! The guardian: keeps every userfaultfd open and every journal safe, whatever becomes of the pager.
//!
//! When the last descriptor of a userfaultfd is closed, all pages that are still missing read as zeros, silently. So three processes share
//! *one table of descriptors* (`CLONE_FILES`) and the *board*, shared memory:
//!
//! ```text
//!   guardian   one thread; answers clients, starts the other two, starts them again
//!   spare      one thread; waits for the guardian's end, and takes its place
//!   pager      many threads; serves
//! ```
//!
//! The table lives as long as one of them. The kernel puts the userfaultfd of a forked child into it in the same call that tells of the fork,
//! and the telling goes straight into the board: there is no instant at which the death of any one of them loses anything. For this
//! the pager must not be another program (`execve` gives a process a table of its own), so all three are one program, forked
//! before it has threads.
//!
//! Each may be killed at any moment, and is replaced by one that is left. Only if all three are killed before they could replace
//! each other is memory lost.

mod family;
mod service;

use std::{
    fs,
    io::ErrorKind,
    os::fd::{AsFd, AsRawFd, IntoRawFd, RawFd},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

use crate::{
    board::{Board, Word, borrow, from_descriptor},
    error::Error,
    limits::CLIENTS_MAX,
    pages::OpenSource,
    server::Options,
};

/// What a guardian is told at its start.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where clients connect; only the owner may.
    pub socket: PathBuf,
    /// How long it stays without clients and without processes to serve.
    pub idle_exit: Duration,
    /// For the pager.
    pub pager: Options,
}

/// Longest wait, so that idleness is noticed.
const TICK: Duration = Duration::from_secs(1);

struct Guardian {
    board: Board,
    config: Config,
    opener: Arc<dyn OpenSource>,
    /// Descriptors that were open before: not the pager's, so not to be closed with its own.
    inherited: Vec<RawFd>,
    busy: Instant,
}

/// The body of the guardian. Call it in a process of one thread that does nothing else. Returns when it was told to end, or is of no use.
pub fn run(config: Config, opener: Arc<dyn OpenSource>) -> Result<(), Error> {
    let inherited = family::open_descriptors().map_err(Error::system("list descriptors"))?;
    raise_descriptor_limit();
    family::spare_when_memory_is_short(true);
    let board = Board::new().map_err(Error::system("make shared memory"))?;
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(Error::system("make an eventfd"))?;
    board.set(Word::Bell, from_descriptor(bell.into_raw_fd()));
    let listener = listen_at(&config.socket)?;
    board.set(Word::Listener, from_descriptor(listener.as_raw_fd()));
    let _stays_open = listener.into_raw_fd();
    let own = family::own_pidfd().map_err(Error::system("open a pidfd of itself"))?;
    board.set(Word::Guardian, from_descriptor(own.into_raw_fd()));
    let mut guardian = Guardian { board, config, opener, inherited, busy: Instant::now() };
    guardian.guard()
}

/// Each process that is served takes up to two descriptors.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // As far as it is allowed; what does not fit is refused when it comes.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

fn listen_at(path: &Path) -> Result<std::os::fd::OwnedFd, Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let socket = socket.map_err(Error::system("make a socket"))?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(Error::system("remove an old socket")(error)),
        _ => {}
    }
    let address = SocketAddrUnix::new(path).map_err(Error::system("use this path for a socket"))?;
    bind(&socket, &address).map_err(Error::system("bind the socket"))?;
    // Before anyone can connect.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(Error::system("protect the socket"))?;
    listen(&socket, CLIENTS_MAX as i32).map_err(Error::system("listen"))?;
    Ok(socket)
}

/// What woke the guardian.
enum Woken {
    Client(usize),
    Listener,
    Family,
}

impl Guardian {
    /// The guardian's loop, also of a spare that took over.
    fn guard(&mut self) -> Result<(), Error> {
        self.busy = Instant::now();
        loop {
            self.keep_family();
            self.forget_images();
            if self.is_idle() {
                self.end_family();
                return Ok(());
            }
            for woken in self.wait()? {
                match woken {
                    Woken::Family => {}
                    Woken::Listener => self.accept(),
                    Woken::Client(place) => {
                        if self.serve_client(place) == service::After::End {
                            self.end_family();
                            return Ok(());
                        }
                    }
                }
            }
        }
    }

    fn wait(&self) -> Result<Vec<Woken>, Error> {
        let board = self.board;
        let family = [Word::Pager, Word::Spare].map(|word| (Woken::Family, board.descriptor(word)));
        let clients = board.clients().iter().enumerate();
        let clients = clients.map(|(place, word)| (Woken::Client(place), service::descriptor(word)));
        let listener = (Woken::Listener, board.descriptor(Word::Listener));
        let all = family.into_iter().chain([listener]).chain(clients);
        let open: Vec<_> = all.filter_map(|(woken, fd)| Some((woken, borrow(Some(fd?)).ok()?))).collect();
        let mut polled: Vec<_> = open.iter().map(|(_, fd)| PollFd::new(&**fd, PollFlags::IN)).collect();
        let tick = Timespec { tv_sec: TICK.as_secs() as i64, tv_nsec: 0 };
        match poll(&mut polled, Some(&tick)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::system("wait")(error)),
        }
        let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(polled);
        Ok(open.into_iter().zip(ready).filter_map(|((woken, _), ready)| ready.then_some(woken)).collect())
    }

    /// Whether nobody has needed it for long enough.
    fn is_idle(&mut self) -> bool {
        let clients = self.board.clients().iter().any(|word| service::descriptor(word).is_some());
        if clients || self.unfinished() > 0 {
            self.busy = Instant::now();
        }
        self.busy.elapsed() > self.config.idle_exit
    }

    /// Rings for the pager.
    fn ring(&self) {
        if let Ok(bell) = borrow(self.board.descriptor(Word::Bell)) {
            // Full means rung.
            let _ = rustix::io::write(bell.as_fd(), &1u64.to_ne_bytes());
        }
    }
}
