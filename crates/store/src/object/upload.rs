//! An object that is written as a stream: in parts, several under way at once, memory bounded.

use std::sync::Arc;

use bytes::{Buf, BytesMut};
use object_store::{Error as StoreError, multipart::PartId};
use tokio::task::JoinSet;

use super::{ObjectError, Objects, Operation, backend::Unfinished, staged::ALIGNMENT};
use crate::limits::{PART_BYTES, PART_OVERLAP, PARTS_IN_FLIGHT, PARTS_MAX};

/// An object under way. It is readable once [`Upload::finish`] has returned, and never if the upload is dropped before or the
/// process dies: then a directory keeps nothing, and a bucket keeps invisible parts, which its lifecycle rule for incomplete
/// uploads removes. At most 36 MiB are held in memory, plus what one `write` brings.
pub struct Upload {
    objects: Objects,
    key: String,
    buffer: BytesMut,
    /// Set with the first part: what fits into one part needs no multipart upload.
    unfinished: Option<Arc<Unfinished>>,
    parts: Vec<Option<PartId>>,
    under_way: JoinSet<(usize, Result<PartId, ObjectError>)>,
    bytes: u64,
}

impl Upload {
    pub(super) fn new(objects: Objects, key: &str) -> Self {
        let (key, under_way) = (key.to_owned(), JoinSet::new());
        Self { objects, key, buffer: BytesMut::new(), unfinished: None, parts: Vec::new(), under_way, bytes: 0 }
    }

    /// Adds `bytes`. Waits while enough parts are under way. After an error the upload is of no use.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), ObjectError> {
        self.buffer().extend_from_slice(bytes);
        self.pass_on().await
    }

    /// What was written since the last full part; [`Upload::pass_on`] must follow a change.
    pub(crate) fn buffer(&mut self) -> &mut BytesMut {
        // A small object needs no room for a part.
        if self.buffer.len() >= PART_OVERLAP && self.buffer.capacity() < PART_BYTES {
            let mut roomy = part_buffer();
            roomy.extend_from_slice(&self.buffer);
            self.buffer = roomy;
        }
        &mut self.buffer
    }

    /// Sends what the buffer has in full parts.
    pub(crate) async fn pass_on(&mut self) -> Result<(), ObjectError> {
        while self.buffer.len() >= PART_BYTES {
            self.send_part(PART_BYTES).await?;
        }
        Ok(())
    }

    /// Makes the object durable and visible; returns its length. Refuses a key that exists.
    pub async fn finish(mut self) -> Result<u64, ObjectError> {
        if self.unfinished.is_none() {
            let bytes = self.buffer.split().freeze();
            let count = bytes.len() as u64;
            self.objects.put(&self.key, bytes).await?;
            return Ok(count);
        }
        if !self.buffer.is_empty() {
            self.send_part(self.buffer.len()).await?;
        }
        while !self.under_way.is_empty() {
            self.collect_part().await?;
        }
        self.complete().await?;
        self.unfinished = None;
        Ok(self.bytes)
    }

    async fn send_part(&mut self, count: usize) -> Result<(), ObjectError> {
        if self.parts.len() >= PARTS_MAX {
            let source = "the object would have more parts than the service allows".into();
            return Err(ObjectError::Failed { operation: Operation::Write, key: self.key.clone(), source });
        }
        let unfinished = self.begun().await?;
        while self.under_way.len() >= PARTS_IN_FLIGHT {
            self.collect_part().await?;
        }
        let mut next = part_buffer();
        next.extend_from_slice(&self.buffer.split_off(count));
        let (number, bytes) = (self.parts.len(), std::mem::replace(&mut self.buffer, next).freeze());
        self.parts.push(None);
        self.bytes += count as u64;
        let (objects, key) = (self.objects.clone(), self.key.clone());
        self.under_way.spawn(async move {
            let inner = &objects.inner;
            let path = objects.path(&key);
            let attempt = |_| inner.backend.part(&path, &unfinished, number, bytes.clone());
            let sent = inner.requests.run(Operation::Write, &key, attempt).await;
            inner.requests.sent(bytes.len() as u64);
            (number, sent)
        });
        Ok(())
    }

    async fn begun(&mut self) -> Result<Arc<Unfinished>, ObjectError> {
        if let Some(unfinished) = &self.unfinished {
            return Ok(unfinished.clone());
        }
        let inner = &self.objects.inner;
        let path = self.objects.path(&self.key);
        let begun = inner.requests.run(Operation::Write, &self.key, |_| inner.backend.begin(&path)).await?;
        let begun = Arc::new(begun);
        self.unfinished = Some(begun.clone());
        Ok(begun)
    }

    async fn collect_part(&mut self) -> Result<(), ObjectError> {
        let Some(joined) = self.under_way.join_next().await else { return Ok(()) };
        let failed = |source: tokio::task::JoinError| ObjectError::Failed {
            operation: Operation::Write,
            key: self.key.clone(),
            source: source.into(),
        };
        let (number, sent) = joined.map_err(failed)?;
        self.parts[number] = Some(sent?);
        Ok(())
    }

    async fn complete(&self) -> Result<(), ObjectError> {
        // S3 would replace an object here. Keys are random, so this only makes a mistake of ours visible.
        match self.objects.head(&self.key).await {
            Ok(_) => return Err(ObjectError::AlreadyExists { key: self.key.clone() }),
            Err(ObjectError::NotFound { .. }) => {}
            Err(other) => return Err(other),
        }
        let (inner, path) = (&self.objects.inner, self.objects.path(&self.key));
        let Some(unfinished) = &self.unfinished else { return Ok(()) };
        let Some(parts) = self.parts.iter().cloned().collect::<Option<Vec<PartId>>>() else {
            let source = "one of its parts was not written".into();
            return Err(ObjectError::Failed { operation: Operation::Write, key: self.key.clone(), source });
        };
        let attempt = |attempt: u32| {
            let (path, parts) = (path.clone(), parts.clone());
            async move {
                match inner.backend.complete(&path, unfinished, parts).await {
                    // An earlier attempt may have completed it, and only its answer was lost: then the upload is gone, or the name taken.
                    Err(StoreError::NotFound { .. } | StoreError::AlreadyExists { .. }) if attempt > 1 => {
                        let found = inner.backend.head(&path).await?;
                        if found.size == self.bytes {
                            return Ok(());
                        }
                        Err(StoreError::AlreadyExists { path: path.to_string(), source: "of another size".into() })
                    }
                    other => other,
                }
            }
        };
        inner.requests.run(Operation::Write, &self.key, attempt).await
    }
}

/// For a part and the end of what was added last, which belongs to the next part, so that it need not grow; where a directory can
/// write it from.
fn part_buffer() -> BytesMut {
    let mut buffer = BytesMut::with_capacity(ALIGNMENT + PART_BYTES + PART_OVERLAP);
    let start = buffer.as_ptr().align_offset(ALIGNMENT);
    buffer.resize(start, 0);
    buffer.advance(start);
    buffer
}

impl Drop for Upload {
    fn drop(&mut self) {
        let (Some(unfinished), Ok(runtime)) = (self.unfinished.take(), tokio::runtime::Handle::try_current()) else {
            return;
        };
        // Parts under way end with `under_way`; one that arrives later makes the service keep it, as after a crash.
        let (objects, key) = (self.objects.clone(), std::mem::take(&mut self.key));
        runtime.spawn(async move {
            let (inner, path) = (&objects.inner, objects.path(&key));
            let attempt = |_| inner.backend.abort(&path, &unfinished);
            if let Err(error) = inner.requests.run(Operation::Delete, &key, attempt).await {
                tracing::warn!(key, error = &error as &dyn std::error::Error, "parts of an unfinished upload are left");
            }
        });
    }
}
