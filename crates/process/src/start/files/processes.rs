//! Descriptors of processes (pidfd_open(2)): of what is there when a process has cloned its children.

use super::Builder;
use crate::{
    image::{FileKind, OpenFile},
    script::{Arg, Check, Script},
    start::{CLONE_ARGS_BYTES, CloneArgs, clone_args},
};

impl Builder<'_> {
    /// `spare`: the number for a process that ends at once, so that it takes none of another one; none: any.
    pub(super) fn pidfds(&mut self, spare: Option<i32>) {
        for file in &self.image.files {
            if let FileKind::Pidfd { pid } = &file.kind {
                self.pidfd(file, *pid, spare);
            }
        }
    }

    fn pidfd(&mut self, file: &OpenFile, pid: Option<i32>, spare: Option<i32>) {
        let flags = (file.flags & libc::O_NONBLOCK).into();
        let made = match pid {
            Some(pid) => self.make(libc::SYS_pidfd_open, [pid.into(), flags]),
            None => {
                // It shares the memory, and ends without a word to the program.
                let mut end = Script::default();
                end.call(libc::SYS_exit_group, [0u64.into()], Check::Ignore);
                let entry = self.arena.place(&end);
                let args = CloneArgs { flags: libc::CLONE_VM as u64, tid: spare, ..CloneArgs::default() };
                let args = clone_args(self.arena, args);
                let gone = self.script.spawn(libc::SYS_clone3, [args.into(), CLONE_ARGS_BYTES.into()], entry);
                let made = self.make(libc::SYS_pidfd_open, [Arg::Result(gone), flags]);
                let options = (libc::WEXITED | libc::__WALL) as u64;
                let which = u64::from(libc::P_PID).into();
                self.call(libc::SYS_waitid, [which, Arg::Result(gone), 0u64.into(), options.into(), 0u64.into()]);
                made
            }
        };
        self.settle(made, &file.numbers);
    }
}
