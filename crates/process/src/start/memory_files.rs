//! Makes a copy's files in memory, on a filesystem that is empty before.
//!
//! They are made with the program's own rights. While they are filled, opened and mapped their modes permit that. Their own modes and times
//! are set last: a program may have a file open that it could not open now.

use crate::{
    image::{MemoryFile, MemoryFileKind, ProgramImage},
    script::{Arena, Check, Script},
};

const OWN: u64 = 0o700;

/// Makes them. No descriptor below the program's is in use yet.
pub(super) fn make(arena: &mut Arena, script: &mut Script, image: &ProgramImage) {
    for file in &image.memory_files {
        let path = arena.text(&file.path);
        let here = || libc::AT_FDCWD.into();
        match &file.kind {
            MemoryFileKind::Directory => {
                script.call(libc::SYS_mkdirat, [here(), path.into(), OWN.into()], Check::Success);
                // The program's umask counts here.
                script.call(libc::SYS_fchmodat, [here(), path.into(), OWN.into()], Check::Success);
            }
            MemoryFileKind::Regular { .. } => regular(arena, script, path, file),
            MemoryFileKind::Link { to } => {
                let to = arena.text(to);
                script.call(libc::SYS_symlinkat, [to.into(), here(), path.into()], Check::Success);
            }
            MemoryFileKind::Name { of } => {
                let of = arena.text(&image.memory_files[*of].path);
                let args = [here(), of.into(), here(), path.into(), 0u64.into()];
                script.call(libc::SYS_linkat, args, Check::Success);
            }
            MemoryFileKind::Special { kind } => {
                let mode = u64::from(*kind) | OWN;
                script.call(libc::SYS_mknodat, [here(), path.into(), mode.into(), 0u64.into()], Check::Success);
                script.call(libc::SYS_fchmodat, [here(), path.into(), OWN.into()], Check::Success);
            }
        }
    }
}

fn regular(arena: &mut Arena, script: &mut Script, path: u64, file: &MemoryFile) {
    let MemoryFileKind::Regular { size, content } = &file.kind else { return };
    const FIRST: i32 = 0;
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
    let args = [libc::AT_FDCWD.into(), path.into(), flags.into(), OWN.into()];
    script.call(libc::SYS_openat, args, Check::Equal(i64::from(FIRST)));
    script.call(libc::SYS_fchmod, [FIRST.into(), OWN.into()], Check::Success);
    script.call(libc::SYS_ftruncate, [FIRST.into(), (*size).into()], Check::Success);
    for part in content {
        let place = arena.data(&part.bytes, 8);
        let args = [FIRST.into(), place.into(), (part.bytes.len() as u64).into(), part.offset.into()];
        script.call(libc::SYS_pwrite64, args, Check::Equal(part.bytes.len() as i64));
    }
    for (name, value) in &file.attributes {
        let [name, place, length] = attribute(arena, name, value);
        let args = [FIRST.into(), name.into(), place.into(), length.into(), 0u64.into()];
        script.call(libc::SYS_fsetxattr, args, Check::Success);
    }
    script.call(libc::SYS_close, [FIRST.into()], Check::Success);
}

fn attribute(arena: &mut Arena, name: &[u8], value: &[u8]) -> [u64; 3] {
    [arena.text(name), arena.data(value, 8), value.len() as u64]
}

/// Gives them modes and times, what is in a directory before that. A directory gets its attributes, too: access lists among them would count for
/// what is made in it.
pub(super) fn finish(arena: &mut Arena, script: &mut Script, image: &ProgramImage) {
    for file in image.memory_files.iter().rev() {
        let path = arena.text(&file.path);
        if file.kind == MemoryFileKind::Directory {
            for (name, value) in &file.attributes {
                let [name, place, length] = attribute(arena, name, value);
                let args = [path.into(), name.into(), place.into(), length.into(), 0u64.into()];
                script.call(libc::SYS_setxattr, args, Check::Success);
            }
        }
        match file.kind {
            // Its first name has it all.
            MemoryFileKind::Name { .. } => continue,
            // A link has no mode.
            MemoryFileKind::Link { .. } => {}
            MemoryFileKind::Directory | MemoryFileKind::Regular { .. } | MemoryFileKind::Special { .. } => {
                let args = [libc::AT_FDCWD.into(), path.into(), u64::from(file.mode).into()];
                script.call(libc::SYS_fchmodat, args, Check::Success);
            }
        }
        let [(access, access_ns), (change, change_ns)] = file.times;
        let times = arena.words(&[access as u64, access_ns, change as u64, change_ns]);
        let args = [libc::AT_FDCWD.into(), path.into(), times.into(), libc::AT_SYMLINK_NOFOLLOW.into()];
        script.call(libc::SYS_utimensat, args, Check::Success);
    }
}
