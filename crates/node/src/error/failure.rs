//! What an error is to a client: its kind, and what the client should do next. Each table is exhaustive on purpose: a new error has to be placed
//! in all of them.

use std::sync::Arc;

use model::{Failure, FailureKind, SandboxState};
use store::keys::KeyError;

use super::{Error, Forked, chain};

fn kind(error: &Error) -> FailureKind {
    match error {
        Error::Network(network::Error::Full(_)) => FailureKind::NoSpace,
        Error::Sandbox(error) if error.is_of_full_disk() => FailureKind::NoSpace,
        Error::Image(images::Error::NotFound(_)) => FailureKind::NotFound,
        Error::Image(error) if !error.is_of_host() => FailureKind::InvalidRequest,
        Error::NoNetwork => FailureKind::Conflict,
        Error::Registry(error) => kind_of_pull(error),
        Error::Invalid { .. } | Error::NoUser { .. } | Error::OneUser { .. } => FailureKind::InvalidRequest,
        Error::Command(error) => error.kind(),
        Error::NoTemplate(_)
        | Error::NothingToRun(_)
        | Error::NoSandbox(_)
        | Error::GoneFromStore(_)
        | Error::NotMounted { .. }
        | Error::NoCheckpoint(_) => FailureKind::NotFound,
        Error::TemplateBusy(_)
        | Error::TemplateInUse { .. }
        | Error::NotRunning { .. }
        | Error::NotPaused { .. }
        | Error::BeingResumed(_)
        | Error::HeldElsewhere { .. }
        | Error::ResumedElsewhere(_)
        | Error::PortClosed { .. }
        | Error::NoHostDirectory { .. }
        | Error::HostPath { .. }
        | Error::HostBusy { .. }
        | Error::OfPaused { .. }
        | Error::TooManyUsers { .. }
        | Error::MergeConflict { .. }
        | Error::CheckpointExists(_) => FailureKind::Conflict,
        Error::StateGone(failure) | Error::VolumeRefused(failure) => failure.kind,
        Error::Volumes { source: volumed::Error::NoAnswer, .. } => FailureKind::Interrupted,
        Error::CannotFork { .. } | Error::Unfit { .. } => FailureKind::CannotFork,
        Error::ProgramEnded { .. } | Error::OnFork { .. } | Error::StepFailed { .. } | Error::NotReadyInTime { .. } => {
            FailureKind::NotReady
        }
        Error::Copy { .. } => FailureKind::InvalidRequest,
        Error::ProgramMissing { .. } | Error::NoReadyCommand { .. } => FailureKind::ProgramMissing,
        Error::ProgramNotExecutable { .. } => FailureKind::ProgramNotExecutable,
        Error::Keeper { .. } => FailureKind::StartFailed,
        Error::ZygoteGone { .. } | Error::KeeperLost { .. } => FailureKind::Interrupted,
        Error::DamagedFile { .. } => FailureKind::Damaged,
        Error::Deadline { .. } => FailureKind::TimedOut,
        Error::Cancelled => FailureKind::Cancelled,
        Error::File { .. }
        | Error::System { .. }
        | Error::Record { .. }
        | Error::StateInUse(_)
        | Error::SocketInUse(_)
        | Error::SelfTest(_)
        | Error::Store { .. }
        | Error::Volumes { .. }
        | Error::Network(_)
        | Error::Image(_)
        | Error::Sandbox(_) => FailureKind::Host,
        Error::NoRoom { .. } => FailureKind::NoSpace,
    }
}

fn hint_of_step(error: &Error) -> &'static str {
    match error {
        Error::StepFailed { reason: Some(_), .. } => "give the template more memory",
        Error::StepFailed { .. } => {
            "its output says why; `pando exec` in a sandbox of the origin tries the command by itself"
        }
        Error::OnFork { .. } => {
            "it runs in each copy, as root if the image has that user, for 10 s at most, and has to exit with 0"
        }
        _ => "look at the source of the copy, and at what is at its target",
    }
}

/// Registries are named by users, and images are theirs.
fn kind_of_pull(error: &registry::Error) -> FailureKind {
    use registry::Error as E;
    match error {
        E::NotFound { .. } => FailureKind::NotFound,
        E::Image(error) if error.is_of_host() => FailureKind::Host,
        E::Reference { .. }
        | E::Denied { .. }
        | E::Redirect { .. }
        | E::Unauthorized { .. }
        | E::TooLarge { .. }
        | E::Token { .. }
        | E::Image(_) => FailureKind::InvalidRequest,
        E::Digest { .. } | E::Length { .. } => FailureKind::Damaged,
        E::NoRoom { .. } => FailureKind::NoSpace,
        E::Slow { .. } | E::TooLong => FailureKind::TimedOut,
        E::Answer { .. }
        | E::Unreachable { .. }
        | E::Tls { .. }
        | E::BrokenOff { .. }
        | E::Authorities { .. }
        | E::Client(_)
        | E::File { .. } => FailureKind::Host,
    }
}

/// What the user should do next.
fn hint(error: &Error) -> Option<String> {
    let text = match error {
        Error::Invalid { hint, .. } => return hint.clone(),
        Error::NoTemplate(_) => "`pando template ls` shows what there is; `pando template build` makes one",
        Error::NothingToRun(_) => {
            "`pando template ls` and `pando checkpoint ls` show what there is; `pando template build` makes a template"
        }
        Error::NoSandbox(_) => "`pando ls` shows what there is",
        Error::TemplateBusy(_) => "try again when the build has finished",
        Error::TemplateInUse { .. } => "remove them first: `pando ls`, then `pando kill`",
        Error::NoCheckpoint(_) => "`pando checkpoint ls` shows what there is; `pando checkpoint ID` takes one",
        Error::CheckpointExists(_) => "give another --name, or add --replace",
        Error::MergeConflict { .. } => {
            "make the files the same in both, or undo one side's change; --path merges what is below one directory"
        }
        Error::Unfit { .. } => "start it on a node with the same kernel, processor features and image files",
        Error::DamagedFile { .. } => "export it again; nothing was taken over from this file",
        Error::Store { source, .. } => return hint_of_store(source.as_ref()).map(str::to_owned),
        Error::Sandbox(error) if error.is_of_full_disk() => "remove files there, or give its template more (`--disk`)",
        Error::NotRunning { state: SandboxState::Paused, .. } => "resume it first: `pando resume ID`",
        Error::NotRunning { state: SandboxState::Pausing, .. } => "when it is paused, resume it: `pando resume ID`",
        Error::StateGone(failure) | Error::VolumeRefused(failure) => return failure.hint.clone(),
        Error::NotMounted { .. } => "`pando volume inspect NAME` shows who holds a volume",
        Error::NoHostDirectory { .. } => "make it first: `mkdir -p DIRECTORY`",
        Error::HostPath { .. } => "name a directory that nothing is mounted on",
        Error::HostBusy { .. } => "leave the directory, and end the processes that work or have a file open there",
        Error::OfPaused { .. } => "first `pando resume ID` or `pando kill ID`: the paused sandbox needs the volume",
        Error::NotPaused { .. } => "`pando ls` shows the states of all sandboxes",
        Error::BeingResumed(_) => "wait until it runs: `pando ls`",
        Error::HeldElsewhere { .. } => {
            "that node runs it; if that node crashed, it finishes at its next start; only if that node is gone for good: `pando resume --force ID`"
        }
        Error::ResumedElsewhere(_) => {
            "it runs there soon; if that node is killed in between, `pando resume ID` here names the node that holds it"
        }
        Error::GoneFromStore(_) => "`pando kill ID` forgets it on this node",
        Error::NotRunning { .. } => "`pando logs` shows its output; `pando kill` removes it",
        Error::NoUser { .. } => "make it first (`useradd -m NAME` as root), or leave the user out",
        Error::OneUser { .. } => "use the image of a directory or tarball, such as `base`",
        Error::NoRoom { .. } => "remove sandboxes (`pando ls`), or give the host's disk or --layers-max more room",
        Error::TooManyUsers { .. } => "repeat it when other file work is done",
        Error::PortClosed { .. } => "`pando logs` may say why; the port is that of the program inside",
        Error::CannotFork { what, .. } => hint_of_fork(what),
        Error::NoReadyCommand { .. } => {
            "it is looked for inside the sandbox; if the image has no shell, use --port or --ready-file"
        }
        Error::ProgramMissing { .. } => {
            "it is looked for inside the sandbox: home directories, /tmp and /var/tmp of the host are hidden there; a script's interpreter may be what is missing"
        }
        Error::ProgramNotExecutable { .. } => "it has to be executable for its user, and a script has to begin with #!",
        Error::ProgramEnded { reason: Some(_), .. } => "set another limit: `pando template build --memory 8G ...`",
        Error::ProgramEnded { .. } => {
            "run the command by itself; it runs as uid 1000 or the user of its image, without the host's network; home directories, /tmp and /var/tmp of the host are hidden there"
        }
        Error::NotReadyInTime { .. } => {
            "tell when it is ready with --port, --ready-file or --ready, or give it more time with --ready-timeout"
        }
        Error::StepFailed { .. } | Error::Copy { .. } | Error::OnFork { .. } => hint_of_step(error),
        Error::ZygoteGone { .. } | Error::KeeperLost { .. } => "repeat the command: templates are made ready again",
        Error::Deadline { .. } => "the node's log may say more; `pando doctor` checks the host",
        Error::Volumes { source: volumed::Error::NoAnswer, .. } => {
            "repeat the command: the process of volumes is started again"
        }
        Error::Volumes { .. } | Error::Network(_) => "the node's log says more; `pando doctor` checks the host",
        Error::NoNetwork | Error::Image(_) | Error::Registry(_) => return hint_of_root(error),
        Error::Command(error) => return error.hint().map(str::to_owned),
        Error::Keeper { .. }
        | Error::Cancelled
        | Error::File { .. }
        | Error::System { .. }
        | Error::Record { .. }
        | Error::StateInUse(_)
        | Error::SocketInUse(_)
        | Error::SelfTest(_)
        | Error::Sandbox(_) => return None,
    };
    Some(text.to_owned())
}

fn hint_of_store(error: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    if lacks_master_key(error) {
        return Some(
            "the master keys are read when the node starts: add that key to the file, not in the first place, and restart the node",
        );
    }
    is_of_store(error).then_some(
        "check the object store and the database that the node was started with; what was half written is garbage, not damage",
    )
}

/// About what a sandbox stands on.
fn hint_of_root(error: &Error) -> Option<String> {
    let text = match error {
        Error::NoNetwork => "start the node with --network on",
        // The digest may be of a checkpoint's image, which no registry knows by it.
        Error::Image(images::Error::NotFound(name)) if name.contains('@') => {
            "`pando image ls` shows what there is; `pando image pull` or `import` takes one in"
        }
        Error::Image(images::Error::NotFound(name)) => {
            return Some(format!("`pando image pull {name}` fetches it; `pando image ls` shows what there is"));
        }
        Error::Registry(error) => return hint_of_pull(error),
        _ => return None,
    };
    Some(text.to_owned())
}

fn hint_of_pull(error: &registry::Error) -> Option<String> {
    use registry::Error as E;
    let text = match error {
        E::Denied { source, .. } => {
            return Some(format!("the operator allows it with `pando node --network-allow {}`", source.address));
        }
        E::Unauthorized { registry, .. } => {
            return Some(format!("check the name; `docker login {registry}` or --username give credentials"));
        }
        E::NotFound { .. } => "check the name and the tag at the registry",
        E::Redirect { .. } => "the operator names registries without TLS with `pando node --registry-insecure HOST`",
        E::Tls { .. } => {
            "the operator trusts another authority with `pando node --registry-ca FILE`, or names a registry without TLS with --registry-insecure"
        }
        E::Answer { .. } | E::Unreachable { .. } | E::BrokenOff { .. } | E::Slow { .. } | E::TooLong => {
            "repeat the command: it goes on with what is downloaded"
        }
        E::NoRoom { .. } => "`pando image prune` removes layers that no image has, and interrupted downloads",
        E::Digest { .. } | E::Length { .. } => {
            "repeat the command; if it fails again, the registry has other bytes than it names"
        }
        E::Reference { .. }
        | E::TooLarge { .. }
        | E::Token { .. }
        | E::Authorities { .. }
        | E::Client(_)
        | E::Image(_)
        | E::File { .. } => return None,
    };
    Some(text.to_owned())
}

fn hint_of_fork(what: &Forked) -> &'static str {
    match what {
        Forked::Template(_) => {
            "change the program, or let it be ready later (--ready); `pando doctor --process PID` examines a process of the host"
        }
        Forked::Sandbox(_) => {
            "the sandbox goes on; end the processes that are named, or keep its files only: --files-only; `pando doctor --sandbox ID` lists the reasons and stops nothing"
        }
    }
}

/// Whether store or database may be at fault, and not what was to be stored.
fn is_of_store(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    !causes.any(|cause| {
        let memory = match cause.downcast_ref::<memory::Error>() {
            // Reading and writing are the store's, and damage is found in what it gave.
            Some(memory::Error::Write { .. } | memory::Error::Read { .. } | memory::Error::Damaged { .. }) | None => {
                false
            }
            Some(_) => true,
        };
        memory || cause.is::<process::Error>() || cause.is::<sandbox::Error>()
    })
}

fn lacks_master_key(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.any(|cause| {
        let shared = cause.downcast_ref::<Arc<KeyError>>().map(Arc::as_ref);
        matches!(cause.downcast_ref().or(shared), Some(KeyError::UnknownMaster { .. }))
    })
}

fn details(error: &Error) -> Vec<String> {
    match error {
        Error::CannotFork { refusals: details, .. }
        | Error::Unfit { reasons: details, .. }
        | Error::MergeConflict { conflicts: details, .. } => details.clone(),
        Error::ProgramEnded { output, .. }
        | Error::OnFork { output, .. }
        | Error::StepFailed { output, .. }
        | Error::NotReadyInTime { output, .. } => output.clone(),
        Error::StateGone(failure) | Error::VolumeRefused(failure) => failure.details.clone(),
        Error::Invalid { .. }
        | Error::Copy { .. }
        | Error::NoUser { .. }
        | Error::OneUser { .. }
        | Error::TooManyUsers { .. }
        | Error::Command(_)
        | Error::Volumes { .. }
        | Error::NotMounted { .. }
        | Error::NoHostDirectory { .. }
        | Error::NoReadyCommand { .. }
        | Error::HostPath { .. }
        | Error::HostBusy { .. }
        | Error::OfPaused { .. }
        | Error::NoTemplate(_)
        | Error::NothingToRun(_)
        | Error::NoSandbox(_)
        | Error::NoCheckpoint(_)
        | Error::CheckpointExists(_)
        | Error::Store { .. }
        | Error::DamagedFile { .. }
        | Error::TemplateBusy(_)
        | Error::TemplateInUse { .. }
        | Error::NotRunning { .. }
        | Error::NotPaused { .. }
        | Error::BeingResumed(_)
        | Error::HeldElsewhere { .. }
        | Error::ResumedElsewhere(_)
        | Error::GoneFromStore(_)
        | Error::PortClosed { .. }
        | Error::ProgramMissing { .. }
        | Error::ProgramNotExecutable { .. }
        | Error::Keeper { .. }
        | Error::ZygoteGone { .. }
        | Error::KeeperLost { .. }
        | Error::Deadline { .. }
        | Error::Cancelled
        | Error::File { .. }
        | Error::System { .. }
        | Error::Record { .. }
        | Error::StateInUse(_)
        | Error::SocketInUse(_)
        | Error::SelfTest(_)
        | Error::NoRoom { .. }
        | Error::Network(_)
        | Error::Image(_)
        | Error::Registry(_)
        | Error::NoNetwork
        | Error::Sandbox(_) => Vec::new(),
    }
}

impl Error {
    /// For a client, with the chain of causes in one line.
    pub fn failure(&self) -> Failure {
        Failure { kind: kind(self), message: chain(self), hint: hint(self), details: details(self) }
    }
}
