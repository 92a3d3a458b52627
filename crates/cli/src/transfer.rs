//! Files, or standard input and output, as bodies of requests and answers.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::Path,
};

use anyhow::{Context, Result};
use base::text;
use bytes::Bytes;
use client::{Download, Upload};
use tempfile::NamedTempFile;
use tokio::sync::mpsc;

use crate::{exit::Failure, output::Progress};

/// Standard input or output instead of a file.
pub(crate) const STANDARD: &str = "-";
/// Bytes read of a file at a time, and parts of it on their way.
const PART_BYTES: usize = 256 << 10;
const PARTS: usize = 4;

/// Writes the answer to a request into a new file that only its owner can read, or to standard output; gives its length, if it is a file.
/// If it breaks off there is no file, and the user gets `advice`.
pub(crate) async fn write(
    path: &Path,
    answer: impl Future<Output = client::Result<Download>>,
    advice: &str,
) -> Result<Option<u64>> {
    if path == Path::new(STANDARD) {
        let copied = to_stdout(&mut answer.await?, None).await;
        copied.with_context(|| format!("the answer is not whole; {advice}"))?;
        return Ok(None);
    }
    let taken = || Failure::Usage(format!("{} is there already", path.display()));
    if path.symlink_metadata().is_ok() {
        return Err(taken().into());
    }
    let at = || format!("cannot write {}", path.display());
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Else the message names the temporary file.
    directory.metadata().with_context(at)?;
    // Mode 0600; gone if anything fails from here on, also when the command is interrupted.
    let mut file = NamedTempFile::new_in(directory).with_context(at)?;
    let copied = copy(&mut answer.await?, None, file.as_file_mut()).await;
    let bytes = copied.with_context(|| format!("the answer is not whole; {advice}"))?;
    file.as_file().sync_all().with_context(at)?;
    let named = file.persist_noclobber(path);
    named.map_err(|error| match error.error.kind() {
        io::ErrorKind::AlreadyExists => anyhow::Error::from(taken()),
        _ => anyhow::Error::from(error.error).context(at()),
    })?;
    File::open(directory).and_then(|directory| directory.sync_all()).with_context(at)?;
    Ok(Some(bytes))
}

/// Writes an answer to standard output. A reader that has enough, such as `head`, ends it without a complaint.
pub(crate) async fn to_stdout(answer: &mut Download, total: Option<u64>) -> Result<()> {
    let mut out = io::stdout();
    let written = copy(answer, total, &mut out).await.and_then(|_| out.flush().context("cannot write the file"));
    match written {
        Err(error) if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) => {
            Ok(())
        }
        written => written,
    }
}

/// Writes an answer as it comes, and gives its length. `total`: the length that is expected.
pub(crate) async fn copy(answer: &mut Download, total: Option<u64>, out: &mut impl Write) -> Result<u64> {
    let mut progress = Progress::new();
    let mut bytes = 0;
    while let Some(part) = answer.next().await? {
        out.write_all(&part).context("cannot write the file")?;
        bytes += part.len() as u64;
        progress.show(&so_far(bytes, total));
    }
    progress.clear();
    Ok(bytes)
}

fn so_far(bytes: u64, total: Option<u64>) -> String {
    match total.filter(|total| *total > 0) {
        Some(total) => {
            let percent = bytes.min(total) as f64 / total as f64 * 100.0;
            format!("{} of {} ({percent:.0} %)", text::bytes(bytes), text::bytes(total))
        }
        None => text::bytes(bytes),
    }
}

/// A file, or standard input, as the body of a request. It is read by a thread of its own, which nobody waits for: standard input may never end.
pub(crate) fn read(path: &Path) -> Result<Upload> {
    let (mut file, total): (Box<dyn Read + Send>, _) = if path == Path::new(STANDARD) {
        (Box::new(io::stdin()), None)
    } else {
        let opened = File::open(path).and_then(|file| match file.metadata()? {
            found if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            found => Ok((file, found.len())),
        });
        let (file, length) = opened.with_context(|| format!("cannot open {}", path.display()))?;
        (Box::new(file), Some(length))
    };
    let (sender, parts) = mpsc::channel(PARTS);
    std::thread::spawn(move || {
        let mut progress = Progress::new();
        let (mut buffer, mut bytes) = (vec![0; PART_BYTES], 0);
        loop {
            let part = match file.read(&mut buffer) {
                Ok(0) => return progress.clear(),
                Ok(read) => Ok(Bytes::copy_from_slice(&buffer[..read])),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            bytes += part.as_ref().map_or(0, Bytes::len) as u64;
            progress.show(&so_far(bytes, total));
            let failed = part.is_err();
            if sender.blocking_send(part).is_err() || failed {
                return progress.clear();
            }
        }
    });
    Ok(Upload::new(parts))
}
