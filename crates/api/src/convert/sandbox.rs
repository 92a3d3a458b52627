//! See [`super`].

use super::checkpoint::keep;
use crate::{
    ExecRequest, ExitStatus, ForkResponse, Interpreter, MachineIds, MemoryUse, PauseRequest, PauseResponse,
    PausedSandbox, ProcessInfo, Relative, ResumeRequest, RunRequest, RunResponse, Sandbox, SandboxDetail, SandboxState,
    TerminalSize,
};

impl From<ExitStatus> for model::ExitStatus {
    fn from(from: ExitStatus) -> Self {
        match from {
            ExitStatus::Code(it) => Self::Code(it),
            ExitStatus::Signal(it) => Self::Signal(it),
            ExitStatus::Unknown => Self::Unknown,
        }
    }
}

impl From<model::ExitStatus> for ExitStatus {
    fn from(from: model::ExitStatus) -> Self {
        match from {
            model::ExitStatus::Code(it) => Self::Code(it),
            model::ExitStatus::Signal(it) => Self::Signal(it),
            model::ExitStatus::Unknown => Self::Unknown,
        }
    }
}

impl From<model::SandboxState> for SandboxState {
    fn from(from: model::SandboxState) -> Self {
        match from {
            model::SandboxState::Running => Self::Running,
            model::SandboxState::Pausing => Self::Pausing,
            model::SandboxState::Paused => Self::Paused,
            model::SandboxState::Exited(it) => Self::Exited(it.into()),
            model::SandboxState::Lost => Self::Lost,
        }
    }
}

impl From<model::Sandbox> for Sandbox {
    fn from(
        model::Sandbox { id, template, parent, state, reason, created_ms, start_us, main_pid, volumes }: model::Sandbox,
    ) -> Self {
        Self {
            id,
            template,
            parent,
            state: state.into(),
            reason,
            created_ms,
            start_us,
            main_pid,
            volumes: volumes.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<model::Relative> for Relative {
    fn from(model::Relative { id, parent, template, state, created_ms, gone_ms }: model::Relative) -> Self {
        Self { id, parent, template, state: state.map(Into::into), created_ms, gone_ms }
    }
}

impl From<model::ProcessInfo> for ProcessInfo {
    fn from(
        model::ProcessInfo { pid, inner_pid, name, threads, rss_bytes, pss_bytes, own_bytes }: model::ProcessInfo,
    ) -> Self {
        Self { pid, inner_pid, name, threads, rss_bytes, pss_bytes, own_bytes }
    }
}

impl From<model::MemoryUse> for MemoryUse {
    fn from(model::MemoryUse { limit_bytes, peak_bytes, killed }: model::MemoryUse) -> Self {
        Self { limit_bytes, peak_bytes, killed }
    }
}

impl From<model::MachineIds> for MachineIds {
    fn from(model::MachineIds { machine_id, boot_id, generation }: model::MachineIds) -> Self {
        Self { machine_id, boot_id, generation }
    }
}

impl From<model::SandboxDetail> for SandboxDetail {
    fn from(
        model::SandboxDetail {
            sandbox,
            uptime_ms,
            processes,
            rss_bytes,
            pss_bytes,
            own_bytes,
            memory,
            cgroup,
            layers,
            directory,
            machine,
            on_fork,
        }: model::SandboxDetail,
    ) -> Self {
        Self {
            sandbox: sandbox.into(),
            uptime_ms,
            processes: processes.into_iter().map(Into::into).collect(),
            rss_bytes,
            pss_bytes,
            own_bytes,
            memory: memory.map(Into::into),
            cgroup,
            layers,
            directory,
            machine: machine.map(Into::into),
            on_fork,
        }
    }
}

impl From<Interpreter> for model::Interpreter {
    fn from(from: Interpreter) -> Self {
        match from {
            Interpreter::InProcess => Self::InProcess,
            Interpreter::Stepping => Self::Stepping,
        }
    }
}

impl From<RunRequest> for model::RunSpec {
    fn from(RunRequest { count, interpreter, volumes, network }: RunRequest) -> Self {
        let volumes = volumes.into_iter().map(Into::into).collect();
        let mount_points = model::MountPoints::Declared;
        Self {
            count,
            interpreter: interpreter.into(),
            volumes,
            mount_points,
            reservation: None,
            network: network.into(),
        }
    }
}

impl From<model::Started> for RunResponse {
    fn from(model::Started { sandboxes, total_us, notices, failures }: model::Started) -> Self {
        Self {
            sandboxes: sandboxes.into_iter().map(Into::into).collect(),
            total_us,
            notices,
            failures: failures.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<model::Forks> for ForkResponse {
    fn from(model::Forks { sandboxes, pause_us, capture_us, build_us, total_us, failures }: model::Forks) -> Self {
        Self {
            sandboxes: sandboxes.into_iter().map(Into::into).collect(),
            pause_us,
            capture_us,
            build_us,
            total_us,
            failures: failures.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<model::PauseReport> for PauseResponse {
    fn from(
        model::PauseReport { sandbox, memory_bytes, stored_memory_bytes, layer_bytes, total_us }: model::PauseReport,
    ) -> Self {
        Self { sandbox: sandbox.into(), memory_bytes, stored_memory_bytes, layer_bytes, total_us }
    }
}

impl From<model::PausedSandbox> for PausedSandbox {
    fn from(
        model::PausedSandbox { id, template, parent, created_ms, paused_ms, holder }: model::PausedSandbox,
    ) -> Self {
        Self { id, template, parent, created_ms, paused_ms, holder }
    }
}

impl From<TerminalSize> for model::TerminalSize {
    fn from(TerminalSize { rows, columns }: TerminalSize) -> Self {
        Self { rows, columns }
    }
}

impl From<PauseRequest> for model::Keep {
    fn from(PauseRequest { memory }: PauseRequest) -> Self {
        keep(memory)
    }
}

impl From<ResumeRequest> for model::ResumeOptions {
    fn from(ResumeRequest { force, memory }: ResumeRequest) -> Self {
        let takeover = if force { model::Takeover::Forced } else { model::Takeover::Refused };
        Self { takeover, keep: keep(memory) }
    }
}

impl From<ExecRequest> for model::CommandSpec {
    fn from(ExecRequest { command, env, cwd, terminal, timeout_ms, notices: _, tag }: ExecRequest) -> Self {
        let terminal = terminal.map(Into::into);
        Self { command, env, cwd, terminal, timeout_ms, user: None, tag, stdin: true }
    }
}
