//! Archives with the files of `COPY` steps, as clients have put them.
//!
//! ```text
//! BUILD-FILES/TEAM/HASH.DIGEST   a tar archive, also compressed; its time is that of the last use
//! BUILD-FILES/TEAM/.new-...      being put
//! ```
//!
//! The hash is what the client calls its files. The digest is that of their bytes (BLAKE3): layers of a build depend on it.

use std::{
    collections::HashMap,
    fmt,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use axum::{body::Body, http::StatusCode};
use base::{
    id::TeamId,
    limits::{
        BUILD_FILE_BYTES_MAX, BUILD_FILES_BYTES_MAX, BUILD_ROOM_MIN, BUILD_UPLOADS_AT_ONCE_MAX, BUILD_UPLOADS_MAX,
        BUILD_UPLOADS_OF_TEAM_MAX,
    },
};
use futures::StreamExt;
use tokio::io::AsyncWriteExt;

use super::turns::Turns;
use crate::e2b::failed::{Failed, Result};

/// How long an address for an upload is valid: an upload begins within it.
const ADDRESS_LIVES: Duration = Duration::from_secs(3_600);
/// How many bytes come between two looks at the room on the disk.
const LOOK_BYTES: u64 = 64 << 20;
/// How the names of files begin that are being put.
const NEW: &str = ".new-";

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

/// An archive that is there, open.
pub(super) struct Found {
    pub(super) file: File,
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
    /// By the hash of the token. The time that a search takes says nothing of a token then.
    admitted: Mutex<HashMap<[u8; 32], Admitted>>,
    /// Uploads at a time.
    turns: Turns,
}

impl Files {
    pub(super) fn within(state_dir: &Path) -> Self {
        let root = state_dir.join("build-files");
        // What a killed server was taking.
        let teams = fs::read_dir(&root).into_iter().flatten().flatten();
        let files = teams.flat_map(|team| fs::read_dir(team.path()).into_iter().flatten().flatten());
        let torn = files.filter(|file| file.file_name().to_string_lossy().starts_with(NEW));
        torn.for_each(|file| drop(fs::remove_file(file.path())));
        Self {
            root,
            admitted: Mutex::default(),
            turns: Turns::new(BUILD_UPLOADS_OF_TEAM_MAX, BUILD_UPLOADS_AT_ONCE_MAX),
        }
    }

    fn of(&self, team: &TeamId) -> PathBuf {
        self.root.join(team.to_string())
    }

    /// The names of those with this hash.
    fn named(&self, team: &TeamId, hash: &Hash) -> Vec<PathBuf> {
        let files = fs::read_dir(self.of(team)).into_iter().flatten().flatten().map(|file| file.path());
        files.filter(|path| path.file_stem().is_some_and(|stem| *stem == *hash.0)).collect()
    }

    pub(super) fn find(&self, team: &TeamId, hash: &Hash) -> Option<Found> {
        let opened = self.named(team, hash).into_iter().filter_map(|path| {
            let file = File::open(&path).ok()?;
            let digest = path.extension()?.to_str()?.to_owned();
            Some((file.metadata().ok()?.modified().ok()?, Found { file, digest }))
        });
        let (_, found) = opened.max_by_key(|(modified, _)| *modified)?;
        // Only which one goes first depends on it.
        let _ = found.file.set_modified(SystemTime::now());
        Some(found)
    }

    /// A token for one upload.
    pub(super) fn admit(&self, team: &TeamId, hash: &Hash) -> String {
        let mut bytes = [0; 32];
        base::id::fill_random(&mut bytes);
        let token = base::id::hex(&bytes);
        let admitted = Admitted { team: team.clone(), hash: hash.clone(), until: Instant::now() + ADDRESS_LIVES };
        let mut all = self.admitted.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, other| other.until > Instant::now());
        let own = || all.iter().filter(|(_, other)| other.team == *team);
        if own().count() >= BUILD_UPLOADS_MAX {
            // The one that has the least time left.
            let oldest = own().min_by_key(|(_, other)| other.until).map(|(key, _)| *key);
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
        let _turn = self.turns.take(&team).await;
        let directory = self.of(&team);
        fs::create_dir_all(&directory).map_err(failed)?;
        self.make_room(&team);
        let new = directory.join(format!("{NEW}{}", base::id::random_uuid()));
        let taken = receive(&new, body).await;
        let stored = match taken {
            Ok(digest) => {
                let earlier = self.named(&team, hash);
                let path = directory.join(format!("{hash}.{digest}"));
                let renamed = fs::rename(&new, &path).map_err(failed);
                // Builds that need them have them open.
                earlier.iter().filter(|earlier| **earlier != path).for_each(|earlier| drop(fs::remove_file(earlier)));
                renamed
            }
            Err(failed) => Err(failed),
        };
        if stored.is_err() {
            let _ = fs::remove_file(&new);
        }
        stored
    }

    /// Removes those of a team that were used longest ago, as long as all of them take too much.
    fn make_room(&self, team: &TeamId) {
        let files = fs::read_dir(self.of(team)).into_iter().flatten().flatten();
        let known = files.filter_map(|file| {
            let found = file.metadata().ok()?;
            Some((found.modified().ok()?, found.len(), file.path()))
        });
        let mut known: Vec<_> = known.filter(|(_, _, path)| path.extension().is_some()).collect();
        known.sort();
        let mut bytes: u64 = known.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, length, path) in known {
            if bytes <= BUILD_FILES_BYTES_MAX {
                break;
            }
            let _ = fs::remove_file(&path);
            bytes -= length;
        }
    }
}

/// Fails if others need the room that is left.
fn check_room(directory: &Path) -> Result<()> {
    if sys::file::room_at(directory).map_err(failed)? >= BUILD_ROOM_MIN {
        return Ok(());
    }
    Err(Failed::new(StatusCode::INSUFFICIENT_STORAGE, "the server's disk has no room for the files"))
}

async fn receive(new: &Path, body: Body) -> Result<String> {
    let mut file = tokio::fs::File::create_new(new).await.map_err(failed)?;
    let (mut hasher, mut bytes, mut looked) = (blake3::Hasher::new(), 0, 0);
    let directory = new.parent().unwrap_or(new);
    check_room(directory)?;
    let mut stream = body.into_data_stream();
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|error| Failed::invalid(format!("the upload broke off: {error}")))?;
        bytes += piece.len() as u64;
        if bytes > BUILD_FILE_BYTES_MAX {
            let most = BUILD_FILE_BYTES_MAX >> 20;
            return Err(Failed::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the files have more than {most} MiB")));
        }
        if bytes - looked > LOOK_BYTES {
            check_room(directory)?;
            looked = bytes;
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
        let mut content = String::new();
        std::io::Read::read_to_string(&mut { found.file }, &mut content).unwrap();
        assert_eq!((&*content, found.digest.len()), ("content", 64));
        files.take(&hash, &token, Body::from("other")).await.unwrap();
        assert_ne!(files.find(&team, &hash).unwrap().digest, found.digest);
        assert_eq!(files.named(&team, &hash).len(), 1);
        assert!(files.find(&TeamId::random(), &hash).is_none());
    }
}
