//! The store behind checkpoints and volumes.

use api::{GcReport, GcRequest, KeyRotation, StoreStats, StoreVerification};

use crate::{Client, Result};

/// Calls about the store.
///
/// # Errors
///
/// Each fails with the node's own error, or if the node cannot be reached or its answer cannot be read.
impl Client {
    /// What is in the store, and what this node has asked of it.
    pub async fn store_stats(&self) -> Result<StoreStats> {
        self.get("/store/stats").await
    }

    /// Reads all of the store and names what is damaged.
    pub async fn verify_store(&self) -> Result<StoreVerification> {
        self.post("/store/verify", &()).await
    }

    /// Removes what nothing in the store needs.
    pub async fn collect(&self, request: &GcRequest) -> Result<GcReport> {
        self.post("/store/gc", request).await
    }

    /// Wraps all data keys by the newest master key, and by no other one.
    pub async fn rotate_key(&self) -> Result<KeyRotation> {
        self.post("/store/rotate-key", &()).await
    }
}
