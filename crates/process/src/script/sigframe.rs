//! The signal frame from which a thread's whole state is loaded: `rt_sigreturn` restores general registers, the XSAVE image, the signal
//! mask and the alternate stack in one system call. Format: arch/x86/include/asm/sigframe.h and uapi/asm/sigcontext.h (x86-64).

use sys::ptrace::Registers;

use crate::{
    image::{AlternateStack, xstate::Format},
    script::Arena,
};

const UC_FP_XSTATE: u64 = 1;
const UC_SIGCONTEXT_SS: u64 = 2;
const UC_STRICT_RESTORE_SS: u64 = 4;

/// Offset of the software-reserved bytes in the legacy XSAVE area.
const SOFTWARE_BYTES: usize = 464;
const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;
const ERESTARTSYS: i64 = 512;
const ERESTARTNOINTR: i64 = 513;
const ERESTARTNOHAND: i64 = 514;
const ERESTART_RESTARTBLOCK: i64 = 516;
const EINTR: i64 = 4;

/// Registers with which a copy of a stopped thread can go on in user mode: a system call that the stop interrupted is made again.
///
/// One that the kernel would continue from its own memory (`restart_syscall`: relative sleeps and waits with a timeout) cannot be made
/// again without waiting its whole time anew: it returns EINTR, which every such call may do.
pub(crate) fn user_registers(stopped: &Registers) -> Registers {
    let mut regs = *stopped;
    if (regs.orig_rax as i64) >= 0 {
        match -(regs.rax as i64) {
            error if is_made_again(error, regs.orig_rax as i64) => {
                regs.rax = regs.orig_rax;
                regs.rip -= 2;
            }
            ERESTART_RESTARTBLOCK => regs.rax = (-EINTR) as u64,
            _ => {}
        }
    }
    regs.orig_rax = u64::MAX;
    regs
}

/// Whether a call that a stop has interrupted with this error is made again. `poll` waits its whole time anew: some programs take its EINTR, with all
/// signals blocked, for a failure.
fn is_made_again(error: i64, call: i64) -> bool {
    match error {
        ERESTARTSYS | ERESTARTNOINTR | ERESTARTNOHAND => true,
        ERESTART_RESTARTBLOCK => call == libc::SYS_poll,
        _ => false,
    }
}

/// Adds a frame to the arena; gives the stack pointer with which `rt_sigreturn` finds it.
///
/// fs and gs bases are not part of a frame: `arch_prctl` sets them before.
pub(crate) fn place(
    arena: &mut Arena,
    regs: &Registers,
    extended: (&[u8], &Format),
    mask: u64,
    alternate: &AlternateStack,
) -> u64 {
    let (fpstate, has_header) = place_extended(arena, extended);
    let mut frame: Vec<u64> = Vec::with_capacity(64);
    frame.push(0); // return address of a real frame
    let flags = UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS | if has_header { UC_FP_XSTATE } else { 0 };
    frame.extend([flags, 0]); // uc_flags, uc_link
    frame.extend([alternate.address, u64::from(alternate.flags), alternate.size]); // uc_stack
    frame.extend([regs.r8, regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15]);
    frame.extend([
        regs.rdi,
        regs.rsi,
        regs.rbp,
        regs.rbx,
        regs.rdx,
        regs.rax,
        regs.rcx,
        regs.rsp,
        regs.rip,
        regs.eflags,
    ]);
    let selectors = (regs.cs & 0xffff) | (regs.gs & 0xffff) << 16 | (regs.fs & 0xffff) << 32 | (regs.ss & 0xffff) << 48;
    frame.extend([selectors, 0, 0, 0, 0]); // cs gs fs ss, err, trapno, oldmask, cr2
    frame.push(fpstate);
    frame.extend([0; 8]); // reserved
    frame.push(mask); // uc_sigmask
    frame.extend([0; 16]); // siginfo
    // The kernel takes the frame to be one word below the stack pointer, where the return address was popped.
    arena.words(&frame) + 8
}

/// Where a placed frame has its alternate stack (`uc_stack`: after return address, `uc_flags` and `uc_link`).
pub(crate) fn alternate_stack(stack_pointer: u64) -> u64 {
    stack_pointer + 16
}

/// Places the extended registers; gives where, and whether they have an XSAVE header.
fn place_extended(arena: &mut Arena, (area, layout): (&[u8], &Format)) -> (u64, bool) {
    let features = layout.features();
    if features == 0 {
        return (arena.data(area, 64), false);
    }
    let mut area = area.to_vec();
    // The size is what the kernel compares with the task's own: a greater one, and it restores the legacy part only.
    let len = area.len() as u32;
    area[SOFTWARE_BYTES..SOFTWARE_BYTES + 4].copy_from_slice(&FP_XSTATE_MAGIC1.to_le_bytes());
    area[SOFTWARE_BYTES + 4..SOFTWARE_BYTES + 8].copy_from_slice(&(len + 4).to_le_bytes());
    area[SOFTWARE_BYTES + 8..SOFTWARE_BYTES + 16].copy_from_slice(&features.to_le_bytes());
    area[SOFTWARE_BYTES + 16..SOFTWARE_BYTES + 20].copy_from_slice(&len.to_le_bytes());
    area[SOFTWARE_BYTES + 20..SOFTWARE_BYTES + 48].fill(0);
    area.extend_from_slice(&FP_XSTATE_MAGIC2.to_le_bytes());
    (arena.data(&area, 64), true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::xstate;

    fn stopped(orig_rax: i64, rax: i64) -> Registers {
        // A default is not derived for libc's struct; every field is an integer.
        let mut regs = crate::image::no_registers();
        (regs.orig_rax, regs.rax, regs.rip) = (orig_rax as u64, rax as u64, 0x1002);
        regs
    }

    #[test]
    fn an_interrupted_call_is_made_again() {
        let regs = user_registers(&stopped(35, -ERESTARTSYS));
        assert_eq!((regs.rax, regs.rip), (35, 0x1000));
    }

    #[test]
    fn a_poll_waits_again() {
        let regs = user_registers(&stopped(libc::SYS_poll, -ERESTART_RESTARTBLOCK));
        assert_eq!((regs.rax as i64, regs.rip), (libc::SYS_poll, 0x1000));
    }

    #[test]
    fn a_sleep_that_only_the_kernel_could_continue_is_interrupted() {
        let regs = user_registers(&stopped(35, -ERESTART_RESTARTBLOCK));
        assert_eq!((regs.rax as i64, regs.rip), (-EINTR, 0x1002));
    }

    #[test]
    fn a_thread_in_user_mode_keeps_its_registers() {
        let regs = user_registers(&stopped(-1, -ERESTARTSYS));
        assert_eq!((regs.rax as i64, regs.rip), (-ERESTARTSYS, 0x1002));
    }

    /// What the kernel compares in a frame (`check_xstate_in_sigframe`): magic numbers and sizes, of an area on a processor with AMX.
    #[test]
    fn a_frame_says_the_size_of_an_area_without_tiles() {
        let layout = xstate::tests::amx();
        let area = xstate::carried(&vec![0; 11_008], &layout).unwrap();
        let mut arena = Arena::new(0x10_0000);
        let (at, has_header) = place_extended(&mut arena, (&area, &layout));
        let bytes = arena.into_bytes();
        let placed = &bytes[(at - 0x10_0000) as usize..];
        let word = |offset: usize| u32::from_le_bytes(std::array::from_fn(|n| placed[offset + n]));
        assert!(has_header && at.is_multiple_of(64));
        assert_eq!((word(464), word(468), word(480), word(2816)), (FP_XSTATE_MAGIC1, 2820, 2816, FP_XSTATE_MAGIC2));
        assert_eq!(u64::from(word(472)) | u64::from(word(476)) << 32, layout.features());
    }

    #[test]
    fn without_xsave_a_frame_has_the_legacy_part_and_no_header() {
        let mut arena = Arena::new(0x10_0000);
        let extended = (&[7; 512][..], &xstate::Format::default());
        let stack = place(&mut arena, &crate::image::no_registers(), extended, 0, &AlternateStack::default());
        let bytes = arena.into_bytes();
        let flags = bytes[(stack - 0x10_0000) as usize];
        assert_eq!(u64::from(flags) & UC_FP_XSTATE, 0);
    }
}
