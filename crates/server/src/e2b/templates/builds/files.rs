//! Archives with the files of `COPY` steps, as clients have put them.
//!
//! ```text
//! BUILD-FILES/TEAM/HASH          a tar archive, also compressed; its time is that of the last use
//! BUILD-FILES/TEAM/HASH.digest   BLAKE3 of its bytes: layers of a build depend on it, not on what a client says of it
//! BUILD-FILES/TEAM/.new-...      being put
//! ```

use std::{
    collections::HashMap,
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use axum::{body::Body, http::StatusCode};
use base::{
    id::TeamId,
    limits::{BUILD_FILE_BYTES_MAX, BUILD_FILES_BYTES_MAX, BUILD_UPLOADS_MAX},
};
use futures::StreamExt;
use tokio::io::AsyncWriteExt;

use crate::e2b::failed::{Failed, Result};

/// How long an address for an upload is valid: an upload begins within it.
const ADDRESS_LIVES: Duration = Duration::from_secs(3_600);
const DIGEST: &str = "digest";

/// What a client calls its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hash(String);

impl Hash {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() == 64 && text.bytes().all(is_digit) {
            return Ok(Self(text.to_owned()));
        }
        Err(Failed::invalid("the hash of files is a SHA-256 in hexadecimal"))
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An archive that is there.
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) digest: String,
}

struct Admitted {
    team: TeamId,
    hash: Hash,
    until: Instant,
}

/// All archives of a server.
pub(crate) struct Files {
    root: PathBuf,
    /// By the hash of the token: a look into a table takes as long as the text has in common with another.
    admitted: Mutex<HashMap<[u8; 32], Admitted>>,
}

impl Files {
    pub(super) fn within(state_dir: &Path) -> Self {
        Self { root: state_dir.join("build-files"), admitted: Mutex::default() }
    }

    fn place(&self, team: &TeamId, hash: &Hash) -> PathBuf {
        self.root.join(team.to_string()).join(&hash.0)
    }

    pub(super) fn find(&self, team: &TeamId, hash: &Hash) -> Option<Found> {
        let path = self.place(team, hash);
        let digest = fs::read_to_string(path.with_extension(DIGEST)).ok()?;
        let file = fs::File::open(&path).ok()?;
        // Only which one goes first depends on it.
        let _ = file.set_modified(SystemTime::now());
        Some(Found { path, digest })
    }

    /// A token for one upload.
    pub(super) fn admit(&self, team: &TeamId, hash: &Hash) -> String {
        let mut bytes = [0; 32];
        base::id::fill_random(&mut bytes);
        let token = base::id::hex(&bytes);
        let admitted = Admitted { team: team.clone(), hash: hash.clone(), until: Instant::now() + ADDRESS_LIVES };
        let mut all = self.admitted.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, other| other.until > Instant::now());
        if all.len() >= BUILD_UPLOADS_MAX {
            // The one that has the least time left.
            let oldest = all.iter().min_by_key(|(_, other)| other.until).map(|(key, _)| *key);
            oldest.map(|key| all.remove(&key));
        }
        all.insert(*blake3::hash(token.as_bytes()).as_bytes(), admitted);
        token
    }

    fn team_of(&self, hash: &Hash, token: &str) -> Option<TeamId> {
        let key = *blake3::hash(token.as_bytes()).as_bytes();
        let all = self.admitted.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.get(&key).filter(|found| found.hash == *hash && found.until > Instant::now());
        found.map(|found| found.team.clone())
    }

    /// Stores what a client puts: all of it or nothing.
    pub(super) async fn take(&self, hash: &Hash, token: &str, body: Body) -> Result<()> {
        let none = || Failed::new(StatusCode::FORBIDDEN, "the address of the upload is not valid any more");
        let team = self.team_of(hash, token).ok_or_else(none)?;
        let path = self.place(&team, hash);
        let directory = path.parent().unwrap_or(&self.root).to_owned();
        fs::create_dir_all(&directory).map_err(failed)?;
        self.make_room();
        let new = directory.join(format!(".new-{}", base::id::random_uuid()));
        let taken = receive(&new, body).await;
        let stored = match taken {
            Ok(digest) => {
                fs::write(path.with_extension(DIGEST), digest).and_then(|()| fs::rename(&new, &path)).map_err(failed)
            }
            Err(failed) => Err(failed),
        };
        if stored.is_err() {
            let _ = fs::remove_file(&new);
        }
        stored
    }

    /// Removes those that were used longest ago, as long as all of them take too much.
    fn make_room(&self) {
        let teams = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let files = teams.flat_map(|team| fs::read_dir(team.path()).into_iter().flatten().flatten());
        let known = files.filter_map(|file| {
            let found = file.metadata().ok()?;
            Some((found.modified().ok()?, found.len(), file.path()))
        });
        let mut known: Vec<_> = known.filter(|(_, _, path)| path.extension().is_none()).collect();
        known.sort();
        let mut bytes: u64 = known.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, length, path) in known {
            if bytes <= BUILD_FILES_BYTES_MAX {
                break;
            }
            let _ = fs::remove_file(path.with_extension(DIGEST));
            let _ = fs::remove_file(&path);
            bytes -= length;
        }
    }
}

async fn receive(new: &Path, body: Body) -> Result<String> {
    let mut file = tokio::fs::File::create_new(new).await.map_err(failed)?;
    let (mut hasher, mut bytes) = (blake3::Hasher::new(), 0);
    let mut stream = body.into_data_stream();
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|error| Failed::invalid(format!("the upload broke off: {error}")))?;
        bytes += piece.len() as u64;
        if bytes > BUILD_FILE_BYTES_MAX {
            let most = BUILD_FILE_BYTES_MAX >> 20;
            return Err(Failed::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the files have more than {most} MiB")));
        }
        hasher.update(&piece);
        file.write_all(&piece).await.map_err(failed)?;
    }
    file.flush().await.map_err(failed)?;
    Ok(hasher.finalize().to_string())
}

fn failed(error: io::Error) -> Failed {
    tracing::error!(%error, "the files of a build cannot be stored");
    Failed::new(StatusCode::INTERNAL_SERVER_ERROR, "the files cannot be stored: the server's log says why")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_upload_needs_its_own_address_and_is_there_whole() {
        let folder = tempfile::tempdir().unwrap();
        let files = Files::within(folder.path());
        let (team, hash) = (TeamId::random(), Hash::parse(&"a".repeat(64)).unwrap());
        assert!(Hash::parse("../../x").is_err() && Hash::parse(&"A".repeat(64)).is_err());
        let other = Hash::parse(&"b".repeat(64)).unwrap();
        let token = files.admit(&team, &hash);
        for (of, with) in [(&hash, "no"), (&other, token.as_str())] {
            assert!(files.take(of, with, Body::from("x")).await.is_err());
        }
        assert!(files.find(&team, &hash).is_none());
        files.take(&hash, &token, Body::from("content")).await.unwrap();
        let found = files.find(&team, &hash).unwrap();
        assert_eq!(fs::read(found.path).unwrap(), b"content");
        assert_eq!(found.digest.len(), 64);
        assert!(files.find(&TeamId::random(), &hash).is_none());
    }
}
