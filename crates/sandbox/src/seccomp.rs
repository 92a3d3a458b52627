//! The system-call filter of every sandboxed program: an allow-list in the spirit of Docker's default profile for a
//! process without capabilities.
//!
//! What is on no list is answered with ENOSYS, so that programs fall back as they do on an older kernel; what is known to
//! reach the host or other sandboxes is answered with EPERM. Foreign architectures are killed, the x32 ABI gets ENOSYS.

mod compile;
mod rules;

use crate::error::Error;

/// The filter as classic BPF: one word per `sock_filter`, as it lies in memory.
///
/// Installed at every start, so it is short: a binary search over the ranges of system-call numbers that share an answer.
pub fn seccomp_program() -> Result<Vec<u64>, Error> {
    compile::compile(&rules::table()).ok_or(Error::Filter)
}
