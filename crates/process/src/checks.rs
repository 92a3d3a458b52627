//! What makes a process as a whole impossible to fork, seen without stopping it.

use base::limits;

use crate::{
    error::Error,
    procfs::{self, Fields, Stat},
    refusal::Refusal,
};

/// Reasons against forking process `pid` as a whole.
pub(crate) fn process(pid: i32) -> Result<Vec<Refusal>, Error> {
    let status = Fields::read(format!("/proc/{pid}/status"))?;
    let mut found = Vec::new();
    let tracer = status.number("TracerPid", 10)?;
    if tracer != 0 {
        found.push(Refusal::Traced { tracer: tracer as i32 });
    }
    match Stat::read(&pid.to_string())?.state() {
        b'T' => found.push(Refusal::Stopped),
        b'Z' | b'X' => found.push(Refusal::MainThreadGone),
        _ => {}
    }
    let effective = status.number("CapEff", 16)? | status.number("CapPrm", 16)?;
    if effective != 0 || status.numbers("Uid", 10)?.contains(&0) {
        found.push(Refusal::Privileged { effective });
    }
    // The first is the sandbox's own, which copies get again.
    let filters = status.number("Seccomp_filters", 10).unwrap_or(0);
    if filters > 1 {
        found.push(Refusal::OwnSeccomp { filters: filters - 1 });
    }
    let level = status.numbers("NSpid", 10)?.len();
    if level > 2 {
        found.push(Refusal::NestedPidNamespace { level: level - 1 });
    }
    let tasks = procfs::numbers(&format!("/proc/{pid}/task"))?;
    if tasks.len() > limits::THREADS_MAX {
        found.push(Refusal::TooMany { what: "threads".into(), found: tasks.len(), max: limits::THREADS_MAX });
    }
    let children = children(pid, &tasks)?;
    if !children.is_empty() {
        found.push(Refusal::Children { pids: children.join(", ") });
    }
    if elf_class(pid) == Some(1) {
        found.push(Refusal::ThirtyTwoBit);
    }
    Ok(found)
}

/// Children of all threads, as `pid name`.
fn children(pid: i32, tasks: &[i32]) -> Result<Vec<String>, Error> {
    let mut found = Vec::new();
    for tid in tasks {
        // A thread may end between the two reads; it then has no children.
        let text = match procfs::read(&format!("/proc/{pid}/task/{tid}/children")) {
            Err(error) if procfs::is_gone(&error) => continue,
            text => text?,
        };
        for child in String::from_utf8_lossy(&text).split_ascii_whitespace() {
            let name = procfs::read(&format!("/proc/{child}/comm")).unwrap_or_default();
            found.push(format!("{child} {}", String::from_utf8_lossy(&name).trim_end()));
        }
    }
    Ok(found)
}

/// The class byte of the program's ELF header: 1 is 32-bit.
fn elf_class(pid: i32) -> Option<u8> {
    use std::io::Read;
    let mut header = [0; 5];
    std::fs::File::open(format!("/proc/{pid}/exe")).ok()?.read_exact(&mut header).ok()?;
    Some(header[4])
}
