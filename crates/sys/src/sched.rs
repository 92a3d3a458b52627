//! How long a thread goes on before another one has its turn.

use std::{io, mem::size_of, time::Duration};

/// `struct sched_attr` of Linux 5.3 (sched_setattr(2)).
#[repr(C)]
#[derive(Debug, Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
    clamp_min: u32,
    clamp_max: u32,
}

/// Sets after what time this thread, and those that it starts from here on, make room for others that are ready. The kernel takes 0.1 to 100 ms
/// (Linux 6.12), and shares out processor time as before: with a short time more often, in smaller parts.
pub fn set_slice(slice: Duration) -> io::Result<()> {
    let mut attributes = get()?;
    attributes.runtime = slice.as_nanos() as u64;
    // SAFETY: the kernel reads `size` bytes of a structure of that size, and changes this thread's scheduling only.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// After what time this thread makes room. Zero before Linux 6.12.
pub fn slice() -> io::Result<Duration> {
    Ok(Duration::from_nanos(get()?.runtime))
}

fn get() -> io::Result<Attributes> {
    let mut attributes = Attributes { size: size_of::<Attributes>() as u32, ..Attributes::default() };
    // SAFETY: the kernel writes at most `size` bytes into a structure of that size.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, attributes.size, 0) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(attributes) }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_slice_is_kept_and_inherited_by_new_threads() {
        let short = Duration::from_micros(200);
        let seen = thread::spawn(move || {
            set_slice(short).unwrap();
            (slice().unwrap(), thread::spawn(|| slice().unwrap()).join().unwrap())
        });
        assert_eq!(seen.join().unwrap(), (short, short));
        assert_ne!(slice().unwrap(), short);
    }
}
