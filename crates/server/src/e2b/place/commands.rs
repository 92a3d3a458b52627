//! Commands and terminals.

use envd::{Code, Command, End, Event, Failure, Followed, Outcome, Selector, Size, Start};
use model::{CommandEnd, CommandEvent, CommandSpec, EndReason, ExitStatus, TerminalSize};
use node::CommandStream;

use super::{Inside, failure};

impl Inside {
    pub(super) async fn start_command(&self, start: Start) -> Outcome<Followed> {
        let home = envd::Place::home(self, start.user.as_deref()).await?;
        let cwd = start.cwd.as_deref().unwrap_or_default();
        let spec = CommandSpec {
            command: start.argv,
            env: self.sandbox.env_vars.clone().into_iter().chain(start.env).collect(),
            cwd: Some(envd::resolve(cwd, &home)?),
            terminal: start.terminal.map(size),
            timeout_ms: start.timeout.map(|timeout| timeout.as_millis() as u64),
            user: start.user,
            tag: start.tag,
            stdin: start.input,
        };
        let begun = self.node.start_command(&self.sandbox.id, spec).await;
        let (command, stream) = begun.map_err(|error| failure(&error))?;
        followed(command.pid, stream)
    }

    pub(super) async fn list_commands(&self) -> Outcome<Vec<Command>> {
        let commands = self.node.commands(&self.sandbox.id).await.map_err(|error| failure(&error))?;
        Ok(commands.into_iter().filter(|command| command.end.is_none()).map(command).collect())
    }

    pub(super) async fn follow_command(&self, wanted: Selector) -> Outcome<Followed> {
        let wanted = selector(wanted);
        let mut stream = self.node.attach(&self.sandbox.id, &wanted).await.map_err(|error| failure(&error))?;
        match stream.next().await {
            Some(CommandEvent::Started(pid)) => followed(pid, stream),
            Some(_) | None => Err(Failure::new(Code::Unavailable, "the command can no longer be followed")),
        }
    }
}

fn followed(pid: i32, stream: CommandStream) -> Outcome<Followed> {
    let pid = u32::try_from(pid).map_err(|_| Failure::new(Code::Internal, "the command has no pid"))?;
    let events = futures::stream::unfold(stream, async |mut stream| {
        loop {
            let event = match stream.next().await? {
                CommandEvent::Started(_) => continue,
                CommandEvent::Stdout(bytes) => Event::Stdout(bytes.into()),
                CommandEvent::Stderr(bytes) => Event::Stderr(bytes.into()),
                CommandEvent::Terminal(bytes) => Event::Terminal(bytes.into()),
                CommandEvent::Missed(bytes) => Event::Missed(bytes),
                CommandEvent::Ended(end) => ended(end),
            };
            return Some((event, stream));
        }
    });
    Ok(Followed { pid, events: Box::pin(events) })
}

fn ended(CommandEnd { status, reason }: CommandEnd) -> Event {
    match (status, reason) {
        // Clients read it as the deadline that they have set.
        (_, Some(EndReason::TimedOut)) => {
            Event::Broken(Failure::new(Code::DeadlineExceeded, "the command was ended when its time was up"))
        }
        (ExitStatus::Code(code), _) => Event::Ended(End::Code(code)),
        (ExitStatus::Signal(signal), _) => Event::Ended(End::Signal(signal)),
        (ExitStatus::Unknown, _) => Event::Ended(End::Unknown),
    }
}

fn command(command: model::Command) -> Command {
    Command {
        pid: u32::try_from(command.pid).unwrap_or_default(),
        tag: command.tag,
        argv: command.command,
        env: command.env,
        cwd: Some(command.cwd),
    }
}

pub(super) fn selector(selector: Selector) -> model::Selector {
    match selector {
        // No command has a pid that is no `pid_t`.
        Selector::Pid(pid) => model::Selector::Pid(i32::try_from(pid).unwrap_or_default()),
        Selector::Tag(tag) => model::Selector::Tag(tag),
    }
}

pub(super) fn size(Size { rows, columns }: Size) -> TerminalSize {
    TerminalSize { rows, columns }
}
