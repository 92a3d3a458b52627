//! One request: permit, time limit, attempts, backoff, counting.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use bytes::Bytes;
use object_store::{Error, Result};
use tokio::sync::Semaphore;

use super::{ObjectError, Operation};
use crate::limits;

/// How requests are made. The defaults suit a service in the same region.
#[derive(Debug, Clone)]
pub struct RequestOptions {
    /// Requests under way at once; more wait.
    pub parallel: usize,
    /// Attempts of one request, at least 1.
    pub attempts: u32,
    /// Longest time of one attempt.
    pub timeout: Duration,
    /// Pause before the second attempt, doubled for each further one; the true pause is random between zero and this.
    pub backoff: Duration,
}

impl Default for RequestOptions {
    fn default() -> Self {
        Self {
            parallel: limits::REQUESTS_MAX,
            attempts: limits::ATTEMPTS_MAX,
            timeout: limits::REQUEST_TIMEOUT,
            backoff: limits::BACKOFF_FIRST,
        }
    }
}

/// What was asked of a store and what came of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Attempts made.
    pub requests: u64,
    /// Attempts that followed a failed one.
    pub retries: u64,
    /// Attempts that failed, whatever for; an object that is not there counts.
    pub errors: u64,
    /// Bytes of objects written.
    pub bytes_out: u64,
    /// Bytes of objects read.
    pub bytes_in: u64,
}

pub(super) struct Requests {
    options: RequestOptions,
    permits: Semaphore,
    requests: AtomicU64,
    retries: AtomicU64,
    errors: AtomicU64,
    bytes_out: AtomicU64,
    bytes_in: AtomicU64,
    #[cfg(debug_assertions)]
    faults: Option<std::sync::Arc<super::FaultInjector>>,
}

impl Requests {
    pub(super) fn new(options: RequestOptions) -> Self {
        Self {
            permits: Semaphore::new(options.parallel.max(1)),
            options,
            requests: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            #[cfg(debug_assertions)]
            faults: None,
        }
    }

    #[cfg(debug_assertions)]
    pub(super) fn through(self, faults: std::sync::Arc<super::FaultInjector>) -> Self {
        Self { faults: Some(faults), ..self }
    }

    /// Calls `attempt` with 1, 2, ... until it succeeds, fails for good, or has failed too often.
    pub(super) async fn run<T, F>(
        &self,
        operation: Operation,
        key: &str,
        mut attempt: impl FnMut(u32) -> F,
    ) -> Result<T, ObjectError>
    where
        F: Future<Output = Result<T>>,
    {
        let began = Instant::now();
        let mut number = 1;
        loop {
            let error = match self.once(attempt(number)).await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            self.errors.fetch_add(1, Relaxed);
            if !is_transient(&error) {
                return Err(lasting(operation, key, error));
            }
            if number >= self.options.attempts {
                let (key, elapsed_ms) = (key.to_owned(), began.elapsed().as_millis());
                let source = error.into();
                return Err(ObjectError::Unavailable { operation, key, attempts: number, elapsed_ms, source });
            }
            tracing::debug!(%operation, key, attempt = number, error = &error as &dyn std::error::Error, "asking again");
            tokio::time::sleep(self.pause(number)).await;
            self.retries.fetch_add(1, Relaxed);
            number += 1;
        }
    }

    async fn once<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let _permit = self.permits.acquire().await.expect("the semaphore is never closed");
        self.requests.fetch_add(1, Relaxed);
        let timeout = self.options.timeout;
        let late =
            |_| Error::Generic { store: OURS, source: format!("no answer within {} ms", timeout.as_millis()).into() };
        tokio::time::timeout(timeout, self.afflicted(work)).await.map_err(late)?
    }

    #[cfg(debug_assertions)]
    async fn afflicted<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let Some(faults) = &self.faults else { return work.await };
        faults.before().await?;
        let done = work.await?;
        faults.after()?;
        Ok(done)
    }

    #[cfg(not(debug_assertions))]
    async fn afflicted<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        work.await
    }

    /// What an answer looks like after its way here: the same, but for faults that are injected.
    pub(super) fn damage(&self, bytes: Bytes) -> Bytes {
        #[cfg(debug_assertions)]
        if let Some(faults) = &self.faults {
            return faults.damage(bytes);
        }
        bytes
    }

    /// "Full jitter" (AWS Architecture Blog, "Exponential Backoff And Jitter"): clients that failed together come back apart.
    fn pause(&self, failures: u32) -> Duration {
        let ceiling = self.options.backoff.saturating_mul(1 << (failures - 1).min(16)).min(limits::BACKOFF_MAX);
        ceiling.mul_f64(fastrand::f64())
    }

    pub(super) fn sent(&self, bytes: u64) {
        self.bytes_out.fetch_add(bytes, Relaxed);
    }

    pub(super) fn received(&self, bytes: u64) {
        self.bytes_in.fetch_add(bytes, Relaxed);
    }

    pub(super) fn counters(&self) -> Counters {
        Counters {
            requests: self.requests.load(Relaxed),
            retries: self.retries.load(Relaxed),
            errors: self.errors.load(Relaxed),
            bytes_out: self.bytes_out.load(Relaxed),
            bytes_in: self.bytes_in.load(Relaxed),
        }
    }
}

/// Marks errors that are made here, not by the backend: cut answers, time limits, injected faults.
pub(super) const OURS: &str = "pando";

/// Is it worth asking again? What a service says against the request itself is not, nor is what a local disk says: a full or
/// broken one does not heal in seconds.
fn is_transient(error: &Error) -> bool {
    match error {
        Error::Generic { store, .. } if *store == OURS => true,
        Error::Generic { store: "S3", source } => !refuses(&source.to_string()),
        _ => false,
    }
}

/// Is this an answer with a status of 400 to 499, but for "timeout" (408) and "too many requests" (429)? The status is in the text
/// only: the type that has it is private. A text that is not understood is asked again.
fn refuses(text: &str) -> bool {
    let Some((_, status)) = text.split_once("status code: ") else { return false };
    status.starts_with('4') && !status.starts_with("408") && !status.starts_with("429")
}

fn lasting(operation: Operation, key: &str, error: Error) -> ObjectError {
    let key = key.to_owned();
    match error {
        // For these two it is the bucket that does not exist.
        Error::NotFound { .. } if !matches!(operation, Operation::Write | Operation::List) => {
            ObjectError::NotFound { key }
        }
        Error::AlreadyExists { .. } => ObjectError::AlreadyExists { key },
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            ObjectError::Denied { operation, key, source: error.into() }
        }
        other => ObjectError::Failed { operation, key, source: other.into() },
    }
}
