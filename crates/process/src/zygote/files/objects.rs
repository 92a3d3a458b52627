//! Shared memory: every copy gets objects of its own, with the content that the source had.

use super::{Builder, CLOSE_ON_EXEC};
use crate::{
    image::{Backing, FileKind, SharedObject},
    script::Check,
};

impl Builder<'_> {
    /// An object becomes a memfd of the copy's own, with the content it had; its mappings and descriptors follow.
    pub(super) fn object(&mut self, index: usize, object: &SharedObject) {
        let name = self.arena.text(&object.name[..object.name.len().min(200)]);
        let flags = (libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) as u64;
        let made = self.make(libc::SYS_memfd_create, [name.into(), flags.into()]);
        self.call(libc::SYS_ftruncate, [made.into(), object.size.into()]);
        for (offset, bytes) in &object.content {
            let place = self.arena.data(bytes, 8);
            let args = [made.into(), place.into(), (bytes.len() as u64).into(), (*offset).into()];
            self.script.call(libc::SYS_pwrite64, args, Check::Equal(bytes.len() as i64));
        }
        // Sealed against writing it can have no writable mapping, before or after; other seals may forbid mappings that exist.
        const F_SEAL_WRITE: u32 = 8;
        let early = object.seals & F_SEAL_WRITE != 0;
        if early {
            self.seal(made, object);
        }
        for mapping in &self.image.mappings {
            if let Backing::Object { object, offset } = &mapping.backing
                && *object == index
            {
                self.shared_mapping(mapping.range.start, mapping.range.end, mapping.protection, made, *offset);
            }
        }
        if !early {
            self.seal(made, object);
        }
        let made = self.move_up(made);
        for file in &self.image.files {
            if let FileKind::Memfd { object, offset } = file.kind
                && object == index
            {
                let number = self.open_again(made, file.flags);
                if offset != 0 {
                    self.call(libc::SYS_lseek, [number.into(), offset.into(), libc::SEEK_SET.into()]);
                }
                self.later_flags(number, file.flags);
                self.settle(number, &file.numbers);
            }
        }
        self.close(made);
    }

    fn seal(&mut self, made: i32, object: &SharedObject) {
        // What is no memfd reads as sealed against sealing, which an empty set of seals is not.
        const F_SEAL_SEAL: u32 = 1;
        if object.seals & !F_SEAL_SEAL != 0 {
            self.call(libc::SYS_fcntl, [made.into(), libc::F_ADD_SEALS.into(), u64::from(object.seals).into()]);
        }
    }

    /// An open file of the object at descriptor `number`, with this access.
    fn open_again(&mut self, number: i32, flags: i32) -> i32 {
        let path = self.arena.text(format!("/proc/self/fd/{number}").as_bytes());
        let flags = (flags & libc::O_ACCMODE) | CLOSE_ON_EXEC;
        self.make(libc::SYS_openat, [libc::AT_FDCWD.into(), path.into(), flags.into()])
    }

    fn shared_mapping(&mut self, start: u64, end: u64, protection: u64, file: i32, offset: u64) {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE;
        let args = [start.into(), (end - start).into(), protection.into(), flags.into(), file.into(), offset.into()];
        self.script.call(libc::SYS_mmap, args, Check::Equal(start as i64));
    }

    /// Shared views of files of the root filesystem: of the copy's own file.
    pub(super) fn shared_files(&mut self) {
        for mapping in &self.image.mappings {
            if let Backing::SharedFile { path, offset, writable } = &mapping.backing {
                let made = self.open(path, if *writable { libc::O_RDWR } else { libc::O_RDONLY });
                self.shared_mapping(mapping.range.start, mapping.range.end, mapping.protection, made, *offset);
                self.close(made);
            }
        }
    }
}
