//! Why a sandbox could not be forked or paused.

use std::io;

use base::id::SandboxId;
use keeper::protocol::Refusal;
use process::Examined;
use sandbox::ProcessIdentity;

use super::{
    Node,
    commands::Along,
    inspect::{pids, process},
};
use crate::{
    error::{Context, Error, Result},
    records::SandboxRecord,
};

impl Node {
    /// All reasons; none if it could. Nothing is stopped, so that it may be different by the time of the answer.
    pub async fn refusals(&self, id: &SandboxId) -> Result<Vec<Refusal>> {
        let record = self.state().running(id)?.clone();
        let of = |kind: &'static str| move |reason| Refusal { kind: kind.to_owned(), reason };
        let along = match self.along(&record, 0).await {
            Err(Error::CannotFork { refusals, .. }) => {
                return Ok(refusals.into_iter().map(of("too_many")).collect());
            }
            along => along?,
        };
        let others = self.others(&record, along.as_ref())?.into_iter().map(of("daemons"));
        let Some(along) = along else { return Ok(others.collect()) };
        let commands = along.processes();
        let Along { main, without_program, streams, .. } = along;
        let examined = Examined { pid: main.pid, init: Some(record.init.pid), commands, without_program, streams };
        let examine = move || process::examine(&examined).map_err(io::Error::other);
        let found =
            tokio::task::spawn_blocking(examine).await.doing("examine a sandbox")?.doing("examine a sandbox")?;
        let found = found.iter().map(|found| Refusal { kind: found.kind(), reason: found.to_string() });
        Ok(found.chain(others).collect())
    }

    /// Processes that are not captured, with the reason.
    pub(super) fn others(&self, record: &SandboxRecord, along: Option<&Along>) -> Result<Vec<String>> {
        // First: what is begun from now on belongs to something that is found then.
        let all = pids(&self.group(&record.id))?;
        let mut own = vec![record.init.pid, record.main.pid];
        if let Some(along) = along {
            match process::family(along.main.pid, Some(record.init.pid), &along.processes()) {
                Ok(family) => own.extend(family),
                // There are more than go along.
                Err(process::Error::Refused(refusals)) => {
                    return Ok(refusals.iter().map(ToString::to_string).collect());
                }
                // Of one that has just ended nothing is found.
                Err(_) => {}
            }
        }
        let stays =
            |pid: &i32| !own.contains(pid) && ProcessIdentity::of(*pid).is_some_and(|process| process.is_alive());
        let others = all.into_iter().filter(stays).filter_map(process);
        let how = if record.program().is_some() { "runs beside its program" } else { "runs in it" };
        Ok(others.map(|process| format!("process {} ({}) {how}", process.inner_pid, process.name)).collect())
    }
}
