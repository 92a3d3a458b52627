//! Places at which tests let a process die. Without the feature `crashes` there are none.

/// All of them.
#[cfg(feature = "crashes")]
pub const CRASH_POINTS: [&str; 13] = [
    "log begun",
    "log file taken over",
    "log written",
    "log synced",
    "data written",
    "nodes moved",
    "tree written",
    "manifest written",
    "head moved",
    "snapshot named",
    "restore committed",
    "taken over",
    "log removed",
];

/// Ends the process as a kill does, if `PANDO_CRASH_AT` is `NAME:COUNT` and this is the place's pass of that number.
#[cfg(feature = "crashes")]
pub(crate) fn point(name: &'static str) {
    use std::sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    };
    static WANTED: OnceLock<Option<(String, u32)>> = OnceLock::new();
    static PASSES: AtomicU32 = AtomicU32::new(0);
    debug_assert!(CRASH_POINTS.contains(&name), "{name}");
    let wanted = WANTED.get_or_init(|| {
        let text = std::env::var("PANDO_CRASH_AT").ok()?;
        let (name, count) = text.rsplit_once(':')?;
        Some((name.to_owned(), count.parse().ok()?))
    });
    if let Some((wanted, count)) = wanted
        && wanted == name
        && PASSES.fetch_add(1, Ordering::Relaxed) + 1 == *count
    {
        std::process::abort();
    }
}

/// As above.
#[cfg(not(feature = "crashes"))]
pub(crate) fn point(_: &'static str) {}

/// [`WAL_SPARE_BYTES`](crate::limits::WAL_SPARE_BYTES), or `PANDO_SPARE_BYTES`: the processes that die write little.
#[cfg(feature = "crashes")]
pub(crate) fn spare_bytes() -> u64 {
    let bytes = std::env::var("PANDO_SPARE_BYTES").ok().and_then(|bytes| bytes.parse().ok());
    bytes.unwrap_or(crate::limits::WAL_SPARE_BYTES)
}

/// As above.
#[cfg(not(feature = "crashes"))]
pub(crate) fn spare_bytes() -> u64 {
    crate::limits::WAL_SPARE_BYTES
}
