//! What the processor and the kernel say of extended registers (Intel SDM volume 1, chapter 13; Documentation/arch/x86/xstate.rst).

use std::{arch::x86_64::__cpuid_count, io};

/// Leaf 1, ecx: the kernel uses XSAVE.
const OSXSAVE: u32 = 1 << 27;
const LEAF_XSAVE: u32 = 0xd;

const ARCH_GET_XCOMP_SUPP: i32 = 0x1021;
/// Of `arch_prctl`: which components this process may use, one bit each.
pub const ARCH_GET_XCOMP_PERM: i32 = 0x1022;
/// Of `arch_prctl`: asks for one more, by its number.
pub const ARCH_REQ_XCOMP_PERM: i32 = 0x1023;

/// Whether the kernel saves registers by XSAVE at all.
pub fn is_used() -> bool {
    __cpuid_count(1, 0).ecx & OSXSAVE != 0
}

/// Offset and size in bytes of a component in the standard (not compacted) format. Meaningless for one that the kernel does not support.
pub fn place(component: u32) -> (u32, u32) {
    let leaf = __cpuid_count(LEAF_XSAVE, component);
    (leaf.ebx, leaf.eax)
}

/// The components that a program could use, one bit each.
pub fn supported() -> io::Result<u64> {
    ask(ARCH_GET_XCOMP_SUPP)
}

/// The components that this process may use: unless it has asked for more, those that every program may.
pub fn permitted() -> io::Result<u64> {
    ask(ARCH_GET_XCOMP_PERM)
}

fn ask(what: i32) -> io::Result<u64> {
    let mut mask = 0u64;
    // SAFETY: both requests store one word at the address, which is that of `mask`.
    let result = unsafe { libc::syscall(libc::SYS_arch_prctl, what, &raw mut mask) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(mask) }
}
