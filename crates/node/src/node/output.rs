//! The output of a sandbox's program: a pipe that belongs to its user, and a file in which it is kept.
//!
//! ```text
//! program (and /dev/stdout, /dev/stderr) --> pipe --> pid 1 of the sandbox --> output file <-- node: logs, cuts
//! ```
//!
//! A file could not be both opened by the program by these names and safe from it: whoever may write to a file may cut it, as a shell does with
//! `> /dev/stderr`. Pid 1 lives as long as the sandbox, also while no node is there. What has been written is in the file microseconds later;
//! who needs to know that it is there waits until the pipe is empty.

use std::{
    fs::{DirBuilder, File, Metadata, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt},
    },
    time::{Duration, Instant},
};

use base::id::SandboxId;
use process::{Stream, StreamFile};
use rustix::{
    fs::{OFlags, fstat},
    pipe::{PipeFlags, pipe_with},
};
use sandbox::ProcessIdentity;

use super::Node;
use crate::{
    config::output_file,
    error::{Context, Result},
};

/// Between two looks whether a pipe is empty.
const LOOK: Duration = Duration::from_millis(1);

/// The end of a sandbox's pipe that its program writes to.
pub(super) type Writer = OwnedFd;

/// What pid 1 needs to carry a program's output.
#[derive(Debug)]
pub(crate) struct Carriage {
    pipe: OwnedFd,
    file: OwnedFd,
}

impl Carriage {
    /// In the order in which the keeper's requests take them.
    pub(super) fn descriptors(&self) -> [&OwnedFd; 2] {
        [&self.pipe, &self.file]
    }
}

impl Node {
    /// Makes pipe and file, and the sandbox's directory if it is not there.
    pub(super) fn make_output(&self, id: &SandboxId) -> Result<(Writer, Carriage)> {
        let dir = self.host.config.sandbox_dir(id);
        match DirBuilder::new().mode(0o700).create(&dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.at("create", &dir)?,
        }
        let path = output_file(&dir);
        // Not to append: splice(2) refuses such files, and pid 1 is the only one that writes to it.
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path).at("open", &path)?;
        let (pipe, writer) = pipe_with(PipeFlags::CLOEXEC).doing("make a pipe")?;
        Ok((writer, Carriage { pipe, file: file.into() }))
    }

    /// Which files a program was started with: a copy gets its own sandbox's instead.
    pub(super) fn streams(&self, id: &SandboxId, init: ProcessIdentity) -> Result<Vec<(StreamFile, Stream)>> {
        let null = fstat(&self.host.null).doing("look at /dev/null")?;
        let mut streams = vec![(StreamFile { dev: null.st_dev, ino: null.st_ino }, Stream::STDIN)];
        // The latter of a sandbox that an earlier version of the node has made: its program writes to the file itself.
        let file = std::fs::metadata(output_file(&self.host.config.sandbox_dir(id))).ok();
        for output in [pipe(init), file].into_iter().flatten() {
            use std::os::unix::fs::MetadataExt;
            streams.push((StreamFile { dev: output.dev(), ino: output.ino() }, Stream::STDOUT));
        }
        Ok(streams)
    }
}

/// Where pid 1 has its end of the pipe.
fn end(init: ProcessIdentity) -> String {
    format!("/proc/{}/fd/0", init.pid)
}

/// The pipe that a pid 1 carries from, if there is one.
fn pipe(init: ProcessIdentity) -> Option<Metadata> {
    std::fs::metadata(end(init)).ok().filter(|found| found.file_type().is_fifo() && init.is_alive())
}

/// Another reading end of it, which does not wait.
fn open(init: ProcessIdentity) -> Option<File> {
    pipe(init)?;
    let flags = OFlags::NONBLOCK.bits() as i32;
    OpenOptions::new().read(true).custom_flags(flags).open(end(init)).ok()
}

/// Waits until all that was written is in the file, for `most` at most.
pub(super) async fn carried(init: ProcessIdentity, most: Duration) {
    let Some(pipe) = open(init) else { return };
    let began = Instant::now();
    while rustix::io::ioctl_fionread(&pipe).is_ok_and(|bytes| bytes > 0) && began.elapsed() < most {
        tokio::time::sleep(LOOK).await;
    }
}

/// Appends to the file what a pid 1 that stands still has not carried.
pub(super) fn carry_rest(init: ProcessIdentity, file: &std::path::Path) -> Result<()> {
    let Some(mut pipe) = open(init) else { return Ok(()) };
    let mut rest = Vec::new();
    match pipe.read_to_end(&mut rest) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error).doing("read the output's pipe"),
        _ => {}
    }
    if rest.is_empty() {
        return Ok(());
    }
    let mut file_opened = OpenOptions::new().append(true).open(file).at("open", file)?;
    file_opened.write_all(&rest).at("write", file)
}
