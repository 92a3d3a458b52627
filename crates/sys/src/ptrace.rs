//! Tracing of other threads: stop, registers, signals, resume. Linux x86-64.
//!
//! All calls act for the calling *thread*: whoever seizes a thread must make every later call about it.

use std::{io, mem::MaybeUninit, ptr};

use serde::{Deserialize, Serialize};

pub use libc::user_regs_struct as Registers;

/// Largest XSAVE image we accept, in bytes (AMX needs about 11 KiB).
pub const XSAVE_BYTES_MAX: usize = 16 << 10;

/// Options for [`seize`].
pub mod options {
    /// The kernel kills the thread if its tracer dies.
    pub const EXIT_KILL: i32 = libc::PTRACE_O_EXITKILL;
    /// clone, fork and vfork stop the caller and attach the child.
    pub const TRACE_CLONES: i32 = libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK;
}

/// A thread's state change as `waitpid` reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// About to receive this signal, or (system call, breakpoint) SIGTRAP.
    Signal(i32),
    /// After [`interrupt`], or a new child's first stop.
    Interrupted,
    /// In clone, fork or vfork; [`event_message`] has the child.
    Cloned,
    /// Another ptrace event.
    Event(i32),
    /// It ended.
    Ended(i32),
}

fn request(request: libc::c_uint, tid: i32, addr: usize, data: usize) -> io::Result<i64> {
    // SAFETY: callers pass, for each request, an `addr` and `data` that ptrace(2) reads as integers or as pointers valid for the request.
    let result = unsafe { libc::ptrace(request, tid, addr, data) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Attaches to a thread without stopping it.
pub fn seize(tid: i32, options: i32) -> io::Result<()> {
    request(libc::PTRACE_SEIZE, tid, 0, options as usize).map(drop)
}

/// Replaces the options.
pub fn set_options(tid: i32, options: i32) -> io::Result<()> {
    request(libc::PTRACE_SETOPTIONS, tid, 0, options as usize).map(drop)
}

/// Asks a seized thread to stop.
pub fn interrupt(tid: i32) -> io::Result<()> {
    request(libc::PTRACE_INTERRUPT, tid, 0, 0).map(drop)
}

/// Lets a stopped thread run, delivering `signal` (0: none).
pub fn resume(tid: i32, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_CONT, tid, 0, signal as usize).map(drop)
}

/// Lets a stopped thread run to the beginning or the end of a system call, whichever comes next, where it stops with SIGTRAP.
///
/// There is no single step here: the flag that makes one stays with the thread if its tracer dies, and the program dies of the next SIGTRAP.
/// The flag of this is taken off.
pub fn run_to_syscall(tid: i32) -> io::Result<()> {
    request(libc::PTRACE_SYSCALL, tid, 0, 0).map(drop)
}

/// Lets go of a stopped thread, delivering `signal` (0: none).
pub fn detach(tid: i32, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_DETACH, tid, 0, signal as usize).map(drop)
}

/// Waits for the thread's next stop or end.
pub fn wait(tid: i32) -> io::Result<Stop> {
    // There is one: it has been waited for.
    wait_with(tid, 0).map(|stop| stop.unwrap_or(Stop::Ended(0)))
}

/// The thread's next stop or end, if that has come.
pub fn try_wait(tid: i32) -> io::Result<Option<Stop>> {
    wait_with(tid, libc::WNOHANG)
}

fn wait_with(tid: i32, flags: i32) -> io::Result<Option<Stop>> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is a valid place for an int.
        match unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL | flags) } {
            0 => return Ok(None),
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            _ => break,
        }
    }
    if !libc::WIFSTOPPED(status) {
        return Ok(Some(Stop::Ended(status)));
    }
    Ok(Some(match status >> 16 {
        0 => Stop::Signal(libc::WSTOPSIG(status)),
        libc::PTRACE_EVENT_STOP => Stop::Interrupted,
        libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => Stop::Cloned,
        event => Stop::Event(event),
    }))
}

/// After [`Stop::Cloned`]: the child's thread id.
pub fn event_message(tid: i32) -> io::Result<u64> {
    let mut message: u64 = 0;
    request(libc::PTRACE_GETEVENTMSG, tid, 0, (&raw mut message).addr())?;
    Ok(message)
}

const NT_PRSTATUS: usize = 1;
const NT_PRFPREG: usize = 2;
const NT_X86_XSTATE: usize = 0x202;

fn get_set(tid: i32, set: usize, place: *mut u8, len: usize) -> io::Result<usize> {
    let mut iov = libc::iovec { iov_base: place.cast(), iov_len: len };
    request(libc::PTRACE_GETREGSET, tid, set, (&raw mut iov).addr())?;
    Ok(iov.iov_len)
}

/// General registers of a stopped thread.
pub fn registers(tid: i32) -> io::Result<Registers> {
    let mut regs = MaybeUninit::<Registers>::zeroed();
    let len = get_set(tid, NT_PRSTATUS, regs.as_mut_ptr().cast(), size_of::<Registers>())?;
    if len != size_of::<Registers>() {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "not a 64-bit thread"));
    }
    // SAFETY: the kernel filled all of it (length checked), and any bytes are a valid value of this integer-only struct.
    Ok(unsafe { regs.assume_init() })
}

/// Sets the general registers of a stopped thread.
pub fn set_registers(tid: i32, regs: &Registers) -> io::Result<()> {
    let mut iov = libc::iovec { iov_base: ptr::from_ref(regs).cast_mut().cast(), iov_len: size_of::<Registers>() };
    request(libc::PTRACE_SETREGSET, tid, NT_PRSTATUS, (&raw mut iov).addr()).map(drop)
}

/// The thread's whole extended state (x87, SSE, AVX, AVX-512, PKRU ...) in the XSAVE standard format, with room for all components that the
/// kernel supports; where it does not use XSAVE, the 512 bytes of x87 and SSE.
pub fn xsave(tid: i32) -> io::Result<Vec<u8>> {
    let mut area = vec![0u8; XSAVE_BYTES_MAX];
    let set = if crate::xstate::is_used() { NT_X86_XSTATE } else { NT_PRFPREG };
    let len = get_set(tid, set, area.as_mut_ptr(), area.len())?;
    area.truncate(len);
    Ok(area)
}

/// Blocked signals (bit n-1 = signal n).
pub fn signal_mask(tid: i32) -> io::Result<u64> {
    let mut mask: u64 = 0;
    request(libc::PTRACE_GETSIGMASK, tid, size_of::<u64>(), (&raw mut mask).addr())?;
    Ok(mask)
}

/// Sets the blocked signals.
pub fn set_signal_mask(tid: i32, mask: u64) -> io::Result<()> {
    request(libc::PTRACE_SETSIGMASK, tid, size_of::<u64>(), (&raw const mask).addr()).map(drop)
}

/// A `siginfo_t` as the kernel stores it.
pub type SignalInfo = [u8; 128];

const _: () = assert!(size_of::<libc::siginfo_t>() == 128);

/// The number of the signal.
pub fn signal_number(info: &SignalInfo) -> i32 {
    i32::from_ne_bytes([info[0], info[1], info[2], info[3]])
}

/// The signal that a thread in [`Stop::Signal`] is about to receive.
pub fn signal_info(tid: i32) -> io::Result<SignalInfo> {
    let mut info = [0u8; 128];
    request(libc::PTRACE_GETSIGINFO, tid, 0, (&raw mut info).addr())?;
    Ok(info)
}

/// Pending signals of the thread, or (`shared`) of its whole process; at most `max`. Nothing is taken from the queue.
pub fn pending_signals(tid: i32, shared: bool, max: usize) -> io::Result<Vec<SignalInfo>> {
    #[repr(C)]
    struct Peek {
        offset: u64,
        flags: u32,
        count: i32,
    }
    let mut found = Vec::new();
    while found.len() < max {
        let mut batch = [[0u8; 128]; 16];
        let peek = Peek { offset: found.len() as u64, flags: u32::from(shared), count: batch.len() as i32 };
        let count = request(libc::PTRACE_PEEKSIGINFO, tid, (&raw const peek).addr(), (&raw mut batch).addr())? as usize;
        found.extend_from_slice(&batch[..count]);
        if count < batch.len() {
            break;
        }
    }
    Ok(found)
}

/// A thread's restartable-sequence registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[repr(C)]
pub struct Rseq {
    /// Address of the `struct rseq`; 0: not registered.
    pub address: u64,
    /// Its registered size in bytes.
    pub size: u32,
    /// The abort signature.
    pub signature: u32,
    /// Registration flags.
    pub flags: u32,
    padding: u32,
}

const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;

/// Whether the thread handles its own system calls in user space (syscall user dispatch); injected ones would never reach the kernel.
pub fn dispatches_syscalls(tid: i32) -> io::Result<bool> {
    const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;
    // struct ptrace_sud_config { mode, selector, offset, len }
    let mut config = [0u64; 4];
    let size = size_of_val(&config);
    match request(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, tid, size, (&raw mut config).addr()) {
        // Kernels before 6.4 cannot tell.
        Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(false),
        result => result.map(|_| config[0] != 0),
    }
}

/// Whether more than one seccomp filter is in force for the thread. None if the kernel does not say: it tells only who has CAP_SYS_ADMIN and
/// no filter of its own, and says of a thread without any the same as where it cannot tell.
pub fn has_several_filters(tid: i32) -> io::Result<Option<bool>> {
    const PTRACE_SECCOMP_GET_METADATA: libc::c_uint = 0x420d;
    // struct seccomp_metadata { filter_off, flags }: of the second one, counted from the first that was installed.
    let mut metadata = [1u64, 0];
    let size = size_of_val(&metadata);
    match request(PTRACE_SECCOMP_GET_METADATA, tid, size, (&raw mut metadata).addr()) {
        Ok(_) => Ok(Some(true)),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT) => Ok(Some(false)),
            Some(libc::EACCES | libc::EINVAL | libc::EIO) => Ok(None),
            _ => Err(error),
        },
    }
}

/// The thread's rseq registration (kernel 5.13 or later).
pub fn rseq(tid: i32) -> io::Result<Rseq> {
    let mut rseq = Rseq::default();
    request(PTRACE_GET_RSEQ_CONFIGURATION, tid, size_of::<Rseq>(), (&raw mut rseq).addr())?;
    Ok(rseq)
}

/// How many words [`Registers`] are.
pub const REGISTER_WORDS: usize = 27;

const _: () = assert!(size_of::<Registers>() == REGISTER_WORDS * 8);

/// The registers in the kernel's order (`struct user_regs_struct`).
pub fn register_words(registers: &Registers) -> [u64; REGISTER_WORDS] {
    // SAFETY: the struct consists of that many 64-bit integers without padding: its size is asserted above.
    unsafe { std::mem::transmute_copy(registers) }
}

/// The reverse.
pub fn registers_of_words(words: [u64; REGISTER_WORDS]) -> Registers {
    // SAFETY: as above; every value of the words is one of the struct's integers.
    unsafe { std::mem::transmute_copy(&words) }
}

/// Registers that are all zero.
pub fn zero_registers() -> Registers {
    // SAFETY: the struct consists of integers only, for which zero is a value.
    unsafe { MaybeUninit::zeroed().assume_init() }
}
