//! What cannot be forked is refused by name, and the program runs on.

use anyhow::{Result, bail, ensure};
use testkit::{
    engine::{Bench, PROGRAMS, Place},
    runner::Case,
};

use super::{begin, go_on, on_a_bench};

pub(super) fn cases() -> Vec<Case> {
    let case = |(what, text): &(&'static str, &'static str)| {
        let (what, text) = (*what, *text);
        let case = Case::new(format!("refused::{what}"), move || refused(what, text));
        if what.starts_with("huge_") { case.alone("it changes the number of huge pages of the host") } else { case }
    };
    REFUSED.iter().map(case).collect()
}

/// What the probe `refused` holds, and what must be said about it.
const REFUSED: &[(&str, &str)] = &[
    ("lease", "holds a lease on /tmp/leased (LEASE)"),
    ("many_locks", "it has 5000 locks, more than the 4096 that can be forked"),
    ("gone_file", "holds 1073745920 bytes, more than the 1073741824 that a fork carries"),
    ("thread_directory", "does not share working directory and umask with the main thread"),
    ("thread_files", "does not share descriptors with the main thread"),
    ("deleted_directory", "its working directory /tmp/gone (deleted) was deleted or replaced"),
    ("replaced_directory", "its working directory /tmp/gone (deleted) was deleted or replaced"),
    ("replaced_socket", "is a unix socket bound to /tmp/socket, which is gone"),
    ("socket_is_a_file", "is a unix socket bound to /tmp/socket, which is gone"),
    ("many_guards", "it has 65531 guard regions, more than the 65530 that can be forked"),
    ("shared_memory", "holds 314572800 bytes, more than the 268435456 that a fork carries"),
    ("inotify_events", "bytes of events wait at inotify instance"),
    ("inotify_gone", "watches something that was not found in the root filesystem"),
    ("waiting_connection", "1 connections wait at unix socket"),
    ("lock_on_its_way", "a socket with a descriptor on its way that cannot be made again"),
    ("foreign_owner", "sends its signals (F_SETOWN) to process"),
    ("message_of_closed", "a socket at which a message of another one (/tmp/closed) waits"),
    ("peer_of_closed", "a socket that sends to another one (/tmp/second), whose own peer is closed"),
    ("urgent_byte", "a byte waits that was sent out of band (MSG_OOB)"),
    ("other_name", "is /tmp/first (deleted), where another file is now, or none"),
    ("registered_elsewhere", "watches a file that has no descriptor any more"),
    ("own_filter", "it installed 1 seccomp filters of its own"),
    ("thread_filter", "it installed 1 seccomp filters of its own"),
    ("thread_privileges", "has other ids, capabilities or no_new_privs than its program"),
    ("replaced_program", "its program file /tmp/self (deleted) was deleted or replaced"),
    ("huge_mapping", "uses huge pages of hugetlbfs"),
    ("huge_memfd", "a memfd of huge pages"),
    ("sibling", "it started processes that are not its children"),
    ("child_and_lease", "holds a lease on /tmp/leased (LEASE)"),
    ("traced", "traces it"),
    ("traced_thread", "traces it"),
    ("part_of_segment", "it has mapped a part of System V segment"),
    ("named_queue", "POSIX message queues (kept)"),
    ("open_queue", "is the POSIX message queue /kept"),
    ("closed_directory", "is /tmp/closed/file, which a copy cannot open: the program may not search /tmp/closed"),
    ("nameless_queue", "is the POSIX message queue /kept"),
];

/// Some huge pages of hugetlbfs, which a machine keeps none of by itself.
struct HugePages {
    before: String,
}

impl HugePages {
    const COUNT: &str = "/proc/sys/vm/nr_hugepages";

    fn reserve() -> Result<Self> {
        let before = std::fs::read_to_string(Self::COUNT)?;
        let pages = Self { before };
        let count: u32 = pages.before.trim().parse()?;
        std::fs::write(Self::COUNT, (count + 2).to_string())?;
        Ok(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(Self::COUNT, &self.before) {
            eprintln!("the number of huge pages stays changed: {error}");
        }
    }
}

/// The fork is refused in these words, and the source runs on.
fn refused(what: &str, text: &str) -> Result<()> {
    let _pages = what.starts_with("huge_").then(HugePages::reserve).transpose()?;
    on_a_bench(|bench| refused_on(bench, what, text))
}

fn refused_on(bench: &Bench, what: &str, text: &str) -> Result<()> {
    let source = bench.place(&[])?;
    let pid = begin(&source, &[format!("{PROGRAMS}/refused"), what.to_owned()])?;
    match bench.zygote(&source, pid, &[bench.dir.path().join("layer")], None) {
        Ok(_) => bail!("it was forked"),
        Err(error) => ensure!(format!("{error:#}").contains(text), "it was not said why: {error:#}"),
    }
    if what == "traced_thread" {
        reap_traced(&source, pid)?;
    }
    let outcome = go_on(&source, pid)?;
    ensure!(outcome.printed == ["done"], "the source did not go on: {outcome:?}");
    source.sandbox.destroy()?;
    Ok(())
}

/// Lets the program end, and waits for its threads that this process traces: without that it never ends.
fn reap_traced(source: &Place, pid: i32) -> Result<()> {
    let tids = std::fs::read_dir(format!("/proc/{pid}/task"))?.map(|entry| entry.map(|entry| entry.file_name()));
    let tids: Vec<std::ffi::OsString> = tids.collect::<Result<_, _>>()?;
    source.touch("/tmp/go")?;
    let tids = tids.iter().filter_map(|tid| tid.to_str()?.parse().ok()).filter(|tid| *tid != pid);
    for tid in tids {
        while !matches!(sys::ptrace::wait(tid)?, sys::ptrace::Stop::Ended(_)) {}
    }
    Ok(())
}
