//! Installing a seccomp filter.

use std::io;

const _: () = assert!(size_of::<libc::sock_filter>() == size_of::<u64>());
const _: () = assert!(align_of::<libc::sock_filter>() <= align_of::<u64>());

/// Installs `program` (one `sock_filter` per word, as in memory) for this thread, for ever. Needs `no_new_privs`.
pub fn install(program: &[u64]) -> io::Result<()> {
    let length = u16::try_from(program.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let filter = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: the kernel copies `length` instructions, checks them, and never writes through the pointer; size and
    // alignment of an instruction fit a word (asserted above).
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
