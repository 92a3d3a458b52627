//! System V shared memory, semaphores and message queues (sysvipc(7)): what there is in the caller's ipc namespace, and objects with given numbers.
//!
//! Layouts are those of `struct shmid64_ds`, `semid64_ds` and `msqid64_ds` on x86-64.

use std::{fs, fs::File, io, ptr};

/// Longest of the three structures, in bytes.
const STATUS_BYTES: usize = 120;
const PERMISSIONS_BYTES: usize = 48;

/// Gives a message and leaves it in the queue; the type is its place there (msgrcv(2)).
const MSG_COPY: i32 = 0o40000;

/// A kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Kind {
    /// Shared memory.
    Segment,
    /// A set of semaphores.
    Semaphores,
    /// A message queue.
    Queue,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Segment, Self::Semaphores, Self::Queue];

    /// The commands that give the highest place in use, and the object at a place, for everyone to read.
    fn commands(self) -> (i32, i32) {
        match self {
            Self::Segment => (14, 15),
            Self::Semaphores => (19, 20),
            Self::Queue => (12, 13),
        }
    }

    /// Where it says how much it has: bytes, semaphores, or bytes in messages.
    fn amount_at(self) -> usize {
        PERMISSIONS_BYTES
            + match self {
                Self::Segment => 0,
                Self::Semaphores => 32,
                Self::Queue => 24,
            }
    }

    /// The file that takes the number of the next object, with the right to restore checkpoints (`CAP_CHECKPOINT_RESTORE`).
    fn next_number(self) -> &'static str {
        match self {
            Self::Segment => "/proc/sys/kernel/shm_next_id",
            Self::Semaphores => "/proc/sys/kernel/sem_next_id",
            Self::Queue => "/proc/sys/kernel/msg_next_id",
        }
    }

    fn control(self, number: i32, command: i32, status: &mut [u8; STATUS_BYTES]) -> io::Result<i32> {
        let place = status.as_mut_ptr();
        // SAFETY: the commands fill at most the longest of the structures, which `status` has room for.
        let result = unsafe {
            match self {
                Self::Segment => libc::syscall(libc::SYS_shmctl, number, command, place),
                Self::Semaphores => libc::syscall(libc::SYS_semctl, number, 0, command, place),
                Self::Queue => libc::syscall(libc::SYS_msgctl, number, command, place),
            }
        };
        check(result).map(|result| result as i32)
    }
}

/// An object as its namespace shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// What it is.
    pub kind: Kind,
    /// Its identifier.
    pub number: i32,
    /// `IPC_PRIVATE` (0): none.
    pub key: i32,
    /// User and group that it belongs to.
    pub owner: [u32; 2],
    /// User and group that made it.
    pub creator: [u32; 2],
    /// Bits of access, and flags of a segment above them.
    pub mode: u32,
    /// Bytes of a segment, semaphores of a set, or bytes of all messages of a queue.
    pub amount: u64,
}

impl Object {
    /// All objects of a kind.
    ///
    /// # Errors
    /// What the kernel says but for objects that are removed meanwhile.
    pub fn all(kind: Kind) -> io::Result<Vec<Self>> {
        let (info, status_any) = kind.commands();
        let last = kind.control(0, info, &mut [0; STATUS_BYTES])?;
        let mut found = Vec::new();
        for place in 0..=last {
            let mut status = [0; STATUS_BYTES];
            match kind.control(place, status_any, &mut status) {
                Ok(number) => found.push(Self::read(kind, number, &status)),
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EIDRM)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    fn read(kind: Kind, number: i32, status: &[u8; STATUS_BYTES]) -> Self {
        let (words, _) = status.as_chunks::<4>();
        let word = |at: usize| u32::from_ne_bytes(words[at]);
        let at = kind.amount_at() / 4;
        let amount = u64::from(word(at)) | u64::from(word(at + 1)) << 32;
        Self {
            kind,
            number,
            key: word(0) as i32,
            owner: [word(1), word(2)],
            creator: [word(3), word(4)],
            mode: word(5),
            amount,
        }
    }

    /// Makes it, empty and for its creator only. A segment or set with its key must not be there, nor anything with its number.
    ///
    /// # Errors
    /// What the kernel says; [`io::ErrorKind::AddrInUse`] if it has another number.
    pub fn make(&self) -> io::Result<()> {
        fs::write(self.kind.next_number(), self.number.to_string())?;
        let [user, group] = self.creator;
        let made = acting_as(user, group, || self.get())?;
        match made == self.number {
            true => Ok(()),
            false => Err(io::ErrorKind::AddrInUse.into()),
        }
    }

    fn get(&self) -> io::Result<i32> {
        const FLAGS: i32 = libc::IPC_CREAT | libc::IPC_EXCL | 0o600;
        // SAFETY: none of the calls takes an address.
        let made = unsafe {
            match self.kind {
                Kind::Segment => libc::syscall(libc::SYS_shmget, self.key, self.amount, FLAGS),
                Kind::Semaphores => libc::syscall(libc::SYS_semget, self.key, self.amount, FLAGS),
                Kind::Queue => libc::syscall(libc::SYS_msgget, self.key, FLAGS),
            }
        };
        check(made).map(|number| number as i32)
    }

    /// Opens a segment as a file.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open(&self) -> io::Result<File> {
        // SAFETY: the kernel chooses where, and nothing reads or writes there.
        let start = check(unsafe { libc::syscall(libc::SYS_shmat, self.number, ptr::null::<u8>(), libc::SHM_RDONLY) })?;
        let end = (start as u64) + self.amount.next_multiple_of(crate::remote::PAGE);
        let file = File::open(format!("/proc/self/map_files/{start:x}-{end:x}"));
        // SAFETY: it is ours, and nothing refers to it.
        check(unsafe { libc::syscall(libc::SYS_shmdt, start) })?;
        file
    }

    /// The values of a set of semaphores.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn values(&self) -> io::Result<Vec<u16>> {
        let mut values = vec![0u16; self.amount as usize];
        // SAFETY: the kernel fills as many values as the set has, which never change in number.
        check(unsafe { libc::syscall(libc::SYS_semctl, self.number, 0, libc::GETALL, values.as_mut_ptr()) })?;
        Ok(values)
    }

    /// The messages of a queue, with their types, in order.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn messages(&self) -> io::Result<Vec<(i64, Vec<u8>)>> {
        const TYPE_BYTES: usize = size_of::<i64>();
        let mut found = Vec::new();
        let mut room = vec![0u8; TYPE_BYTES + self.amount as usize];
        loop {
            let (place, flags) = (found.len(), libc::IPC_NOWAIT | MSG_COPY);
            // SAFETY: the kernel writes a type and at most as many bytes as follow it.
            let length = unsafe {
                libc::syscall(libc::SYS_msgrcv, self.number, room.as_mut_ptr(), self.amount as usize, place, flags)
            };
            match check(length) {
                Ok(length) => {
                    let (kind, bytes) = room.split_at(TYPE_BYTES);
                    let kind = i64::from_ne_bytes(kind.try_into().unwrap_or_default());
                    found.push((kind, bytes[..length as usize].to_vec()));
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOMSG) => return Ok(found),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Does something with other effective ids, those of this thread only.
fn acting_as<T>(user: u32, group: u32, action: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    const UNCHANGED: i64 = -1;
    let (own_user, own_group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // SAFETY: these take no address, and count for this thread alone.
    let set = |call: i64, id: u32| check(unsafe { libc::syscall(call, UNCHANGED, i64::from(id), UNCHANGED) });
    set(libc::SYS_setresgid, group)?;
    set(libc::SYS_setresuid, user)?;
    let result = action();
    set(libc::SYS_setresuid, own_user)?;
    set(libc::SYS_setresgid, own_group)?;
    result
}

fn check(result: i64) -> io::Result<i64> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    use std::os::unix::fs::FileExt;

    use super::*;

    fn apart<T: Send>(body: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let body = || {
                // SAFETY: nothing here has System V objects of its namespace before.
                unsafe { unshare_unsafe(UnshareFlags::NEWIPC) }.unwrap();
                body()
            };
            scope.spawn(body).join().unwrap()
        })
    }

    #[test]
    fn objects_are_made_with_the_numbers_that_they_had() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("not run: only root makes an ipc namespace");
            return;
        }
        apart(|| {
            let object = |kind, number, key, amount| Object {
                kind,
                number,
                key,
                owner: [7, 8],
                creator: [7, 8],
                mode: 0o600,
                amount,
            };
            let wanted = [
                object(Kind::Segment, 65_541, 0x1234, 5_000),
                object(Kind::Semaphores, 32_770, 0, 3),
                object(Kind::Queue, 3, 0x77, 0),
            ];
            for object in &wanted {
                object.make().unwrap();
                assert_eq!(Object::all(object.kind).unwrap(), std::slice::from_ref(object));
                assert_eq!(object.make().unwrap_err().raw_os_error().is_some(), object.key != 0);
            }
            assert_eq!(wanted[1].values().unwrap(), [0, 0, 0]);
            let mut byte = [1];
            wanted[0].open().unwrap().read_exact_at(&mut byte, 4_999).unwrap();
            assert_eq!((byte, wanted[2].messages().unwrap()), ([0], vec![]));
            let sent: [u8; 11] = *b"\x05\0\0\0\0\0\0\0abc";
            // SAFETY: the message has a type and three bytes.
            check(unsafe { libc::syscall(libc::SYS_msgsnd, 3, sent.as_ptr(), 3, libc::IPC_NOWAIT) }).unwrap();
            let queue = Object::all(Kind::Queue).unwrap().remove(0);
            assert_eq!((queue.amount, queue.messages().unwrap()), (3, vec![(5, b"abc".to_vec())]));
        });
    }
}
