//! The guardian: keeps every mount alive, whatever becomes of the worker.
//!
//! One thread that waits for one socket. It knows nothing of volumes: it holds descriptors, and starts a worker that gets them all. When the
//! guardian dies, the worker starts another one in the same way.

use std::{
    fs::{self, File},
    io,
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::Path,
    process::Child,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with},
};

use crate::{
    Config, Error, Role,
    client::{CONTROL_SOCKET, HTTP_SOCKET},
    error::chain,
    held::{Heard, Held, Shared},
    limits::{CLIENTS_WAITING, LOCK_MAX, RESTARTS_MAX, RESTARTS_UNUSED_MAX},
    message,
    process::{self, Pace},
};

struct Worker {
    socket: OwnedFd,
    /// None: it was there before this guardian, and is another's child.
    child: Option<Child>,
}

/// How a worker has ended.
enum Ended {
    Orderly,
    Died,
}

/// The body of a guardian. `worker`: the socket of the one that started it.
pub(crate) fn run(config: &Config, worker: Option<OwnedFd>) -> Result<(), Error> {
    // Not permitted only where there is no such limit.
    let _ = rustix::thread::set_name(c"volume-guardian");
    let (mut held, mut worker) = match worker {
        None => (Held::new(take_folder(&config.folder)?), None),
        Some(socket) => {
            let held = Held::receive(&socket).map_err(Error::system("hear what is mounted"))?;
            (held, Some(Worker { socket, child: None }))
        }
    };
    let mut pace = Pace::default();
    loop {
        let current = match worker.take() {
            Some(worker) => worker,
            None => start(config, &held, &mut pace)?,
        };
        match attend(&mut held, current) {
            Ended::Orderly => return Ok(()),
            Ended::Died => {
                tracing::warn!(mounts = held.mounts.len(), "the worker of volumes died; another one goes on")
            }
        }
    }
}

/// Starts a worker that has all that is held.
fn start(config: &Config, held: &Held, pace: &mut Pace) -> Result<Worker, Error> {
    loop {
        std::thread::sleep(pace.pause());
        let most = if held.mounts.is_empty() { RESTARTS_UNUSED_MAX } else { RESTARTS_MAX };
        if pace.failures > most {
            tracing::error!(mounts = held.mounts.len(), "no worker of volumes stays alive: mounts end here");
            return Err(Error::NoWorker { attempts: pace.failures });
        }
        pace.started();
        match process::start(config, Role::Worker) {
            // If it dies before it has heard all, that is seen where it is attended to.
            Ok((child, socket)) => {
                if let Err(error) = held.tell(&socket) {
                    tracing::warn!(error = chain(&error), "the worker of volumes does not listen");
                }
                return Ok(Worker { socket, child: Some(child) });
            }
            Err(error) => tracing::error!(error = chain(&error), "cannot start a worker of volumes"),
        }
    }
}

/// Does what the worker says until its end.
fn attend(held: &mut Held, mut worker: Worker) -> Ended {
    let ended = loop {
        let heard = match message::receive(&worker.socket) {
            Ok(Some((telling, descriptors))) => held.hear(telling, descriptors),
            // The kernel closes a process's descriptors when none of its threads does anything any more.
            Ok(None) => break Ended::Died,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break Ended::Died,
            Err(error) => Err(error),
        };
        match heard {
            Ok(Heard::Changed | Heard::Ready) => {}
            Ok(Heard::End) => break Ended::Orderly,
            Err(error) => tracing::error!(error = chain(&error), "the worker of volumes says what nobody understands"),
        }
    };
    if let Some(child) = &mut worker.child {
        // Not to leave a zombie; it cannot fail for a child of one's own.
        let _ = child.wait();
    }
    ended
}

/// Makes this process the only one of the folder.
fn take_folder(folder: &Path) -> Result<Shared, Error> {
    fs::create_dir_all(folder).map_err(Error::system("make the folder of volumes"))?;
    // Logs and sockets are nobody else's business.
    let private = fs::set_permissions(folder, fs::Permissions::from_mode(0o700));
    private.map_err(Error::system("protect the folder of volumes"))?;
    let lock = File::create(folder.join("lock")).map_err(Error::system("make the lock of volumes"))?;
    let deadline = Instant::now() + LOCK_MAX;
    // One that is about to end may still have it.
    while let Err(errno) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        if errno != rustix::io::Errno::WOULDBLOCK {
            return Err(Error::system("lock the folder of volumes")(errno));
        }
        if Instant::now() > deadline {
            return Err(Error::InUse(folder.to_owned()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let control = listen_at(&folder.join(CONTROL_SOCKET), SocketType::SEQPACKET)?;
    // Last: clients try this one first.
    let http = listen_at(&folder.join(HTTP_SOCKET), SocketType::STREAM)?;
    Ok(Shared { lock: lock.into(), http, control })
}

fn listen_at(path: &Path, kind: SocketType) -> Result<OwnedFd, Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Error::system("remove an old socket")(error));
        }
        _ => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, kind, flags, None).map_err(Error::system("make a socket"))?;
    let address = SocketAddrUnix::new(path).map_err(Error::system("use this path for a socket"))?;
    bind(&socket, &address).map_err(Error::system("bind the socket"))?;
    // Before anyone can connect.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(Error::system("protect the socket"))?;
    listen(&socket, CLIENTS_WAITING).map_err(Error::system("listen"))?;
    Ok(socket)
}
