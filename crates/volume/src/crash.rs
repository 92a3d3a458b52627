//! Places at which tests let a process die. In a release build there are none.

/// All of them.
#[cfg(debug_assertions)]
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

/// A place, and the pass of it, counted down, at which this process ends.
#[cfg(debug_assertions)]
static WANTED: std::sync::Mutex<Option<(String, u32)>> = std::sync::Mutex::new(None);

/// Has this process end as by a kill at the place `NAME:COUNT`, at its pass of that number from now on.
#[cfg(debug_assertions)]
pub fn crash_at(text: &str) {
    let wanted = text.rsplit_once(':').and_then(|(name, count)| Some((name.to_owned(), count.parse().ok()?)));
    *WANTED.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = wanted;
}

/// Ends the process if this is the place that was named by [`crash_at`], or in the beginning by `PANDO_CRASH_AT`.
#[cfg(debug_assertions)]
pub(crate) fn point(name: &'static str) {
    static BEGUN: std::sync::Once = std::sync::Once::new();
    debug_assert!(CRASH_POINTS.contains(&name), "{name}");
    BEGUN.call_once(|| std::env::var("PANDO_CRASH_AT").iter().for_each(|text| crash_at(text)));
    let mut wanted = WANTED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some((_, count)) = wanted.as_mut().filter(|(wanted, _)| wanted == name) {
        *count -= 1;
        if *count == 0 {
            std::process::abort();
        }
    }
}

/// As above.
#[cfg(not(debug_assertions))]
pub(crate) fn point(_: &'static str) {}

/// [`WAL_SPARE_BYTES`](crate::limits::WAL_SPARE_BYTES), or `PANDO_SPARE_BYTES`: the processes that die write little.
#[cfg(debug_assertions)]
pub(crate) fn spare_bytes() -> u64 {
    let bytes = std::env::var("PANDO_SPARE_BYTES").ok().and_then(|bytes| bytes.parse().ok());
    bytes.unwrap_or(crate::limits::WAL_SPARE_BYTES)
}

/// As above.
#[cfg(not(debug_assertions))]
pub(crate) fn spare_bytes() -> u64 {
    crate::limits::WAL_SPARE_BYTES
}
