//! `pando logs`.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use anyhow::Result;
use base::{id::SandboxId, text};
use control::{Clock, SystemClock};

use crate::{
    sandbox_id::{Among, SandboxName},
    target::Target,
};

/// Show the standard output and standard error of a sandbox's program. Escape sequences are passed on, as with `exec`: add `| cat -v` if you
/// do not trust the program.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Identifier of the sandbox, its beginning, or its name.
    #[arg(value_name = "SANDBOX")]
    id: SandboxName,
    /// Follow the output until the program ends.
    #[arg(short, long)]
    follow: bool,
    /// Begin with the last N lines of what there is.
    #[arg(short = 'n', long, value_name = "N")]
    tail: Option<usize>,
    /// Before each line, print when it was read. With --follow that is when the program has printed it. Lines that were
    /// there before are marked by `-`: nothing keeps their times.
    #[arg(short, long)]
    timestamps: bool,
}

pub(crate) async fn run(args: Args, target: &dyn Target) -> Result<ExitCode> {
    let id = args.id.find(Among::Node, target).await?;
    let (skipped, there) = match (args.tail, args.timestamps) {
        (None, false) => (0, 0),
        (tail, _) => look(&id, tail, target).await?,
    };
    let mut printed = target.logs(&id, args.follow).await?;
    let mut lines = Lines { skipped, old: there.saturating_sub(skipped), stamped: args.timestamps, begins: true };
    let mut stdout = io::stdout();
    while let Some(bytes) = printed.next().await? {
        // A reader such as `head` that has enough ends it without a complaint.
        if lines.write(&bytes, &mut stdout).and_then(|()| stdout.flush()).is_err() {
            return Ok(ExitCode::SUCCESS);
        }
    }
    // Nothing in its output says so.
    if let Some(reason) = target.reason(&id).await? {
        errln!("pando: the program ended: {}", text::one_line(&reason));
    }
    Ok(ExitCode::SUCCESS)
}

/// How many bytes are before the last lines, and how many there are.
async fn look(id: &SandboxId, tail: Option<usize>, target: &dyn Target) -> Result<(usize, usize)> {
    let mut all = Vec::new();
    let mut printed = target.logs(id, false).await?;
    while let Some(bytes) = printed.next().await? {
        all.extend_from_slice(&bytes);
    }
    Ok((tail.map_or(0, |tail| before_last(&all, tail)), all.len()))
}

/// Where the last `count` lines begin. A line may lack its end.
fn before_last(bytes: &[u8], count: usize) -> usize {
    let whole = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    if count == 0 {
        return bytes.len();
    }
    let ends = whole.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    ends.map(|(at, _)| at + 1).nth(count - 1).unwrap_or(0)
}

/// Output on its way: what is left out, and what begins each line.
struct Lines {
    /// Bytes to leave out.
    skipped: usize,
    /// Bytes after them whose time nothing knows.
    old: usize,
    stamped: bool,
    /// The next byte begins a line.
    begins: bool,
}

impl Lines {
    fn write(&mut self, bytes: &[u8], out: &mut impl Write) -> io::Result<()> {
        let skipped = self.skipped.min(bytes.len());
        self.skipped -= skipped;
        let bytes = &bytes[skipped..];
        if !self.stamped {
            return out.write_all(bytes);
        }
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.begins && self.old > 0 {
                out.write_all(b"- ")?;
            } else if self.begins {
                write!(out, "{} ", SystemClock.now())?;
            }
            out.write_all(line)?;
            self.old = self.old.saturating_sub(line.len());
            self.begins = line.ends_with(b"\n");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_found_with_and_without_an_end() {
        let last = |text: &str, count| text[before_last(text.as_bytes(), count)..].to_owned();
        assert_eq!(last("a\nb\nc\n", 2), "b\nc\n");
        assert_eq!(last("a\nb\nc", 2), "b\nc");
        assert_eq!(last("a\n", 5), "a\n");
        assert_eq!((last("a\nb\n", 0), last("", 3)), (String::new(), String::new()));
    }

    #[test]
    fn only_new_lines_have_a_time() {
        let mut lines = Lines { skipped: 2, old: 5, stamped: true, begins: true };
        let mut out = Vec::new();
        for part in ["x", "\na", "b\nc\nnew\nne", "wer"] {
            lines.write(part.as_bytes(), &mut out).unwrap();
        }
        let text = String::from_utf8(out).unwrap();
        let shown: Vec<&str> = text.lines().collect();
        assert_eq!(shown[..2], ["- ab", "- c"], "{text}");
        assert!(shown[2].ends_with("Z new") && shown[3].ends_with("Z newer"), "{text}");
    }
}
