//! Forking ahead: blanks of the pool get a copy that is parked short of its program, so that a start only lets it go.
//!
//! What parked copies touch ahead is learned from the first sandboxes of each zygote, some time after their start or at their
//! removal. Only then are copies forked ahead: a template that is hardly used costs nothing.

use std::{sync::Arc, time::Duration};

use base::id::{SandboxId, ZygoteId};
use keeper::{
    Continued, Spawned,
    protocol::{ParkCopy, ReleaseCopy},
};
use process::ZygoteFacts;

use super::{Node, start::Running};
use crate::{
    error::{Context, Result, chain},
    state::{Blank, Parked, Sample},
};

/// How long after its start a sandbox is looked at: its first requests are answered, and it is not yet at work of its own.
const LEARN_DELAY: Duration = Duration::from_millis(250);

impl Node {
    /// Forks a copy of zygote `zygote` into a blank. One that fails leaves the blank as it was.
    pub(super) async fn park(&self, blank: &mut Blank, zygote: ZygoteId, engine: &ZygoteFacts) -> Result<()> {
        let start = self.state().new_start();
        let output = &*blank.output;
        let (theirs, streams) = self.make_streams(engine, blank.init.pid, [&self.host.null, output, output])?;
        let park = ParkCopy { zygote, sandbox: blank.id.clone(), start };
        let Spawned { process: first, ended, .. } = self.keepers.call(park, theirs.iter().collect()).await?;
        blank.parked = Some(Parked { zygote, start, first, ended, is_program: !engine.without_program, streams });
        Ok(())
    }

    /// Lets a parked copy go on; if it is to `hold`, as far as its last step before the program.
    pub(super) async fn release(&self, parked: Parked, hold: bool) -> Result<Running> {
        let Parked { zygote, start, first, ended, is_program, streams } = parked;
        let Continued { commands, held } = self.keepers.call(ReleaseCopy { zygote, start, hold }, []).await?;
        Ok(Running { program: is_program.then_some((first, ended)), commands: (streams, commands), held })
    }

    /// Looks at a new sandbox some time later, if there is still something to learn from it.
    pub(super) fn learn_later(self: &Arc<Self>, id: &SandboxId) {
        let wanted = self.state().begin_sample(id);
        if wanted {
            let (node, id) = (Arc::clone(self), id.clone());
            tokio::spawn(async move {
                tokio::time::sleep(LEARN_DELAY).await;
                node.learn(&id).await;
            });
        }
    }

    /// Looks at a sandbox now, if that was to be done and is not done yet.
    pub(super) async fn learn(&self, id: &SandboxId) {
        let sample = self.state().take_sample(id);
        let Some(Sample { template, zygote, copy }) = sample else { return };
        let learned = tokio::task::spawn_blocking(move || process::learn(&zygote, copy.pid)).await;
        match learned.doing("learn what copies touch") {
            Ok(Ok(pages)) => tracing::debug!(%template, pages, "learned what copies touch first"),
            // It has ended, or its zygote has: parked copies then touch less ahead.
            Ok(Err(error)) => tracing::debug!(%template, error = chain(&error), "nothing learned"),
            Err(error) => tracing::warn!(%template, error = chain(&error), "nothing learned"),
        }
        self.state().end_sample(&template);
        self.ledger.pool_work.notify_one();
    }
}
