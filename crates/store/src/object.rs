//! Objects: immutable bytes under a key, in a local directory or in an S3-compatible bucket.
//!
//! [`Objects`] is a cheap handle that everything above shares. It bounds requests under way, gives each a time limit, repeats
//! transient failures with jittered backoff, and counts. No key is ever written twice: [`Objects::put`] and [`Upload::finish`]
//! refuse an existing one. An upload that was not finished, for whatever reason, is not visible to any reader.

use std::{ops::Range, sync::Arc, time::SystemTime};

use bytes::Bytes;
use object_store::{Error as StoreError, GetRange, path::Path};

use crate::limits;

mod backend;
mod directory;
#[cfg(debug_assertions)]
mod faults;
mod location;
mod requests;
mod staged;
mod upload;

#[cfg(debug_assertions)]
pub use faults::{FaultInjector, FaultPlan};
pub use location::{InvalidLocation, Location, S3Location};
pub use requests::{Counters, RequestOptions};
pub use upload::Upload;

use backend::Backend;
use requests::Requests;

/// What the store was doing when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the words say it
pub enum Operation {
    Write,
    Read,
    Examine,
    List,
    Delete,
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Examine => "examine",
            Self::List => "list",
            Self::Delete => "delete",
        })
    }
}

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why an object store did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum ObjectError {
    #[error("object {key} does not exist")]
    NotFound { key: String },
    #[error("object {key} exists already: no object is ever written twice")]
    AlreadyExists { key: String },
    #[error("the object store refuses to {operation} {key}: check its credentials and permissions")]
    Denied { operation: Operation, key: String, source: Cause },
    #[error(
        "the object store did not {operation} {key} in {attempts} attempts over {elapsed_ms} ms: it is out of reach or overloaded"
    )]
    Unavailable { operation: Operation, key: String, attempts: u32, elapsed_ms: u128, source: Cause },
    #[error("could not {operation} {key}")]
    Failed { operation: Operation, key: String, source: Cause },
    #[error("object {key} has {bytes} bytes, more than the {max} that are read at once")]
    TooLarge { key: String, bytes: u64, max: u64 },
    #[error("object {key} has {bytes} bytes and ends before {end}")]
    TooShort { key: String, bytes: u64, end: u64 },
    #[error("could not open the object store {location}")]
    Open { location: String, source: Cause },
}

/// What is known of an object without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Its key.
    pub key: String,
    /// Its length.
    pub bytes: u64,
    /// When it was written, by the store's own clock.
    pub modified: SystemTime,
}

/// A handle to an object store; clones share everything.
#[derive(Clone)]
pub struct Objects {
    inner: Arc<Inner>,
}

struct Inner {
    location: Location,
    /// What keys are below, in the backend.
    prefix: String,
    backend: Backend,
    requests: Requests,
}

impl Objects {
    /// Opens the store at `location`. A directory is made if it is missing; a bucket must exist. An S3 service is not asked
    /// anything yet; its key comes from `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY` (or what else AWS' tools read).
    pub fn open(location: &Location, options: RequestOptions) -> Result<Self, ObjectError> {
        Self::with(location, Requests::new(options))
    }

    /// As [`Objects::open`], with every request going through `faults`.
    #[cfg(debug_assertions)]
    pub fn open_faulty(
        location: &Location,
        options: RequestOptions,
        faults: Arc<FaultInjector>,
    ) -> Result<Self, ObjectError> {
        Self::with(location, Requests::new(options).through(faults))
    }

    fn with(location: &Location, requests: Requests) -> Result<Self, ObjectError> {
        let backend = Backend::open(location)
            .map_err(|source| ObjectError::Open { location: location.to_string(), source: source.into() })?;
        let prefix = match location {
            Location::Directory(_) => String::new(),
            Location::S3(s3) => s3.prefix.clone(),
        };
        Ok(Self { inner: Arc::new(Inner { location: location.clone(), prefix, backend, requests }) })
    }

    /// Where the objects are.
    pub fn location(&self) -> &Location {
        &self.inner.location
    }

    /// What was asked of the store since it was opened.
    pub fn counters(&self) -> Counters {
        self.inner.requests.counters()
    }

    /// Writes an object that does not exist yet. It is durable when this returns.
    pub async fn put(&self, key: &str, bytes: Bytes) -> Result<(), ObjectError> {
        let (path, count) = (self.path(key), bytes.len() as u64);
        let wrote = |attempt: u32| {
            let (path, bytes) = (path.clone(), bytes.clone());
            async move {
                match self.inner.backend.put(&path, bytes.clone()).await {
                    // The first attempt may have written it, and only its answer was lost.
                    Err(StoreError::AlreadyExists { path: at, source }) if attempt > 1 => {
                        if self.inner.backend.get(&path, &Ask::Whole { max: count }).await?.0 == bytes {
                            return Ok(());
                        }
                        Err(StoreError::AlreadyExists { path: at, source })
                    }
                    other => other,
                }
            }
        };
        self.inner.requests.run(Operation::Write, key, wrote).await?;
        self.inner.requests.sent(count);
        Ok(())
    }

    /// Begins an object whose bytes come in a stream. `key` must hold a fresh random identifier.
    pub fn upload(&self, key: &str) -> Upload {
        Upload::new(self.clone(), key)
    }

    /// A whole object of at most `max` bytes, which is at most [`limits::WHOLE_OBJECT_BYTES_MAX`].
    pub async fn get(&self, key: &str, max: u64) -> Result<Bytes, ObjectError> {
        let max = max.min(limits::WHOLE_OBJECT_BYTES_MAX);
        let (bytes, size) = self.read(key, Ask::Whole { max }).await?;
        match size > max {
            true => Err(ObjectError::TooLarge { key: key.to_owned(), bytes: size, max }),
            false => Ok(bytes),
        }
    }

    /// The bytes of `range`, all of which the object must have.
    pub async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, ObjectError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let (bytes, size) = self.read(key, Ask::Range(range.clone())).await?;
        match size < range.end {
            true => Err(ObjectError::TooShort { key: key.to_owned(), bytes: size, end: range.end }),
            false => Ok(bytes),
        }
    }

    /// The last `count` bytes (or all, if there are fewer) and the size of the object.
    pub async fn get_tail(&self, key: &str, count: u64) -> Result<(Bytes, u64), ObjectError> {
        self.read(key, Ask::Tail(count)).await
    }

    /// What is known of an object.
    pub async fn head(&self, key: &str) -> Result<Meta, ObjectError> {
        let path = self.path(key);
        let found = self.inner.requests.run(Operation::Examine, key, |_| self.inner.backend.head(&path)).await?;
        Ok(self.meta(found))
    }

    /// All objects whose keys lie below the folder `folder`, in no order. All of them are taken into memory.
    pub async fn list(&self, folder: &str) -> Result<Vec<Meta>, ObjectError> {
        let path = self.path(folder);
        let found = self.inner.requests.run(Operation::List, folder, |_| self.inner.backend.list(&path)).await?;
        Ok(found.into_iter().map(|meta| self.meta(meta)).collect())
    }

    /// Removes an object. That it is gone already is no error.
    pub async fn delete(&self, key: &str) -> Result<(), ObjectError> {
        let path = self.path(key);
        match self.inner.requests.run(Operation::Delete, key, |_| self.inner.backend.delete(&path)).await {
            Err(ObjectError::NotFound { .. }) => Ok(()),
            other => other,
        }
    }

    /// The bytes asked for, and the size of the object. An answer that is shorter than it must be was cut on its way: asked for again.
    async fn read(&self, key: &str, ask: Ask) -> Result<(Bytes, u64), ObjectError> {
        let path = self.path(key);
        let requests = &self.inner.requests;
        let attempt = |_| async {
            let (bytes, size) = self.inner.backend.get(&path, &ask).await?;
            let (bytes, want) = (requests.damage(bytes), ask.length(size));
            if bytes.len() as u64 == want {
                return Ok((bytes, size));
            }
            let cut = format!("{} bytes arrived of {want}", bytes.len());
            Err(StoreError::Generic { store: requests::OURS, source: cut.into() })
        };
        let read = requests.run(Operation::Read, key, attempt).await?;
        requests.received(read.0.len() as u64);
        Ok(read)
    }

    fn path(&self, key: &str) -> Path {
        Path::from_iter(self.inner.prefix.split('/').chain(key.split('/')).filter(|part| !part.is_empty()))
    }

    fn meta(&self, meta: object_store::ObjectMeta) -> Meta {
        let full = meta.location.as_ref();
        let key = match self.inner.prefix.as_str() {
            "" => full,
            prefix => full.strip_prefix(prefix).map_or(full, |rest| rest.trim_start_matches('/')),
        };
        Meta { key: key.to_owned(), bytes: meta.size, modified: meta.last_modified.into() }
    }
}

/// Which bytes of an object are wanted.
enum Ask {
    /// All, but none if there are more than `max`.
    Whole {
        max: u64,
    },
    Range(Range<u64>),
    Tail(u64),
}

impl Ask {
    /// How many bytes the answer has if the object has `size`.
    fn length(&self, size: u64) -> u64 {
        match self {
            Self::Whole { max } if size > *max => 0,
            Self::Whole { .. } => size,
            Self::Range(range) => range.end.min(size).saturating_sub(range.start),
            Self::Tail(count) => (*count).min(size),
        }
    }

    fn range(&self) -> Option<GetRange> {
        match self {
            Self::Whole { .. } => None,
            Self::Range(range) => Some(GetRange::Bounded(range.clone())),
            Self::Tail(count) => Some(GetRange::Suffix(*count)),
        }
    }
}
