//! Makes a store slow, wrong or absent, for tests and benchmarks.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use object_store::{Error, Result};

use super::requests::OURS;

/// What goes wrong. Rates are of all attempts, from 0 to 1.
#[derive(Debug, Clone, Default)]
pub struct FaultPlan {
    /// Added before each attempt.
    pub latency: Duration,
    /// Attempts that fail before anything is done.
    pub error_rate: f64,
    /// Attempts that are told to slow down.
    pub throttle_rate: f64,
    /// Attempts that are carried out, but whose answer is lost.
    pub lost_answer_rate: f64,
    /// Reads that arrive short.
    pub truncate_rate: f64,
    /// Reads with one bit flipped.
    pub corrupt_rate: f64,
    /// Nothing works.
    pub outage: bool,
}

/// Afflicts the requests of the [`super::Objects`] that it is given to. Repeatable: the seed decides.
pub struct FaultInjector {
    plan: Mutex<FaultPlan>,
    random: Mutex<fastrand::Rng>,
    injected: AtomicU64,
}

impl FaultInjector {
    /// An injector that follows `plan` until it is given another.
    pub fn new(seed: u64, plan: FaultPlan) -> Self {
        let random = Mutex::new(fastrand::Rng::with_seed(seed));
        Self { plan: Mutex::new(plan), random, injected: AtomicU64::new(0) }
    }

    /// Follows `plan` from now on.
    pub fn follow(&self, plan: FaultPlan) {
        *self.plan.lock().unwrap_or_else(PoisonError::into_inner) = plan;
    }

    /// Faults so far.
    pub fn injected(&self) -> u64 {
        self.injected.load(Relaxed)
    }

    pub(super) async fn before(&self) -> Result<()> {
        let plan = self.plan();
        if !plan.latency.is_zero() {
            tokio::time::sleep(plan.latency).await;
        }
        self.maybe_fail(if plan.outage { 1.0 } else { 0.0 }, "injected: connection refused")?;
        self.maybe_fail(plan.error_rate, "injected: internal error")?;
        self.maybe_fail(plan.throttle_rate, "injected: slow down")
    }

    pub(super) fn after(&self) -> Result<()> {
        self.maybe_fail(self.plan().lost_answer_rate, "injected: connection reset before the answer")
    }

    pub(super) fn damage(&self, bytes: Bytes) -> Bytes {
        let plan = self.plan();
        if !bytes.is_empty() && self.strikes(plan.truncate_rate) {
            return bytes.slice(..self.below(bytes.len()));
        }
        if !bytes.is_empty() && self.strikes(plan.corrupt_rate) {
            let mut changed = bytes.to_vec();
            let bit = self.below(changed.len() * 8);
            changed[bit / 8] ^= 1 << (bit % 8);
            return changed.into();
        }
        bytes
    }

    fn plan(&self) -> FaultPlan {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn below(&self, end: usize) -> usize {
        self.random.lock().unwrap_or_else(PoisonError::into_inner).usize(..end)
    }

    fn strikes(&self, rate: f64) -> bool {
        let strikes = self.random.lock().unwrap_or_else(PoisonError::into_inner).f64() < rate;
        self.injected.fetch_add(u64::from(strikes), Relaxed);
        strikes
    }

    fn maybe_fail(&self, rate: f64, what: &'static str) -> Result<()> {
        match self.strikes(rate) {
            true => Err(Error::Generic { store: OURS, source: what.into() }),
            false => Ok(()),
        }
    }
}
