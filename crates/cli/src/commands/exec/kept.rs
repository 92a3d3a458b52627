//! Commands that outlive their clients: `exec` by a server, `exec -d`, and `attach`.

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result};
use api::{ExitStatus, SandboxState, TIMED_OUT};
use base::id::SandboxId;
use client::{Event, Events, Inside, Selector, Start};
use serde::Serialize;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};

use super::{Args, UNREAD, exit_code, show, stdin::StandardInput, terminal, terminal::RawTerminal, unread};
use crate::{exit::Failure, output, sandbox_id::Among, target::Target};

/// Until a paused sandbox is looked at again.
const LOOK: Duration = Duration::from_millis(500);

/// Keys that leave a terminal: Ctrl-P, Ctrl-Q.
const LEAVE_KEYS: [u8; 2] = [0x10, 0x11];

/// A command that was started, as it is printed.
#[derive(Debug, Serialize)]
struct Started<'a> {
    sandbox: &'a SandboxId,
    pid: u32,
    tag: Option<&'a str>,
}

pub(super) async fn run(args: Args, id: &SandboxId, target: &dyn Target) -> Result<ExitCode> {
    let inside = target.inside(id).await?;
    let start = Start {
        command: args.command,
        env: args.env,
        cwd: args.cwd,
        user: args.user,
        terminal: args.tty.then(terminal::size),
        stdin: !args.tty && !args.no_input && (!args.detach || args.interactive),
        timeout: args.timeout,
        tag: args.tag,
    };
    // Before the command is there: an interrupt ends it from its first moment on.
    let interrupts = super::super::interrupts()?;
    let (pid, events) = inside.start(&start).await?;
    if args.detach {
        let tag = start.tag.as_deref();
        if args.json {
            output::json(&Started { sandbox: id, pid, tag })?;
        } else {
            outln!("{pid}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let input = match (args.tty, args.no_input) {
        (true, _) => Input::Terminal,
        (false, true) => Input::Nothing,
        (false, false) => Input::Bytes,
    };
    let of = Sandbox { target, id };
    let stdin = StandardInput::default();
    Following { of, inside, which: Selector::Pid(pid), events, interrupts, stdin }.run(input, Leave::Kill).await
}

/// What of this client's input goes to the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    Nothing,
    /// Standard input, and its end.
    Bytes,
    /// Every key.
    Terminal,
}

/// What becomes of the command when this client leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leave {
    Kill,
    RunOn,
}

/// How following ends.
enum End {
    Ended(ExitStatus),
    /// No process reads the output.
    Unread,
    /// By Ctrl-C, or by the keys that leave.
    Left,
}

/// The sandbox of a command.
pub(crate) struct Sandbox<'a> {
    pub(crate) target: &'a dyn Target,
    pub(crate) id: &'a SandboxId,
}

impl Sandbox<'_> {
    async fn state(&self) -> Result<Option<SandboxState>> {
        let found = self.target.list(Among::Store).await?.into_iter().find(|shown| shown.id == *self.id);
        Ok(found.map(|shown| shown.state))
    }

    /// If it is paused, waits until it is not any more. False if it was not.
    async fn was_paused(&self) -> Result<bool> {
        let mut was_paused = false;
        while let Some(SandboxState::Paused | SandboxState::Pausing) = self.state().await? {
            if !was_paused {
                errln!(
                    "pando: the sandbox was paused; the command is followed again when it is resumed (Ctrl-C leaves)"
                );
            }
            was_paused = true;
            tokio::time::sleep(LOOK).await;
        }
        Ok(was_paused)
    }
}

/// A command that is followed.
pub(crate) struct Following<'a> {
    pub(crate) of: Sandbox<'a>,
    pub(crate) inside: Inside,
    pub(crate) which: Selector,
    pub(crate) events: Events,
    pub(crate) interrupts: Signal,
    pub(crate) stdin: StandardInput,
}

impl<'a> Following<'a> {
    /// If the sandbox was paused, follows a command with a terminal again that this client began. It goes on whether or not a client is there.
    pub(super) async fn after_pause(
        of: Sandbox<'a>,
        which: Selector,
        mut interrupts: Signal,
        stdin: StandardInput,
    ) -> Result<Option<ExitCode>> {
        let resumed = tokio::select! {
            // The caller says how the command was lost, which is more than that the node does not answer.
            resumed = of.was_paused() => resumed.unwrap_or(false),
            _ = interrupts.recv() => return Ok(Some(left())),
        };
        if !resumed {
            return Ok(None);
        }
        let inside = of.target.inside(of.id).await?;
        let events = inside.follow(&which).await?;
        let following = Self { of, inside, which, events, interrupts, stdin };
        following.run(Input::Terminal, Leave::RunOn).await.map(Some)
    }

    /// Shows what the command prints until it ends, and sends it input. A pause is waited out: a resume shows again the
    /// output that is kept.
    pub(crate) async fn run(self, input: Input, leave: Leave) -> Result<ExitCode> {
        let Self { of, mut inside, which, mut events, mut interrupts, stdin } = self;
        let mut leave = leave;
        loop {
            let ended = follow(&inside, &which, &mut events, &mut interrupts, (input, &stdin, leave)).await;
            if is_lost(&ended) {
                let resumed = tokio::select! {
                    resumed = of.was_paused() => resumed?,
                    _ = interrupts.recv() => return finish(End::Left, &inside, &which, Leave::RunOn).await,
                };
                if resumed {
                    // It goes on whether or not a client is there.
                    leave = Leave::RunOn;
                    inside = of.target.inside(of.id).await?;
                    events = inside.follow(&which).await?;
                    continue;
                }
            }
            let ended = ended.inspect_err(|_| {
                errln!("pando: the command may run on: `pando attach` follows it again");
            })?;
            return finish(ended, &inside, &which, leave).await;
        }
    }
}

/// Whether nothing is known of the command any more.
fn is_lost(ended: &Result<End>) -> bool {
    match ended {
        Ok(End::Ended(status)) => *status == ExitStatus::Unknown,
        Ok(End::Unread | End::Left) => false,
        Err(_) => true,
    }
}

async fn follow(
    inside: &Inside,
    which: &Selector,
    events: &mut Events,
    interrupts: &mut Signal,
    (input, stdin, leave): (Input, &StandardInput, Leave),
) -> Result<End> {
    // Only now: a refusal is better read on a terminal that works.
    let is_terminal = input == Input::Terminal;
    let raw = if is_terminal && io::stdin().is_terminal() { Some(RawTerminal::enter()?) } else { None };
    let (left, mut leaves) = mpsc::channel(1);
    let feeding = (input != Input::Nothing).then(|| {
        let keys = (leave == Leave::RunOn && raw.is_some()).then_some(left);
        tokio::spawn(feed(inside.clone(), which.clone(), stdin.clone(), is_terminal, keys))
    });
    let resizing = is_terminal.then(|| tokio::spawn(follow_size(inside.clone(), which.clone(), leave)));
    let ended = tokio::select! {
        ended = receive(events) => ended,
        () = unread() => Ok(End::Unread),
        _ = interrupts.recv() => Ok(End::Left),
        Some(()) = leaves.recv() => Ok(End::Left),
    };
    drop(raw);
    for task in feeding.into_iter().chain(resizing) {
        task.abort();
    }
    ended
}

fn left() -> ExitCode {
    errln!("pando: the command runs on; `pando attach` follows it again");
    ExitCode::SUCCESS
}

async fn finish(ended: End, inside: &Inside, which: &Selector, leave: Leave) -> Result<ExitCode> {
    let status = match ended {
        End::Ended(status) => return Ok(exit_code(status)),
        End::Unread => Ok(exit_code(UNREAD)),
        End::Left if leave == Leave::Kill => Err(Failure::Interrupted("interrupted: the command is ended".to_owned())),
        End::Left => return Ok(left()),
    };
    if leave == Leave::Kill {
        match inside.kill(which).await {
            // It was faster.
            Err(error) if error.is_not_found() => {}
            killed => killed.context("the command cannot be ended: it may run on")?,
        }
    }
    Ok(status?)
}

async fn receive(events: &mut Events) -> Result<End> {
    loop {
        let shown = match events.next().await {
            Ok(Some(Event::Started(_))) => continue,
            Ok(Some(Event::Stdout(bytes) | Event::Terminal(bytes))) => show(io::stdout(), &bytes),
            Ok(Some(Event::Stderr(bytes))) => match show(io::stderr(), &bytes) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(End::Unread),
                _ => continue,
            },
            Ok(Some(Event::Ended(status))) => return Ok(End::Ended(status)),
            Ok(None) => return Err(client::Error::HungUp.into()),
            Err(client::Error::TimedOut(message)) => {
                errln!("pando: {message}");
                return Ok(End::Ended(ExitStatus::Code(TIMED_OUT)));
            }
            Err(error) => return Err(error.into()),
        };
        match shown {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(End::Unread),
            // A full disk does not stop the command: it may be there for more than its output.
            shown => output::note_failure(shown),
        }
    }
}

/// Sends input until its end, or until the command takes no more.
async fn feed(
    inside: Inside,
    which: Selector,
    stdin: StandardInput,
    is_terminal: bool,
    leave: Option<mpsc::Sender<()>>,
) {
    let Ok(mut inputs) = inside.inputs(&which, is_terminal) else { return };
    let mut chunks = stdin.chunks().await;
    let mut last = None;
    while let Some(keys) = chunks.next().await {
        if let Some(leave) = &leave
            && (keys.windows(2).any(|two| two == LEAVE_KEYS) || (last, keys[0]) == (Some(LEAVE_KEYS[0]), LEAVE_KEYS[1]))
        {
            let _ = leave.send(()).await;
            return;
        }
        last = keys.last().copied();
        if !inputs.send(keys).await {
            return;
        }
        chunks.sent();
    }
    // A terminal has no end of input.
    if inputs.finish().await.is_ok() && !is_terminal {
        let _ = inside.close_input(&which).await;
    }
}

async fn follow_size(inside: Inside, which: Selector, leave: Leave) {
    let Ok(mut changes) = signal(SignalKind::window_change()) else { return };
    // A command of this client has begun with it.
    let mut known = leave == Leave::Kill;
    while known || inside.resize(&which, terminal::size()).await.is_ok() {
        known = false;
        if changes.recv().await.is_none() {
            return;
        }
    }
}
