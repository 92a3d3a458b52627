//! Directories that were deleted while they were open.

use super::{Builder, OPEN_FLAGS};

impl Builder<'_> {
    /// Makes a directory where it was, opens it and removes it again.
    pub(super) fn gone_directory(&mut self, path: &[u8], mode: u32, flags: i32) -> i32 {
        const OWNERS_MODE: u64 = 0o700;
        let place = self.arena.text(path);
        self.call(libc::SYS_mkdirat, [libc::AT_FDCWD.into(), place.into(), OWNERS_MODE.into()]);
        let made = self.open(path, flags & OPEN_FLAGS);
        self.call(libc::SYS_fchmodat, [libc::AT_FDCWD.into(), place.into(), u64::from(mode).into()]);
        self.call(libc::SYS_unlinkat, [libc::AT_FDCWD.into(), place.into(), libc::AT_REMOVEDIR.into()]);
        made
    }
}
