//! What rustix does not have of mounts and of descriptors that are put in each other's place.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, RawFd},
};

/// What mount_setattr(2) reads; its first version.
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

const _: () = assert!(size_of::<MountAttributes>() == 32);

/// Makes a mount read-only, whatever others of the same filesystem are.
pub fn set_read_only(mount: impl AsFd) -> io::Result<()> {
    const MOUNT_ATTR_RDONLY: u64 = 1;
    set(mount, &MountAttributes { set: MOUNT_ATTR_RDONLY, clear: 0, propagation: 0, userns_fd: 0 })
}

/// Makes a mount, attached nowhere, show the ids of its filesystem as those of the user namespace: an owner 0 on the disk is root in there. `EINVAL`
/// if its filesystem cannot, `EPERM` if it does already.
pub fn map_ids(mount: impl AsFd, user_namespace: impl AsFd) -> io::Result<()> {
    const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
    let userns_fd = user_namespace.as_fd().as_raw_fd() as u64;
    set(mount, &MountAttributes { set: MOUNT_ATTR_IDMAP, clear: 0, propagation: 0, userns_fd })
}

fn set(mount: impl AsFd, attributes: &MountAttributes) -> io::Result<()> {
    // SAFETY: the path is an empty C string, and the kernel reads 32 bytes of attributes; both live until the call returns.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            std::ptr::from_ref(attributes),
            size_of::<MountAttributes>(),
        )
    };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes the descriptor `place` refer to what `file` refers to; what it referred to before is closed. It stays close-on-exec.
///
/// For a descriptor whose owner offers no way to exchange it, nor to borrow it. It must be open, and nobody may use it meanwhile.
pub fn put_in_place(file: impl AsFd, place: RawFd) -> io::Result<()> {
    let file = file.as_fd().as_raw_fd();
    // SAFETY: `file` is an open descriptor while it is borrowed; `place`'s owner closes the new file as it would have the old one.
    if unsafe { libc::dup3(file, place, libc::O_CLOEXEC) } == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};

    use super::*;

    #[test]
    fn a_descriptor_gets_another_file() {
        let (read, mut write) = std::io::pipe().unwrap();
        let mut place = std::fs::File::open("/dev/null").unwrap();
        put_in_place(&read, place.as_raw_fd()).unwrap();
        write.write_all(b"x").unwrap();
        let mut byte = [0];
        place.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
        assert!(place.stream_position().is_err(), "it is a pipe now");
    }
}
