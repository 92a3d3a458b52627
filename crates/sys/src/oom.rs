//! Whom the kernel kills when memory runs out: proc_pid_oom_score_adj(5). Scores are from -1000 (never) to 1000 (first), in thousandths of all
//! memory. Children begin with their parent's.

use std::{fs, io};

const OWN: &str = "/proc/self/oom_score_adj";

/// Gives this process a score. A lower one than it has needs `CAP_SYS_RESOURCE` (EACCES). Whoever has that also makes this the lowest that the process
/// can go back to without it.
pub fn set(score: i16) -> io::Result<()> {
    fs::write(OWN, score.to_string())
}

/// As [`set`], if the process has a lower one.
pub fn raise_to(score: i16) -> io::Result<()> {
    if own()? < score { set(score) } else { Ok(()) }
}

/// As [`raise_to`], for another process that has the score of this one.
pub fn raise_child_to(pid: i32, score: i16) -> io::Result<()> {
    if own()? < score { fs::write(format!("/proc/{pid}/oom_score_adj"), score.to_string()) } else { Ok(()) }
}

/// As [`set`], if the process has a higher one.
pub fn lower_to(score: i16) -> io::Result<()> {
    if own()? > score { set(score) } else { Ok(()) }
}

fn own() -> io::Result<i16> {
    fs::read_to_string(OWN)?.trim().parse().map_err(io::Error::other)
}
