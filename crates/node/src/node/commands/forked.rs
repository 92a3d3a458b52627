//! Commands of copies: they have gone on with the copy's first process. Each gets streams, a record at the holder and a group of its own.

use std::{
    collections::HashSet,
    fs,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use base::id::SandboxId;
use holder::{Meta, Process};
use keeper::SpawnedCommand;
use process::{CommandFacts, ZygoteFacts};
use rustix::io::Errno;

use super::{
    along::of_label,
    start::{files_of, pipe},
};
use crate::{
    error::{Context, Result},
    node::{Node, holder_link::failed, images::random_suffix},
};

/// Streams per process.
const STREAMS: usize = 3;
/// Passes over the processes of a command until all are in its group.
const PASSES_MAX: usize = 20;

/// The node's ends of the streams of a copy's commands.
#[derive(Debug, Default)]
pub(crate) struct CommandStreams(Vec<Made>);

#[derive(Debug)]
struct Made {
    place: u32,
    label: String,
    input: OwnedFd,
    outputs: [OwnedFd; 2],
}

impl Node {
    /// Makes the streams of a copy's commands. Also: the ends that the copy gets, behind `program`'s, in the order of their numbers.
    pub(in crate::node) fn make_streams(
        &self,
        zygote: &ZygoteFacts,
        program: [&OwnedFd; STREAMS],
    ) -> Result<(Vec<OwnedFd>, CommandStreams)> {
        let share = |file: &OwnedFd| file.try_clone().doing("share a stream");
        let mut theirs = program.into_iter().map(share).collect::<Result<Vec<_>>>()?;
        let mut ours = CommandStreams::default();
        for place in 0..(zygote.streams / STREAMS).saturating_sub(1) as u32 {
            let Some(CommandFacts { label, .. }) = zygote.commands.iter().find(|command| command.place == place) else {
                // It has ended. What it has left behind can write to its streams, and nothing reads that.
                theirs.extend([share(&self.host.null)?, share(&self.host.null)?, share(&self.host.null)?]);
                continue;
            };
            let [(input_read, input), (output, output_write), (errors, errors_write)] = [pipe()?, pipe()?, pipe()?];
            theirs.extend([input_read, output_write, errors_write]);
            ours.0.push(Made { place, label: label.clone(), input, outputs: [output, errors] });
        }
        Ok((theirs, ours))
    }

    /// From here on the commands of a copy are like those that were started in it.
    pub(in crate::node) async fn hold_forked(
        self: &Arc<Self>,
        id: &SandboxId,
        CommandStreams(streams): CommandStreams,
        spawned: Vec<SpawnedCommand>,
    ) -> Result<()> {
        let mut spawned = spawned;
        for Made { place, label, input, outputs } in streams {
            let at = spawned.iter().position(|command| command.place == place);
            let at = at.ok_or(std::io::ErrorKind::NotFound).doing("find a command of the copy")?;
            let key = format!("exec-{}", random_suffix());
            let [output, errors] = &outputs;
            let streams = files_of([&input, output, errors])?;
            let meta = Meta { streams, ..of_label(&label, id, &key)? };
            self.hold_one(id, meta, (input, outputs), spawned.swap_remove(at)).await?;
        }
        Ok(())
    }

    async fn hold_one(
        self: &Arc<Self>,
        id: &SandboxId,
        meta: Meta,
        (input, outputs): (OwnedFd, [OwnedFd; 2]),
        spawned: SpawnedCommand,
    ) -> Result<()> {
        let SpawnedCommand { inside, process, pidfd, ended, .. } = spawned;
        let guard = self.holder.begin_start(&meta.key);
        let [output, errors] = &outputs;
        let given = meta.stdin.then(|| input.as_fd());
        let starting = self.hold(&meta, &[output.as_fd(), errors.as_fd()], given).await?;
        let (group, pid) = (self.group(id).join(&meta.key), process.pid);
        let gather = move || gather(&group, pid);
        tokio::task::spawn_blocking(gather).await.doing("gather the processes of a command").flatten()?;
        let held = Process { inside, outside: process.pid, start_ticks: process.start_ticks };
        // Nobody reads along from its first byte on.
        drop(starting.begin(held, &pidfd).await.map_err(failed("hand over the command"))?);
        drop(guard);
        self.report_end(&meta.key, ended);
        if let Some(deadline_ns) = meta.deadline_ns {
            self.end_at(id, &meta.key, deadline_ns);
        }
        Ok(())
    }
}

/// Makes the group of a command and moves its processes there. One that is begun meanwhile by a process that is not there yet is found by another
/// pass.
fn gather(group: &Path, pid: i32) -> Result<()> {
    fs::create_dir(group).at("create", group)?;
    let path: PathBuf = group.join("cgroup.procs");
    let mut moved = HashSet::new();
    for _ in 0..PASSES_MAX {
        let all = process::family(pid, None, &[]).unwrap_or_default();
        let new: Vec<i32> = all.into_iter().filter(|pid| moved.insert(*pid)).collect();
        if new.is_empty() {
            break;
        }
        for pid in new {
            match fs::write(&path, pid.to_string()) {
                // It has ended in the meantime.
                Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => {}
                written => written.at("write", &path)?,
            }
        }
    }
    Ok(())
}
