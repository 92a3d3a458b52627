//! Registrations for events of open files: epoll sets, inotify watches, owners of signals.

use super::{Builder, CLOSE_ON_EXEC, INOTIFY_IOC_SETNEXTWD, LATER_FLAGS};
use crate::{
    image::{EpollEntry, FileKind, OpenFile, SignalOwner},
    script::Check,
};

const F_SETSIG: i32 = 10;
const F_SETOWN_EX: i32 = 15;

impl Builder<'_> {
    pub(super) fn registrations(&mut self, index: usize, file: &OpenFile) {
        let (FileKind::Epoll { entries }, Some((set, _))) = (&file.kind, file.numbers.first()) else { return };
        let image = self.image;
        for (at, entry) in entries.iter().enumerate() {
            match image.added.reused.iter().find(|reused| (reused.set, reused.entry) == (index, at)) {
                Some(reused) => self.register_by_reused(*set, entry, reused.fd),
                None => self.register(*set, entry),
            }
        }
    }

    fn register(&mut self, set: i32, entry: &EpollEntry) {
        let mut event = entry.events.to_le_bytes().to_vec();
        event.extend(entry.data.to_le_bytes()); // packed: 12 bytes
        let event = self.arena.data(&event, 8);
        self.call(libc::SYS_epoll_ctl, [set.into(), libc::EPOLL_CTL_ADD.into(), entry.fd.into(), event.into()]);
    }

    /// Registers the file of descriptor `fd` by the number that it had, which for this moment it has again. A set knows files by both, so what
    /// has the number otherwise stays registered.
    fn register_by_reused(&mut self, set: i32, entry: &EpollEntry, fd: i32) {
        let number = entry.fd;
        let has_it = |file: &&OpenFile| file.numbers.iter().any(|(taken, _)| *taken == number);
        let close_on_exec = self
            .image
            .files
            .iter()
            .find(has_it)
            .map(|file| file.numbers.iter().any(|(taken, close_on_exec)| *taken == number && *close_on_exec));
        let aside = close_on_exec.map(|_| {
            let aside = self.numbers.lowest_from(self.high);
            let args = [number.into(), libc::F_DUPFD_CLOEXEC.into(), self.high.into()];
            self.script.call(libc::SYS_fcntl, args, Check::Equal(i64::from(aside)));
            aside
        });
        self.call(libc::SYS_dup3, [fd.into(), number.into(), CLOSE_ON_EXEC.into()]);
        // The set itself may have the number now.
        self.register(aside.filter(|_| set == number).unwrap_or(set), entry);
        match (aside, close_on_exec) {
            (Some(aside), Some(close_on_exec)) => {
                let flags = if close_on_exec { CLOSE_ON_EXEC } else { 0 };
                self.call(libc::SYS_dup3, [aside.into(), number.into(), flags.into()]);
                self.close(aside);
            }
            _ => self.call(libc::SYS_close, [number.into()]),
        }
    }

    pub(super) fn watches(&mut self, file: &OpenFile) {
        let (FileKind::Inotify { watches }, Some((instance, _))) = (&file.kind, file.numbers.first()) else { return };
        for watch in watches {
            self.call(libc::SYS_ioctl, [(*instance).into(), INOTIFY_IOC_SETNEXTWD.into(), watch.wd.into()]);
            let path = self.arena.text(&watch.path);
            let args = [(*instance).into(), path.into(), u64::from(watch.mask).into()];
            self.script.call(libc::SYS_inotify_add_watch, args, Check::Equal(i64::from(watch.wd)));
        }
    }

    /// At the end of the start: the threads that get the signals are there only then.
    pub(super) fn owner(&mut self, file: &OpenFile, owner: SignalOwner) {
        let Some((number, _)) = file.numbers.first() else { return };
        if owner.id != 0 {
            let place = self.arena.data(&[owner.kind.to_le_bytes(), owner.id.to_le_bytes()].concat(), 8);
            let args = [(*number).into(), F_SETOWN_EX.into(), place.into()];
            self.timers.call(libc::SYS_fcntl, args, Check::Success);
        }
        if owner.signal != 0 {
            let args = [(*number).into(), F_SETSIG.into(), owner.signal.into()];
            self.timers.call(libc::SYS_fcntl, args, Check::Success);
        }
    }

    /// Has an open file send signals from now on.
    pub(super) fn signals(&mut self, file: &OpenFile) {
        if let (Some((number, _)), false) = (file.numbers.first(), matches!(file.kind, FileKind::Stream(_))) {
            let flags = file.flags & (LATER_FLAGS | libc::O_ASYNC | libc::O_DIRECT);
            self.timers.call(libc::SYS_fcntl, [(*number).into(), libc::F_SETFL.into(), flags.into()], Check::Success);
        }
    }
}
