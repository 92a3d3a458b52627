//! Opening files again whose mode forbids that by now, although the program's user owns them. (git makes its objects with mode 0444 and
//! writes to them.)

use super::{Builder, CLOSE_ON_EXEC, HOW_BYTES};
use crate::{
    image::access_mode,
    script::{Arg, Check},
};

/// Of a `struct stat`, and one that stays 0.
pub(super) const WORDS: usize = STATUS_WORDS + 1;
const STATUS_WORDS: usize = 18;
/// Of `st_mode` in a `struct stat`.
const MODE_OFFSET: u64 = 24;

impl Builder<'_> {
    /// Adds the steps that open the file at `path` if its mode forbids that, at the number that an opening gets which follows. That one is passed
    /// over then, if its script lands what this gives.
    ///
    /// The mode is another one while the file is opened. It is put back whether that succeeds or not.
    pub(super) fn open_forbidden(&mut self, path: u64, flags: i32, how: u64) -> usize {
        let here = || libc::AT_FDCWD.into();
        let wanted = u64::from(access_mode(flags));
        let args = [here(), path.into(), wanted.into(), (libc::AT_EACCESS | libc::AT_SYMLINK_NOFOLLOW).into()];
        let may = self.script.call(libc::SYS_faccessat2, args, Check::Ignore);
        let other = self.script.unless(may, i64::from(-libc::EACCES) as u64);
        // These have the numbers only here.
        let named = self.numbers.lowest_from(0);
        let made = self.numbers.lowest_from(0);
        let resolve = libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;
        let naming = self.arena.words(&[(libc::O_PATH | CLOSE_ON_EXEC) as u64, 0, resolve]);
        let args = [here(), path.into(), naming.into(), HOW_BYTES.into()];
        self.script.call(libc::SYS_openat2, args, Check::Equal(i64::from(named)));
        self.call(libc::SYS_fstat, [named.into(), self.status.into()]);
        let itself = self.arena.text(format!("/proc/self/fd/{named}").as_bytes());
        const OWNERS_MODE: u64 = 0o600;
        self.call(libc::SYS_fchmodat, [here(), itself.into(), OWNERS_MODE.into()]);
        let args = [here(), path.into(), how.into(), HOW_BYTES.into()];
        self.script.call(libc::SYS_openat2, args, Check::Ignore);
        self.call(libc::SYS_fchmodat, [here(), itself.into(), Arg::Word(self.status + MODE_OFFSET)]);
        // Fails if there is nothing at the second number.
        self.call(libc::SYS_dup3, [made.into(), named.into(), CLOSE_ON_EXEC.into()]);
        self.close(made);
        self.numbers.0.remove(&named);
        let over = self.script.unless_word(self.status + STATUS_WORDS as u64 * 8, 1);
        self.script.land(other);
        over
    }
}
