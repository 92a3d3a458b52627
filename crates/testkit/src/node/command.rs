//! A `pando` command as a user runs it.

use std::{
    fmt,
    fs::File,
    io::{Read, Seek, Write},
    os::unix::fs::FileExt,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// No command of a test may take longer.
const COMMAND_MAX: Duration = Duration::from_secs(120);

/// A command that runs.
pub struct Running {
    child: Child,
    began: Instant,
    // Files, not pipes: the command never waits for a reader.
    stdout: File,
    stderr: File,
    what: String,
}

/// How a command ended.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Its exit code; 128 and the signal's number if one killed it.
    pub code: i32,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// How long it ran.
    pub took: Duration,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit code {} after {:?}\n{}{}", self.code, self.took, self.stdout, self.stderr)
    }
}

impl Running {
    pub(super) fn begin(mut command: Command, input: &[u8]) -> Result<Self> {
        let (stdout, stderr, mut stdin) = (tempfile::tempfile()?, tempfile::tempfile()?, tempfile::tempfile()?);
        stdin.write_all(input)?;
        stdin.rewind()?;
        let what = format!("{command:?}");
        let child = command.stdin(stdin).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?).spawn()?;
        Ok(Self { child, began: Instant::now(), stdout, stderr, what })
    }

    pub(super) fn begin_held(mut command: Command) -> Result<Self> {
        let (stdout, stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let what = format!("{command:?}");
        let child = command.stdin(Stdio::piped()).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?).spawn()?;
        Ok(Self { child, began: Instant::now(), stdout, stderr, what })
    }

    /// The first whole line of its output, waited for.
    pub fn first_line(&self) -> Result<String> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let mut bytes = vec![0; 4096];
            let length = self.stdout.read_at(&mut bytes, 0)?;
            let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
            if let Some((line, _)) = text.split_once('\n') {
                return Ok(line.to_owned());
            }
            if Instant::now() > deadline {
                bail!("{} prints nothing", self.what);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends its input and waits for its end.
    pub fn release(mut self) -> Result<Answer> {
        drop(self.child.stdin.take());
        self.end()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Waits for its end.
    pub fn end(mut self) -> Result<Answer> {
        use std::os::unix::process::ExitStatusExt;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if self.began.elapsed() > COMMAND_MAX {
                let _ = self.child.kill();
                let _ = self.child.wait();
                bail!("{} does not end; it printed {:?}", self.what, text(&mut self.stderr)?);
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let took = self.began.elapsed();
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        Ok(Answer { code, stdout: text(&mut self.stdout)?, stderr: text(&mut self.stderr)?, took })
    }
}

fn text(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
