//! A program for processes that only have to be there: it has one page of code, and sleeps for ever. Beside that it can carry what comes out of
//! a pipe to a file.
//!
//! A fork that goes on as it is keeps the memory of whoever forked it, with whatever lies in there, and the page tables for it.

use std::{
    ffi::{CStr, c_char},
    fs::File,
    io::{self, Write},
    os::fd::AsRawFd,
    slice,
};

use rustix::fs::{MemfdFlags, Mode, memfd_create};

core::arch::global_asm!(include_str!("rest.S"));

unsafe extern "C" {
    static pando_rest_start: u8;
    static pando_rest_end: u8;
}

/// Becomes that program, called `name`. If descriptor 0 is a pipe and 1 a file (without `O_APPEND`), it appends to the file what comes; what it
/// cannot write it leaves in the pipe and tries again. It has the file locked (`flock`) while it looks for its end and writes there: who cuts the
/// file locks it too. It begins without arguments, environment and whatever is to be closed at an `execve`; signals that are ignored
/// stay so. Returns only if that failed: where no file in memory may be executed (sysctl `vm.memfd_noexec`) this process is as it was.
pub fn enter(name: &CStr) -> io::Error {
    let program = match file() {
        Ok(program) => program,
        Err(error) => return error,
    };
    let argv = [name.as_ptr(), std::ptr::null()];
    let environment: [*const c_char; 1] = [std::ptr::null()];
    let (path, flags) = (c"".as_ptr(), libc::AT_EMPTY_PATH);
    // SAFETY: both arrays end with a null pointer, and the name with a zero byte; the path is empty, so the descriptor is executed.
    unsafe { libc::syscall(libc::SYS_execveat, program.as_raw_fd(), path, argv.as_ptr(), environment.as_ptr(), flags) };
    io::Error::last_os_error()
}

fn file() -> io::Result<File> {
    let mut file = File::from(memfd_create("pando-rest", MemfdFlags::CLOEXEC | MemfdFlags::EXEC)?);
    file.write_all(program())?;
    // Who may not read the program may not look into its process: it is not dumpable (would_dump in fs/exec.c), also for root of a sandbox.
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o111))?;
    Ok(file)
}

fn program() -> &'static [u8] {
    // SAFETY: the two symbols delimit one block of constant bytes in this program's image (rest.S), `end` after `start`.
    unsafe {
        let start = &raw const pando_rest_start;
        slice::from_raw_parts(start, (&raw const pando_rest_end).offset_from_unsigned(start))
    }
}
