//! Shared memory: every copy gets objects of its own, with the content that the source had.

use std::collections::{BTreeMap, BTreeSet};
use sys::remote::{self, Range};

use super::{Builder, CLOSE_ON_EXEC};
use crate::{
    image::{Backing, FileKind, ObjectStatus, SharedObject, within},
    script::Check,
};

/// Of a new memfd.
const MEMFD_MODE: u32 = 0o777;
const F_SEAL_SEAL: u32 = 1;

impl Builder<'_> {
    /// An object becomes a memfd of the copy's own, with the content it had; its mappings and descriptors follow.
    /// It is handed down by the number `handed`, if other processes need it.
    pub(super) fn object(&mut self, index: usize, object: &SharedObject, handed: Option<i32>) {
        let name = self.arena.text(&object.name[..object.name.len().min(200)]);
        let allow = if object.seals == F_SEAL_SEAL { 0 } else { libc::MFD_ALLOW_SEALING };
        let made = self.make(libc::SYS_memfd_create, [name.into(), u64::from(libc::MFD_CLOEXEC | allow).into()]);
        self.call(libc::SYS_ftruncate, [made.into(), object.size.into()]);
        for (offset, bytes) in &object.content {
            let place = self.arena.data(bytes, 8);
            let args = [made.into(), place.into(), (bytes.len() as u64).into(), (*offset).into()];
            self.script.call(libc::SYS_pwrite64, args, Check::Equal(bytes.len() as i64));
        }
        // While it has the mode of a new one: the program's may forbid its own user to open it or to give it attributes.
        let made = self.move_up(made);
        if let Some(number) = handed {
            self.call(libc::SYS_dup3, [made.into(), number.into(), CLOSE_ON_EXEC.into()]);
            self.numbers.0.insert(number);
        }
        let mut is_first = true;
        for file in &self.image.files {
            if let FileKind::Memfd { object, offset } = file.kind
                && object == index
            {
                let number = self.open_again(made, file.flags, &mut is_first);
                if offset != 0 {
                    self.call(libc::SYS_lseek, [number.into(), offset.into(), libc::SEEK_SET.into()]);
                }
                self.later_flags(number, file.flags);
                self.settle(number, &file.numbers);
            }
        }
        let status = self.image.added.object(index).cloned();
        if let Some(status) = &status {
            self.attributes(made, status);
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
        if let Some(status) = &status {
            self.times(made, status);
        }
        self.close(made);
    }

    fn seal(&mut self, made: i32, object: &SharedObject) {
        // What is no memfd reads as sealed against sealing, which an empty set of seals is not.
        if object.seals & !F_SEAL_SEAL != 0 {
            self.call(libc::SYS_fcntl, [made.into(), libc::F_ADD_SEALS.into(), u64::from(object.seals).into()]);
        }
    }

    /// Extended attributes, and then the mode, which may forbid them. Before seals, which may forbid another mode.
    fn attributes(&mut self, made: i32, status: &ObjectStatus) {
        for (name, value) in &status.attributes {
            let (name, place) = (self.arena.text(name), self.arena.data(value, 8));
            let length = value.len() as u64;
            self.call(libc::SYS_fsetxattr, [made.into(), name.into(), place.into(), length.into(), 0u64.into()]);
        }
        if status.mode != MEMFD_MODE {
            self.call(libc::SYS_fchmod, [made.into(), u64::from(status.mode).into()]);
        }
    }

    /// Last: all that came before has changed them.
    fn times(&mut self, made: i32, status: &ObjectStatus) {
        let [accessed, changed] = status.times;
        let times = self.arena.words(&[accessed.0 as u64, accessed.1, changed.0 as u64, changed.1]);
        self.call(libc::SYS_utimensat, [made.into(), 0u64.into(), times.into(), 0u64.into()]);
    }

    /// An open file of the object at descriptor `number`, with this access. The first that reads and writes is the one that it was made with: what
    /// is opened for writing by a path cannot be executed (`ETXTBSY`).
    fn open_again(&mut self, number: i32, flags: i32, is_first: &mut bool) -> i32 {
        let access = flags & (libc::O_ACCMODE | libc::O_PATH);
        if access == libc::O_RDWR && std::mem::take(is_first) {
            return self.make(libc::SYS_fcntl, [number.into(), libc::F_DUPFD_CLOEXEC.into(), 0u64.into()]);
        }
        let path = self.arena.text(format!("/proc/self/fd/{number}").as_bytes());
        let flags = access | CLOSE_ON_EXEC;
        self.make(libc::SYS_openat, [libc::AT_FDCWD.into(), path.into(), flags.into()])
    }

    pub(super) fn shared_mapping(&mut self, start: u64, end: u64, protection: u64, file: i32, offset: u64) {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE;
        let args = [start.into(), (end - start).into(), protection.into(), flags.into(), file.into(), offset.into()];
        self.script.call(libc::SYS_mmap, args, Check::Equal(start as i64));
        let guards = within(&self.image.guards, Range { start, end });
        self.script.advise(&guards, remote::MADV_GUARD_INSTALL);
    }

    /// Shared views of files of the root filesystem: of the copy's own file.
    pub(super) fn shared_files(&mut self) {
        self.take_from_layers();
        for mapping in &self.image.mappings {
            if let Backing::SharedFile { path, offset, writable } = &mapping.backing {
                let made = self.open(path, if *writable { libc::O_RDWR } else { libc::O_RDONLY });
                self.shared_mapping(mapping.range.start, mapping.range.end, mapping.protection, made, *offset);
                self.close(made);
            }
        }
    }

    /// Opens once what the program has a view of for reading, and can write in another way. An overlay copies a file of a lower layer when it is
    /// opened for writing, and a view that is older than that shows the layer's for ever.
    fn take_from_layers(&mut self) {
        let image = self.image;
        let views = |for_writing: bool| {
            image.mappings.iter().filter_map(move |mapping| match &mapping.backing {
                Backing::SharedFile { path, writable, .. } if *writable == for_writing => Some(path),
                _ => None,
            })
        };
        let descriptors = image.files.iter().filter_map(|file| match (&file.kind, file.flags & libc::O_ACCMODE) {
            (FileKind::Path { path, .. }, access @ (libc::O_WRONLY | libc::O_RDWR))
                if file.flags & libc::O_PATH == 0 =>
            {
                Some((path, access))
            }
            _ => None,
        });
        let written: BTreeMap<_, _> = views(true).map(|path| (path, libc::O_RDWR)).chain(descriptors).collect();
        for path in views(false).collect::<BTreeSet<_>>() {
            if let Some(access) = written.get(path) {
                let made = self.open(path, *access);
                self.close(made);
            }
        }
    }
}
