//! The blob: a position-independent interpreter of a few hundred bytes that runs a list of system calls natively inside another process.
//!
//! It is mapped into a process together with a list of [`Op`]s. It uses registers only, no stack, so that a thread that an operation
//! creates can go on with the operations meant for it. `blob.S` holds the code; this module is its layout and its bytes.

use std::{mem::size_of, slice};

core::arch::global_asm!(include_str!("blob.S"));

unsafe extern "C" {
    static pando_blob_start: u8;
    static pando_blob_syscall: u8;
    static pando_blob_end: u8;
}

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Makes the system call `nr(args)`.
    Call = 0,
    /// Like `Call`; where the result is 0 (the child of a clone) goes on at `target`.
    Spawn = 1,
    /// Goes on at `target`.
    Jump = 2,
    /// Stores `args[1]` at `args[0]`.
    Store = 3,
    /// Decrements the word at `args[0]`; wakes all waiters when it becomes 0.
    CountDown = 4,
    /// Waits until the word at `args[0]` is 0.
    WaitZero = 5,
    /// `rt_sigreturn` with the stack pointer `args[0]`: leaves the blob for ever.
    Sigreturn = 6,
    /// In a failure handler: stores the failed operation's address and result at `args[0]`.
    Record = 7,
    /// Breakpoint: hands control to the tracer.
    Trap = 8,
    /// Goes on at `target` unless the word at `args[0]` is `args[1]`.
    Unless = 9,
    /// Goes on at `target` in another copy of the blob, at `args[0]`.
    Enter = 10,
}

/// One operation, as `blob.S` reads it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Op {
    /// A [`Kind`].
    pub kind: u32,
    /// [`indirect`] bits, [`CHECK_SUCCESS`], [`CHECK_EQUAL`], [`KEEP_RESULT`].
    pub flags: u32,
    /// System call number.
    pub nr: u64,
    /// Arguments: values, or addresses of 32-bit values where the [`indirect`] bit is set.
    pub args: [u64; 6],
    /// The result, if [`KEEP_RESULT`] is set.
    pub result: i64,
    /// Address of the operation to go on with.
    pub target: u64,
    /// What [`CHECK_EQUAL`] compares the result with.
    pub expect: i64,
    /// Address of the first operation of the failure handler.
    pub on_fail: u64,
}

/// Argument `n` is read from the 32-bit word at the given address.
pub const fn indirect(n: usize) -> u32 {
    1 << n
}

/// A result of -4095..=-1 is a failure.
pub const CHECK_SUCCESS: u32 = 0x100;
/// A result other than `expect` is a failure.
pub const CHECK_EQUAL: u32 = 0x200;
/// The result is stored in the operation. Without it the operation's page stays untouched (and shared).
pub const KEEP_RESULT: u32 = 0x400;

/// Bytes of one operation.
pub const OP_BYTES: usize = size_of::<Op>();
/// Offset of [`Op::args`].
pub const ARGS_OFFSET: u64 = 16;
/// Offset of [`Op::target`].
pub const TARGET_OFFSET: u64 = 72;
/// Offset of [`Op::result`].
pub const RESULT_OFFSET: u64 = 64;

const _: () = assert!(OP_BYTES == 96);
const _: () = assert!(std::mem::offset_of!(Op, args) == ARGS_OFFSET as usize);
const _: () = assert!(std::mem::offset_of!(Op, result) == RESULT_OFFSET as usize);
const _: () = assert!(std::mem::offset_of!(Op, target) == TARGET_OFFSET as usize);
const _: () = assert!(std::mem::offset_of!(Op, expect) == 80);
const _: () = assert!(std::mem::offset_of!(Op, on_fail) == 88);

impl Op {
    /// The operation as the bytes that the blob reads.
    pub fn to_bytes(&self) -> [u8; OP_BYTES] {
        // SAFETY: `Op` is repr(C) without padding (asserted by its size: 2*4 + 11*8), so every byte is initialised.
        unsafe { std::mem::transmute(*self) }
    }
}

/// The blob's code.
pub fn code() -> &'static [u8] {
    // SAFETY: the three symbols delimit one block of constant bytes in this program's image (blob.S), `end` after `start`.
    unsafe {
        let start = &raw const pando_blob_start;
        slice::from_raw_parts(start, (&raw const pando_blob_end).offset_from_unsigned(start))
    }
}

/// Offset in [`code`] of a `syscall` instruction, for a tracer that steps single system calls.
pub fn syscall_offset() -> u64 {
    (&raw const pando_blob_syscall).addr() as u64 - (&raw const pando_blob_start).addr() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_syscall_instruction_is_where_it_is_said_to_be() {
        let at = syscall_offset() as usize;
        assert_eq!(&code()[at..at + 2], &[0x0f, 0x05]);
    }

    #[test]
    fn the_blob_fits_one_page() {
        assert!(code().len() <= 4096, "{}", code().len());
    }
}
