//! `pando exec`.

pub(crate) mod kept;
pub(crate) mod stdin;
mod terminal;

use std::{
    io::{self, IsTerminal, Write},
    os::fd::AsFd,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use api::{
    ExecRequest, ExitStatus,
    frame::{Decoder, Frame},
};
use base::{id::SandboxId, text};
use client::{Client, Selector};
use rustix::process::Signal;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, unix::AsyncFd},
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

use crate::{
    exit::Failure,
    output,
    sandbox_id::{Among, SandboxName},
    target::Target,
};
use stdin::StandardInput;
use terminal::RawTerminal;

/// Bytes taken from standard input at once.
const CHUNK_BYTES: usize = 16 << 10;

/// Of the tag by which a command with a terminal is found again after a pause.
const TAG_DIGITS: usize = 8;

/// Frames that may wait to be sent.
const FRAMES_WAITING_MAX: usize = 16;

const EXAMPLES: &str = "\
Examples:
    pando exec ID -- curl -s http://127.0.0.1:8080/health
    pando exec -t ID -- sh
    pando exec --timeout 5m -w /workspace -e CI=1 ID -- make test
    PID=$(pando exec -d ID -- ./server); pando attach ID $PID";

/// Run a command in a sandbox.
///
/// Exits as the command does: with its code, or with 128 plus the number of the signal that killed it. 127: the sandbox
/// has no such program. 126: the program is not executable.
///
/// The command and everything that it has started are ended if this client is interrupted, if no process reads the
/// output any more (exit code 141), or if --timeout is over (124). A node gives them SIGTERM, and SIGKILL after 2 s, also
/// if this client is killed. A server gives them SIGKILL. If this client is killed, a server lets them run. If the
/// command ends by itself, processes that it left behind run on.
///
/// With -t this client waits out a pause of the sandbox. From then on the command runs on when this client ends.
///
/// With -d the command runs on its own. `pando attach` follows it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Identifier of the sandbox, its beginning, or its name.
    #[arg(value_name = "SANDBOX")]
    id: SandboxName,
    /// With -d, let the command wait for input, which `pando attach -i` sends. Without -d input is sent unless -n is given.
    #[arg(short, long)]
    interactive: bool,
    /// Send the command no input: for loops of a shell that read their own.
    #[arg(short, long, conflicts_with_all = ["interactive", "tty"])]
    no_input: bool,
    /// Give the command a terminal, for shells and editors.
    #[arg(short, long)]
    tty: bool,
    /// Print the process id of the command inside the sandbox, and leave.
    #[arg(short, long)]
    detach: bool,
    /// The user of the sandbox whose rights it has. Default: `user`.
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
    /// Environment variable, on top of the template's; may be repeated.
    #[arg(short, long, value_name = "K=V", value_parser = super::template::parse_variable)]
    env: Vec<(String, String)>,
    /// Working directory inside the sandbox. Default: on a node that of the template, from a server the user's home.
    #[arg(short = 'w', long = "workdir", visible_alias = "cwd", value_name = "DIR")]
    cwd: Option<String>,
    /// End the command and everything that it has started after this time: 500ms, 30s, 2m; 30 days at most. The exit code
    /// is then 124.
    #[arg(long, value_name = "TIME", value_parser = super::template::parse_time)]
    timeout: Option<Duration>,
    /// With -d, a name for the command, for `pando attach`.
    #[arg(long, value_name = "TAG", requires = "detach")]
    tag: Option<String>,
    /// With -d, print JSON.
    #[arg(long, requires = "detach")]
    json: bool,
    /// Command and arguments, after `--`.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

pub(crate) async fn run(args: Args, target: &dyn Target) -> Result<ExitCode> {
    let id = args.id.find(Among::Node, target).await?;
    match target.as_node() {
        // The node itself ends the command when this client ends, however it ends.
        Some(node) if !args.detach && args.user.is_none() => in_foreground(args, &id, target, node).await,
        Some(_) | None => kept::run(args, &id, target).await,
    }
}

async fn in_foreground(args: Args, id: &SandboxId, target: &dyn Target, client: &Client) -> Result<ExitCode> {
    // Before the command is there: an interrupt ends it from its first moment on.
    let mut interrupts = super::interrupts()?;
    let terminal = if args.tty { Some(terminal::size()) } else { None };
    let timeout_ms = args.timeout.map(|timeout| timeout.as_millis() as u64);
    let (command, env, cwd) = (args.command, args.env, args.cwd);
    let tag = args.tty.then(|| format!("exec-{}", &base::id::random_uuid()[..TAG_DIGITS]));
    let request = ExecRequest { command, env, cwd, terminal, timeout_ms, notices: true, tag };
    let connection = client.exec(id, &request).await?;
    // Only now: a refusal is better read on a terminal that works.
    let raw = if args.tty && std::io::stdin().is_terminal() { Some(RawTerminal::enter()?) } else { None };
    let (from_node, to_node) = tokio::io::split(connection);
    let (frames, outgoing) = mpsc::channel(FRAMES_WAITING_MAX);
    let sending = tokio::spawn(send(to_node, outgoing));
    let stdin = StandardInput::default();
    let reading = tokio::spawn(read_stdin(stdin.clone(), frames.clone(), args.no_input));
    let resizing = args.tty.then(|| tokio::spawn(follow_size(frames)));
    let (status, is_lost) = tokio::select! {
        status = receive(from_node) => {
            let is_lost = status.as_ref().map_or(true, |status| *status == ExitStatus::Unknown);
            (status, is_lost)
        }
        () = unread() => (Ok(UNREAD), false),
        // A raw terminal sends Ctrl-C to the command; this is for pipes. Hanging up ends the command.
        _ = interrupts.recv() => {
            (Err(Failure::Interrupted("interrupted: the command is ended".to_owned()).into()), false)
        }
    };
    drop(raw);
    sending.abort();
    reading.abort();
    if let Some(resizing) = resizing {
        resizing.abort();
    }
    if let Some(tag) = request.tag.filter(|_| is_lost) {
        let of = kept::Sandbox { target, id };
        if let Some(ended) = kept::Following::after_pause(of, Selector::Tag(tag), interrupts, stdin).await? {
            return Ok(ended);
        }
    }
    Ok(exit_code(status?))
}

/// What becomes of a command in a pipe whose reader has gone.
const UNREAD: ExitStatus = ExitStatus::Signal(Signal::PIPE.as_raw());

/// Resolves when standard output is a pipe or a socket and its reader has gone: a command that is silent is not written for, either.
async fn unread() {
    let watched = std::io::stdout().as_fd().try_clone_to_owned();
    // A file cannot be watched, and has no reader that could go. Deprecated because a type of the caller's could answer with another descriptor
    // each time. `OwnedFd` cannot, and the successor is an unsafe function, which this crate has none of.
    #[allow(deprecated)]
    let watched = watched.and_then(|stdout| AsyncFd::with_interest(stdout, Interest::ERROR));
    match watched {
        Ok(stdout) if stdout.ready(Interest::ERROR).await.is_ok() => {}
        Ok(_) | Err(_) => std::future::pending().await,
    }
}

fn exit_code(status: ExitStatus) -> ExitCode {
    match status {
        ExitStatus::Code(code) => ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1)),
        ExitStatus::Signal(signal) => ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)),
        ExitStatus::Unknown => {
            errln!(
                "pando: the command's exit status is lost: its sandbox was paused, or a helper process of the node died"
            );
            ExitCode::FAILURE
        }
    }
}

async fn receive(mut from_node: impl AsyncRead + Unpin) -> Result<ExitStatus> {
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let length = from_node.read(&mut buffer).await.context("the connection to the node broke")?;
        if length == 0 {
            bail!("the node hung up before the command had ended");
        }
        decoder.push(&buffer[..length]);
        while let Some(frame) = decoder.next_frame().context("the node's answer is not understood")? {
            match frame {
                Frame::Stdout(bytes) => match show(std::io::stdout(), &bytes) {
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(UNREAD),
                    // A full disk does not stop the command: it may be there for more than its output.
                    shown => output::note_failure(shown),
                },
                Frame::Stderr(bytes) => match show(std::io::stderr(), &bytes) {
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(UNREAD),
                    _ => {}
                },
                Frame::Notice(text) => drop(writeln!(std::io::stderr(), "pando: {}", text::one_line(&text))),
                Frame::Exit(status) => return Ok(status),
                Frame::Stdin(_) | Frame::StdinEnd | Frame::Resize(_) => bail!("the node sent a frame of a client"),
            }
        }
    }
}

fn show(mut stream: impl Write, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).and_then(|()| stream.flush())
}

async fn send(mut to_node: impl AsyncWrite + Unpin, mut frames: mpsc::Receiver<Frame>) {
    let mut bytes = Vec::new();
    while let Some(frame) = frames.recv().await {
        bytes.clear();
        frame.encode(&mut bytes);
        if to_node.write_all(&bytes).await.is_err() || to_node.flush().await.is_err() {
            return;
        }
    }
    // Kept open: the node takes the end of the connection for the client's going away.
    std::future::pending::<()>().await;
}

/// Sends the standard input and its end, or the end only.
async fn read_stdin(stdin: StandardInput, frames: mpsc::Sender<Frame>, only_its_end: bool) {
    if only_its_end {
        // A command that has ended needs none.
        let _ = frames.send(Frame::StdinEnd).await;
        return;
    }
    let mut chunks = stdin.chunks().await;
    while let Some(bytes) = chunks.next().await {
        if frames.send(Frame::Stdin(bytes.to_vec())).await.is_err() {
            return;
        }
        chunks.sent();
    }
    let _ = frames.send(Frame::StdinEnd).await;
}

async fn follow_size(frames: mpsc::Sender<Frame>) {
    let Ok(mut changes) = signal(SignalKind::window_change()) else { return };
    while changes.recv().await.is_some() {
        if frames.send(Frame::Resize(terminal::size())).await.is_err() {
            return;
        }
    }
}
