//! Bounds of policies.

use model::NetworkPolicy;

use crate::error::Error;

/// Most networks that a policy allows, and most that it denies.
pub const ENTRIES_MAX: usize = 1_000;

/// Fails if a policy is too long.
pub fn check(policy: &NetworkPolicy) -> Result<(), Error> {
    let longest = policy.allow.len().max(policy.deny.len());
    if longest > ENTRIES_MAX { Err(Error::TooLong(ENTRIES_MAX)) } else { Ok(()) }
}
