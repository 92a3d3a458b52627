//! The client of a guardian: plain and blocking.

use std::{
    fs::File,
    io::{ErrorKind, Read, Seek, Write},
    ops::Range,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::Duration,
};

use rustix::{
    fs::{MemfdFlags, memfd_create},
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
        sockopt::{Timeout, set_socket_timeout},
    },
};

use crate::{
    error::Error,
    limits::{IMAGE_BYTES_MAX, MESSAGE_BYTES_MAX, NAME_BYTES_MAX, SPANS_AT_START_MAX},
    message::{Reply, Request, Status},
};

/// Longest wait for an answer. The guardian answers from memory; if it was killed, the spare closes the connection.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A process to be served.
#[derive(Debug)]
pub struct Serve<'a> {
    /// What the image is called from here on.
    pub name: &'a str,
    /// The userfaultfd that the process made (`sys::uffd::Uffd::new`) and registered its memory with.
    pub uffd: BorrowedFd<'a>,
    /// The process.
    pub pid: i32,
    /// A pidfd of it.
    pub pidfd: BorrowedFd<'a>,
    /// The addresses that are registered: sorted, apart, whole pages.
    pub ranges: &'a [Range<u64>],
    /// What [`OpenSource::open`](crate::OpenSource::open) gets.
    pub image: &'a [u8],
    /// It stands still for ever, and only its forks run. Then these get what it has out of its memory, it alone is filled unasked, and
    /// they are only if it is gone, or by [`Client::hurry`].
    pub parked: bool,
}

/// A connection to a guardian. After an error, make a new one and ask again: all requests may be repeated.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
}

impl Client {
    /// Connects to the guardian that listens there.
    pub fn connect(socket: &Path) -> Result<Self, Error> {
        let address = SocketAddrUnix::new(socket).map_err(Error::system("use this path for a socket"))?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let socket = socket.map_err(Error::system("make a socket"))?;
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, direction, Some(ANSWER_TIMEOUT)).map_err(Error::system("set a timeout"))?;
        }
        connect(&socket, &address).map_err(Error::system("reach the pager's guardian"))?;
        Ok(Self { socket })
    }

    /// As [`Client::connect`]; none if nobody listens there. Another failure does not say that.
    pub fn find(socket: &Path) -> Result<Option<Self>, Error> {
        match Self::connect(socket) {
            Err(Error::System { source, .. })
                if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) =>
            {
                Ok(None)
            }
            connected => connected.map(Some),
        }
    }

    /// Has a process served, and all that are forked from it, until each has all its pages. The process should close its own
    /// descriptor of the userfaultfd, and the caller may close its own.
    pub fn serve(&mut self, serve: &Serve<'_>) -> Result<(), Error> {
        let within = |what, have: usize, most: usize| {
            if have <= most { Ok(()) } else { Err(Error::TooMuch { what, have: have as u64, most: most as u64 }) }
        };
        within("bytes of a name", serve.name.len(), NAME_BYTES_MAX)?;
        within("ranges", serve.ranges.len(), SPANS_AT_START_MAX)?;
        within("bytes of an image", serve.image.len(), IMAGE_BYTES_MAX as usize)?;
        let ranges = serve.ranges.iter().flat_map(|range| [range.start, range.end]).flat_map(u64::to_le_bytes);
        let mut bytes: Vec<u8> = ranges.collect();
        bytes.extend_from_slice(serve.image);
        let memfd = memfd_create("pando-image", MemfdFlags::CLOEXEC).map_err(Error::system("make a memfd"))?;
        let mut memfd = File::from(memfd);
        memfd.write_all(&bytes).map_err(Error::system("write a memfd"))?;
        let request = Request::Serve {
            name: serve.name.to_owned(),
            pid: serve.pid,
            ranges: serve.ranges.len() as u64,
            image_bytes: serve.image.len() as u64,
            parked: serve.parked,
        };
        self.ask(&request, &[serve.uffd, serve.pidfd, memfd.as_fd()]).map(drop)
    }

    /// What the pager does and did.
    pub fn status(&mut self) -> Result<Status, Error> {
        let json = self.ask(&Request::Status, &[])?;
        serde_json::from_slice(&json).map_err(|_| Error::NoAnswer)
    }

    /// The addresses, in the image, of the pages that were faulted on so far, in the order of their first faults.
    pub fn working_set(&mut self, name: &str) -> Result<Vec<u64>, Error> {
        let bytes = self.ask(&Request::WorkingSet { name: name.to_owned() }, &[])?;
        let (addresses, _) = bytes.as_chunks::<8>();
        Ok(addresses.iter().map(|address| u64::from_le_bytes(*address)).collect())
    }

    /// From now on all processes of the image are filled unasked, not only the one that stands still.
    pub fn hurry(&mut self, name: &str) -> Result<(), Error> {
        self.ask(&Request::Hurry { name: name.to_owned() }, &[]).map(drop)
    }

    /// The name may be used again, and what was recorded under it is dropped. Processes that lack pages are served on.
    pub fn forget(&mut self, name: &str) -> Result<(), Error> {
        self.ask(&Request::Forget { name: name.to_owned() }, &[]).map(drop)
    }

    /// Ends guardian and pager. Refused while any process lacks pages: they would read as zeros.
    pub fn shutdown(&mut self) -> Result<(), Error> {
        self.ask(&Request::Shutdown, &[]).map(drop)
    }

    /// Sends a request; the body of its answer, if it has one.
    fn ask(&mut self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<Vec<u8>, Error> {
        let message = serde_json::to_vec(request).map_err(|_| Error::NoAnswer)?;
        sys::seqpacket::send(&self.socket, &message, descriptors).map_err(Error::system("ask the pager's guardian"))?;
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        let (length, mut descriptors) =
            sys::seqpacket::recv(&self.socket, &mut buffer).map_err(Error::system("hear the pager's guardian"))?;
        match serde_json::from_slice(&buffer[..length]) {
            Ok(Reply::Done) => Ok(Vec::new()),
            Ok(Reply::Refused { reason }) => Err(Error::Refused(reason)),
            Ok(Reply::Body { bytes }) => {
                let mut file = File::from(descriptors.pop().ok_or(Error::NoAnswer)?);
                let mut body = vec![0; bytes as usize];
                file.rewind().and_then(|()| file.read_exact(&mut body)).map_err(Error::system("read the answer"))?;
                Ok(body)
            }
            Err(_) => Err(Error::NoAnswer),
        }
    }
}
