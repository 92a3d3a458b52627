//! The download of one blob to a file, which goes on where an earlier one ended.
//!
//! The file has the first bytes of the blob, and is whole when it is as long as the blob and has its digest. No other process needs to know.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use images::{Blob, Digester};
use reqwest::{
    StatusCode,
    header::{CONTENT_RANGE, HeaderMap},
};

use crate::{
    attempts::Attempts,
    background::in_background,
    downloads::Turn,
    error::{Context, Error, Result},
    http::Answer,
    limits::STEP_BYTES,
    meter::Meter,
    session::Session,
};

/// The bytes that are there.
struct Partial {
    file: File,
    path: PathBuf,
    digester: Digester,
    bytes: u64,
    /// A write may outlive the download that it belongs to.
    _turn: Arc<Turn>,
}

impl Partial {
    fn open(path: &Path, bytes_max: u64, turn: Arc<Turn>) -> Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let mut partial = Self {
            file: file.at("open", path)?,
            path: path.to_owned(),
            digester: Digester::default(),
            bytes: 0,
            _turn: turn,
        };
        let mut buffer = vec![0; 256 << 10];
        loop {
            let length = partial.file.read(&mut buffer).at("read", path)?;
            if length == 0 {
                return Ok(partial);
            }
            partial.digester.update(&buffer[..length]);
            partial.bytes += length as u64;
            if partial.bytes > bytes_max {
                partial.empty()?;
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).at("write", &self.path)?;
        self.digester.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn empty(&mut self) -> Result<()> {
        let emptied = self.file.set_len(0).and_then(|()| io::Seek::rewind(&mut self.file));
        emptied.at("empty", &self.path)?;
        (self.digester, self.bytes) = (Digester::default(), 0);
        Ok(())
    }
}

/// A blob that is downloaded.
pub(crate) struct Download<'a> {
    pub(crate) session: &'a Session<'a>,
    pub(crate) blob: &'a Blob,
    /// What it is, for people.
    pub(crate) what: String,
    pub(crate) meter: &'a Meter<'a>,
}

impl Download<'_> {
    /// Fills the file at `path`. One that is there is checked first. If its bytes are wrong it is removed.
    pub(crate) async fn run(&self, path: PathBuf, turn: Arc<Turn>) -> Result<()> {
        let bytes_max = self.blob.bytes;
        let mut partial = in_background(move || Partial::open(&path, bytes_max, turn)).await?;
        let mut was_there = partial.bytes > 0;
        self.meter.add(partial.bytes);
        loop {
            partial = self.fill(partial).await?;
            let found = partial.digester.digest();
            if found == self.blob.digest {
                return Ok(());
            }
            self.meter.subtract(partial.bytes);
            if !was_there {
                let _ = fs::remove_file(&partial.path);
                return Err(Error::Digest { what: self.what.clone(), found: found.to_string() });
            }
            // What an earlier pull left may be torn by a crash of the machine.
            was_there = false;
            partial.empty()?;
        }
    }

    async fn fill(&self, mut partial: Partial) -> Result<Partial> {
        let mut attempts = Attempts::default();
        while partial.bytes < self.blob.bytes {
            let before = partial.bytes;
            let answer = match self.ask(&mut partial).await {
                Ok(answer) => answer,
                Err(error) => {
                    attempts.pause_after(error).await?;
                    continue;
                }
            };
            let ended;
            (partial, ended) = self.take(answer, partial).await?;
            if let Err(error) = ended {
                if partial.bytes > before {
                    attempts.forget();
                }
                attempts.pause_after(error).await?;
            }
        }
        Ok(partial)
    }

    /// Asks for what is missing. A registry that knows no ranges gives all once more.
    async fn ask(&self, partial: &mut Partial) -> Result<Answer> {
        let path = format!("blobs/{}", self.blob.digest);
        let answer =
            self.session.get(&path, &self.what, "*/*", partial.bytes).await.and_then(|answer| self.measured(answer));
        let is_from_there = match &answer {
            Ok(answer) if answer.status() == StatusCode::PARTIAL_CONTENT => {
                starts_at(answer.headers()) == Some(partial.bytes)
            }
            Ok(_) => partial.bytes == 0,
            Err(Error::Answer { status: 416, .. }) => false,
            Err(_) => true,
        };
        if is_from_there {
            return answer;
        }
        self.meter.subtract(partial.bytes);
        partial.empty()?;
        match answer {
            Ok(answer) if answer.status() == StatusCode::OK => Ok(answer),
            _ => self.measured(self.session.get(&path, &self.what, "*/*", 0).await?),
        }
    }

    /// The answer, if it is as long as the manifest says, or does not tell.
    fn measured(&self, answer: Answer) -> Result<Answer> {
        let first = if answer.status() == StatusCode::PARTIAL_CONTENT { starts_at(answer.headers()) } else { Some(0) };
        match answer.length().zip(first).map(|(length, first)| first.saturating_add(length)) {
            Some(found) if found != self.blob.bytes => {
                Err(Error::Length { what: self.what.clone(), wanted: self.blob.bytes, found })
            }
            Some(_) | None => Ok(answer),
        }
    }

    /// Writes what comes. The second result tells how it ended.
    async fn take(&self, mut answer: Answer, mut partial: Partial) -> Result<(Partial, Result<()>)> {
        loop {
            let bytes = match answer.step(STEP_BYTES as usize).await {
                Ok(bytes) => bytes,
                Err(error) => return Ok((partial, Err(error))),
            };
            let (length, left) = (bytes.len() as u64, self.blob.bytes - partial.bytes);
            if length > left {
                let _ = fs::remove_file(&partial.path);
                return Err(Error::TooLarge { what: self.what.clone(), bytes_max: self.blob.bytes });
            }
            if length == 0 {
                let broken = Error::BrokenOff { host: answer.host.clone(), what: self.what.clone(), source: None };
                return Ok((partial, if left == 0 { Ok(()) } else { Err(broken) }));
            }
            partial = in_background(move || partial.write(&bytes).map(|()| partial)).await?;
            self.meter.add(length);
        }
    }
}

/// The first byte of a part: `bytes FIRST-LAST/ALL`.
fn starts_at(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get(CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes ")?;
    range.split_once('-')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_says_where_it_starts() {
        let read = |text: &str| starts_at(&HeaderMap::from_iter([(CONTENT_RANGE, text.parse().unwrap())]));
        assert_eq!(read("bytes 100-199/200"), Some(100));
        assert_eq!(read("bytes */200"), None);
        assert_eq!(read("lines 1-2/3"), None);
    }
}
