//! Says which process a refusal is about.

use procfs::Fields;

use crate::{error::Error, refusal::Refusal};

/// The same refusals, of process `pid`.
pub(crate) fn blame(pid: i32, refusals: Vec<Refusal>) -> Vec<Refusal> {
    if refusals.is_empty() {
        return refusals;
    }
    let status = Fields::read(format!("/proc/{pid}/status")).ok();
    let name = status.as_ref().and_then(|status| status.get("Name")).unwrap_or("?").to_owned();
    let inside = status.and_then(|status| status.numbers("NSpid", 10).ok()?.last().copied());
    let pid = inside.map_or(pid, |pid| pid as i32);
    refusals.into_iter().map(|refusal| refusal.of_process(pid, &name)).collect()
}

/// The same of an error, if it is a refusal.
pub(crate) fn blame_error(pid: i32, error: Error) -> Error {
    match error {
        Error::Refused(refusals) => Error::Refused(blame(pid, refusals)),
        error => error,
    }
}
