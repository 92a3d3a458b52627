//! See [`super`].

use crate::{NodeInfo, PoolInfo};

impl From<model::NodeInfo> for NodeInfo {
    fn from(
        model::NodeInfo {
            id,
            version,
            pid,
            keeper_pid,
            keeper_restarts,
            uptime_ms,
            state_dir,
            cgroups,
            layers,
            network,
            registry,
            templates,
            sandboxes,
            shares_store,
            pool,
        }: model::NodeInfo,
    ) -> Self {
        Self {
            id,
            version,
            pid,
            keeper_pid,
            keeper_restarts,
            uptime_ms,
            state_dir,
            cgroups,
            layers: layers.to_owned(),
            network,
            registry,
            templates,
            sandboxes,
            shares_store,
            pool: pool.into(),
        }
    }
}

impl From<model::PoolInfo> for PoolInfo {
    fn from(model::PoolInfo { ready, bare, limit, ahead, ahead_limit }: model::PoolInfo) -> Self {
        Self { ready, bare, limit, ahead, ahead_limit }
    }
}
