//! See [`super`].

use crate::{Command, CommandRequest, CommandSignal, EndReason};

impl From<CommandRequest> for model::CommandSpec {
    fn from(from: CommandRequest) -> Self {
        let CommandRequest { command, env, cwd, terminal, timeout_ms, user, tag, stdin } = from;
        Self { command, env, cwd, terminal: terminal.map(Into::into), timeout_ms, user, tag, stdin }
    }
}

impl From<model::Command> for Command {
    fn from(from: model::Command) -> Self {
        let model::Command { pid, command, env, cwd, tag, user, terminal, stdin, started_ms, end } = from;
        let status = end.map(|end| end.status.into());
        let reason = end.and_then(|end| end.reason).map(Into::into);
        Self { pid, command, env, cwd, tag, user, terminal, stdin, started_ms, status, reason }
    }
}

impl From<model::EndReason> for EndReason {
    fn from(from: model::EndReason) -> Self {
        match from {
            model::EndReason::TimedOut => Self::TimedOut,
            model::EndReason::ClientLeft => Self::ClientLeft,
            model::EndReason::Lost => Self::Lost,
        }
    }
}

impl From<CommandSignal> for model::CommandSignal {
    fn from(from: CommandSignal) -> Self {
        match from {
            CommandSignal::Terminate => Self::Terminate,
            CommandSignal::Kill => Self::Kill,
        }
    }
}
