//! Acting as another user for a moment, with all capabilities: what is made meanwhile belongs to that user.

use std::io;

/// `capget` and `capset` with 64 bits a set.
const VERSION_3: u32 = 0x2008_0522;

/// The three sets of capset(2), low words first: effective, permitted, inheritable.
type Sets = [[u32; 3]; 2];

/// Runs `make` with `id` as the effective user and group id of the calling thread, and so as its filesystem ids. A user namespace that is made
/// meanwhile counts against the limits of that user, and an overlay works as that user below.
///
/// The caller is root and keeps its capabilities in force. If the way back fails, the process aborts: it must not go on as another user. A
/// child that is forked meanwhile stays that user.
pub fn act_as<T>(id: u32, make: impl FnOnce() -> T) -> io::Result<T> {
    let way_back = WayBack { sets: capabilities()?, dumpable: get(libc::PR_GET_DUMPABLE)?, death: death_signal()? };
    set_effective(id)?;
    let result = set_capabilities(&raised(way_back.sets)).map(|()| make());
    drop(way_back);
    result
}

/// Goes back when dropped, so that a panic does too.
struct WayBack {
    sets: Sets,
    // The kernel resets both at a change of user.
    dumpable: i32,
    death: i32,
}

impl Drop for WayBack {
    fn drop(&mut self) {
        let back = set_effective(0).and_then(|()| set_capabilities(&self.sets));
        if back.is_err() {
            std::process::abort();
        }
        // Only root may be looked into otherwise (2 cannot be set), which is the safe side.
        let _ = set(libc::PR_SET_DUMPABLE, self.dumpable).and_then(|()| set(libc::PR_SET_PDEATHSIG, self.death));
    }
}

/// Everything that is permitted, in force.
fn raised(sets: Sets) -> Sets {
    sets.map(|[_, permitted, inheritable]| [permitted, permitted, inheritable])
}

/// By system call: the C library would change all threads.
fn set_effective(id: u32) -> io::Result<()> {
    const AS_IT_IS: u32 = u32::MAX;
    // SAFETY: changes only the calling thread's credentials.
    let group = unsafe { libc::syscall(libc::SYS_setresgid, AS_IT_IS, id, AS_IT_IS) };
    // SAFETY: as above.
    if group == -1 || unsafe { libc::syscall(libc::SYS_setresuid, AS_IT_IS, id, AS_IT_IS) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn capabilities() -> io::Result<Sets> {
    let header = [VERSION_3, 0];
    let mut sets = Sets::default();
    // SAFETY: the header is version and pid (0: self), and the kernel writes two triples of 32-bit sets.
    let result = unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(sets) }
}

fn set_capabilities(sets: &Sets) -> io::Result<()> {
    let header = [VERSION_3, 0];
    // SAFETY: the header is version and pid (0: self), the data two triples of 32-bit sets.
    let result = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn get(option: i32) -> io::Result<i32> {
    // SAFETY: asks for a property of this process.
    let value = unsafe { libc::prctl(option, 0, 0, 0, 0) };
    if value == -1 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

fn death_signal() -> io::Result<i32> {
    let mut signal = 0i32;
    // SAFETY: the kernel writes one word, which lives until the call returns.
    let result = unsafe { libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut signal, 0, 0, 0) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(signal) }
}

fn set(option: i32, value: i32) -> io::Result<()> {
    // SAFETY: sets a property of this process.
    let result = unsafe { libc::prctl(option, value as libc::c_ulong, 0, 0, 0) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, fstat, memfd_create};

    use super::*;

    #[test]
    fn files_made_meanwhile_belong_to_the_other_user() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let owner = || {
            let status = fstat(memfd_create("pando-ids", MemfdFlags::CLOEXEC).unwrap()).unwrap();
            (status.st_uid, status.st_gid)
        };
        let before = capabilities().unwrap();
        let (owner_meanwhile, meanwhile) = act_as(12_345, || (owner(), capabilities().unwrap())).unwrap();
        assert_eq!((owner_meanwhile, meanwhile), ((12_345, 12_345), raised(before)));
        assert_eq!((owner(), capabilities().unwrap()), ((0, 0), before));
    }
}
