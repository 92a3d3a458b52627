//! The holder: takes commands, answers clients, and keeps its spare.

mod connection;
mod table;

use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd, OwnedFd},
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with},
};
use tokio::{
    io::Interest,
    sync::{Notify, watch},
};

use crate::{
    Config, Error, LOCK, SOCKET,
    held::{Held, Streams},
    limits::{CLIENTS_WAITING, IDLE_MAX, LOCK_MAX},
    message::{Family, Link, Telling, watched},
    record::Process,
    spare::{Common, Inheritance, SpareSlot},
};
use table::Table;

/// How often it looks whether it is idle.
const TICK: Duration = Duration::from_secs(1);

/// A holder that runs.
pub(crate) struct Holder {
    table: Table,
    spare: SpareSlot,
    /// Grows with each end, so that watchers look.
    ends: watch::Sender<u64>,
    /// A client wants it to end.
    stop: Notify,
}

/// The life of the first holder of a family.
pub(crate) fn begin(config: &Config) -> Result<(), Error> {
    let common = take_folder(&config.folder)?;
    serve(config, Inheritance { common, commands: Vec::new() })
}

/// The life of a spare whose holder has died.
pub(crate) fn take_over(config: &Config, inheritance: Inheritance) -> Result<(), Error> {
    tracing::warn!(commands = inheritance.commands.len(), "the holder died; its spare goes on");
    serve(config, inheritance)
}

fn serve(config: &Config, inheritance: Inheritance) -> Result<(), Error> {
    let _ = rustix::thread::set_name(c"holder");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Error::system("start the holder"))?;
    runtime.block_on(async {
        let holder = Arc::new(Holder {
            table: Table::default(),
            spare: SpareSlot::new(),
            ends: watch::Sender::new(0),
            stop: Notify::new(),
        });
        holder.run(config, inheritance).await
    })
}

impl Holder {
    async fn run(self: Arc<Self>, config: &Config, inheritance: Inheritance) -> Result<(), Error> {
        let Inheritance { common, commands } = inheritance;
        for (streams, pidfd) in commands {
            let key = streams.meta.key.clone();
            match self.enter(streams, pidfd, None) {
                Ok(held) => held.pump(),
                Err(error) => tracing::error!(key, %error, "a command is lost"),
            }
        }
        let listener = common.listener.try_clone().map_err(Error::system("share the socket"))?;
        let accepting = Arc::clone(&self);
        tokio::select! {
            failed = accepting.accept(listener) => return failed,
            () = self.spare.keep(config, &common, || self.table.begun()) => {}
            () = self.until_idle() => {}
            () = self.stop.notified() => {}
        }
        self.spare.tell(&Telling::End).await;
        let _ = fs::remove_file(config.folder.join(SOCKET));
        Ok(())
    }

    async fn accept(self: Arc<Self>, listener: OwnedFd) -> Result<(), Error> {
        let listener = watched(listener).map_err(Error::system("watch the socket"))?;
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let client = listener.async_io(Interest::READABLE, |fd| Ok(accept_with(fd, flags)?)).await;
            match client.and_then(Link::new) {
                Ok(link) => {
                    let holder = Arc::clone(&self);
                    tokio::spawn(async move { holder.attend(link).await });
                }
                Err(error) => {
                    // Descriptors are short, for example: clients wait.
                    tracing::warn!(%error, "a client of the holder cannot be taken");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }

    /// Takes a command whose process has begun, and sees to its end. Its output is not read before the pumps start.
    fn enter(self: &Arc<Self>, streams: Streams, pidfd: OwnedFd, process: Option<Process>) -> io::Result<Arc<Held>> {
        let held = Held::begin(streams, pidfd)?;
        if let Some(process) = process {
            held.record.set_process(process);
        }
        self.table.enter(&held);
        let (holder, of) = (Arc::clone(self), Arc::clone(&held));
        tokio::spawn(async move {
            of.until_end().await;
            holder.ends.send_modify(|count| *count += 1);
        });
        Ok(held)
    }

    async fn forget(&self, key: &str) {
        if let Some(held) = self.table.remove(key) {
            held.forget();
            self.spare.tell(&Telling::Forget { key: key.to_owned() }).await;
        }
    }

    async fn until_idle(&self) {
        let mut busy = Instant::now();
        while busy.elapsed() < IDLE_MAX {
            tokio::time::sleep(TICK).await;
            if !self.table.is_idle() {
                busy = Instant::now();
            }
        }
    }

    fn family(&self) -> Family {
        let (running, ended) = self.table.counts();
        let holder = rustix::process::getpid().as_raw_nonzero().get();
        Family { holder, spare: self.spare.pid(), running, ended }
    }

    /// A node has done what is to be done after the end of a command.
    async fn settle(&self, key: &str) {
        let Some(held) = self.table.get(key) else { return };
        held.record.settle();
        for key in self.table.surplus() {
            self.forget(&key).await;
        }
    }
}

/// Makes this process the first of the folder's family.
fn take_folder(folder: &Path) -> Result<Common, Error> {
    fs::create_dir_all(folder).map_err(Error::system("make the folder of commands"))?;
    let private = fs::set_permissions(folder, fs::Permissions::from_mode(0o700));
    private.map_err(Error::system("protect the folder of commands"))?;
    let lock = File::create(folder.join(LOCK)).map_err(Error::system("make the lock of commands"))?;
    let deadline = Instant::now() + LOCK_MAX;
    // A family that is about to end may still have it.
    while let Err(errno) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        if errno != rustix::io::Errno::WOULDBLOCK {
            return Err(Error::system("lock the folder of commands")(errno));
        }
        if Instant::now() > deadline {
            return Err(Error::InUse(folder.to_owned()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let listener = listen_at(&folder.join(SOCKET))?;
    Ok(Common { lock: lock.into(), listener })
}

fn listen_at(path: &Path) -> Result<OwnedFd, Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Error::system("remove an old socket")(error));
        }
        _ => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let socket = socket.map_err(Error::system("make a socket"))?;
    let address = SocketAddrUnix::new(path).map_err(Error::system("use this path for a socket"))?;
    bind(socket.as_fd(), &address).map_err(Error::system("bind the socket"))?;
    // Before anyone can connect.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(Error::system("protect the socket"))?;
    listen(&socket, CLIENTS_WAITING).map_err(Error::system("listen"))?;
    Ok(socket)
}
