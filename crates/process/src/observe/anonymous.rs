//! Files without an inode of their own, by what `/proc/PID/fdinfo` says of them.

use procfs::Fields;

use crate::{
    error::Error,
    image::{EpollEntry, FileKind, TimerValue},
    observe::listed::Listed,
    refusal::Refusal,
};

/// What the file is whose link names it `anon_inode:` and this.
pub(crate) fn kind(listed: &Listed, name: &[u8]) -> Result<Result<FileKind, Refusal>, Error> {
    let info = &listed.info;
    let fd = listed.fd;
    Ok(match name {
        b"[eventfd]" => Ok(FileKind::Eventfd {
            count: info.number("eventfd-count", 16)?,
            semaphore: info.number("eventfd-semaphore", 10).unwrap_or(0) != 0,
        }),
        b"[timerfd]" => Ok(FileKind::Timerfd {
            clock: info.number("clockid", 10)? as i32,
            ticks: info.number("ticks", 10)?,
            value: TimerValue { interval: info.pair("it_interval"), remaining: info.pair("it_value") },
        }),
        b"[signalfd]" => Ok(FileKind::Signalfd { mask: info.number("sigmask", 16)? }),
        b"[eventpoll]" => Ok(epoll(info)),
        b"[pidfd]" => pidfd(listed),
        b"[io_uring]" => Err(Refusal::IoUring { fd }),
        _ => Err(Refusal::UnknownDescriptor { fd, what: String::from_utf8_lossy(&listed.link).into_owned() }),
    })
}

fn pidfd(listed: &Listed) -> Result<FileKind, Refusal> {
    // PIDFD_THREAD
    if listed.flags & libc::O_EXCL != 0 {
        return Err(Refusal::UnknownDescriptor { fd: listed.fd, what: "a pidfd of a thread".into() });
    }
    // "NSpid: 4711 23": in each of its pid namespaces; -1 if it is gone.
    let numbers = listed.info.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let pid = numbers.and_then(|numbers| numbers.split_ascii_whitespace().last()?.parse().ok());
    Ok(FileKind::Pidfd { pid: pid.filter(|pid| *pid > 0) })
}

fn epoll(info: &Fields) -> FileKind {
    let mut entries = Vec::new();
    for line in info.lines().filter(|line| line.starts_with("tfd:")) {
        // "tfd:        4 events:       19 data:                4  pos:0 ino:1 sdev:c"
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let (Some(target), Some(events), Some(data)) = (words.get(1), words.get(3), words.get(5)) else { continue };
        let target: i32 = target.parse().unwrap_or(-1);
        let events = u32::from_str_radix(events, 16).unwrap_or(0);
        let data = u64::from_str_radix(data, 16).unwrap_or(0);
        entries.push(EpollEntry { fd: target, events, data });
    }
    FileKind::Epoll { entries }
}
