//! The present keeper, and who may have it do what.

use std::{sync::Arc, time::Duration};

use keeper::{
    KeeperClient,
    client::Reply,
    protocol::{Call, Files},
};
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use super::turns::Turns;
use crate::error::{Error, Result};

/// How long an operation waits for a new keeper when the old one has just died.
const RESTART_MAX: Duration = Duration::from_secs(10);

/// Sandboxes that are being made at a time: one, and one that waits. The keeper makes one after the other; were all of many starts to queue there
/// at once, the first program would be forked when the last sandbox is made, and zygotes have nothing to do until then.
const CREATED_AT_ONCE: usize = 2;

/// A keeper and what the node knows of it.
#[derive(Debug, Clone)]
struct Current {
    client: Arc<KeeperClient>,
    pid: Option<u32>,
}

/// One keeper after the other. Only `supervisor` publishes and withdraws them.
pub(super) struct Keepers {
    current: watch::Sender<Option<Current>>,
    restarts: watch::Sender<u64>,
    /// Who may have it make a sandbox.
    creating: Semaphore,
    /// Which requests for one copy have their turn.
    pub(super) turns: Turns,
}

impl Keepers {
    pub(super) fn new() -> Self {
        Self {
            current: watch::Sender::new(None),
            restarts: watch::Sender::new(0),
            creating: Semaphore::new(CREATED_AT_ONCE),
            turns: Turns::default(),
        }
    }

    /// The keeper; waits for a new one if the last has just died.
    pub(super) async fn get(&self, action: &'static str) -> Result<Arc<KeeperClient>> {
        let mut current = self.current.subscribe();
        let lives = |keeper: &Option<Current>| keeper.as_ref().is_some_and(|keeper| !keeper.client.is_gone());
        let present = tokio::time::timeout(RESTART_MAX, current.wait_for(lives)).await;
        match present.map(|present| present.map(|keeper| keeper.as_ref().map(|keeper| Arc::clone(&keeper.client)))) {
            Ok(Ok(Some(client))) => Ok(client),
            Ok(Ok(None) | Err(_)) | Err(_) => Err(Error::KeeperLost { action }),
        }
    }

    /// Has the keeper do something.
    pub(super) async fn call<C: Call<Reply: Reply>>(
        &self,
        call: C,
        files: <C::Files as Files>::Lent<'_>,
    ) -> Result<<C::Reply as Reply>::Output> {
        Ok(self.get(C::ACTION).await?.call(call, files).await?)
    }

    /// Resolves when the first one runs and has adopted what there is.
    pub(super) fn first(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut keeper = self.current.subscribe();
        async move { drop(keeper.wait_for(Option::is_some).await.map(drop)) }
    }

    /// It has adopted what there is.
    pub(super) fn publish(&self, client: Arc<KeeperClient>, pid: Option<u32>) {
        self.current.send_replace(Some(Current { client, pid }));
    }

    /// There is none any more.
    pub(super) fn withdraw(&self) {
        self.current.send_replace(None);
    }

    /// One had to be started again.
    pub(super) fn count_restart(&self) {
        self.restarts.send_modify(|count| *count += 1);
    }

    pub(super) fn restarts(&self) -> u64 {
        *self.restarts.borrow()
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.current.borrow().as_ref().and_then(|keeper| keeper.pid)
    }

    /// A turn to have a sandbox made.
    pub(super) async fn creation(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.creating.acquire().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use base::id::ZygoteId;
    use keeper::{
        fake::FakeKeeper,
        protocol::{DropZygote, Failed},
    };

    use super::*;

    const ZYGOTE: ZygoteId = ZygoteId(7);

    fn drop_zygote(keepers: &Arc<Keepers>) -> tokio::task::JoinHandle<Result<()>> {
        let keepers = Arc::clone(keepers);
        tokio::spawn(async move { keepers.call(DropZygote { zygote: ZYGOTE }, []).await })
    }

    #[tokio::test]
    async fn a_call_waits_for_the_next_keeper() {
        let keepers = Arc::new(Keepers::new());
        let waiting = drop_zygote(&keepers);
        tokio::task::yield_now().await;
        let (mut keeper, client, _events) = FakeKeeper::start().unwrap();
        keepers.publish(client, Some(1));
        let answered = tokio::task::spawn_blocking(move || {
            let asked = keeper.expect::<DropZygote>().unwrap();
            let zygote = asked.request.zygote;
            keeper.answer(asked, Ok(())).map(|()| zygote)
        });
        assert_eq!(answered.await.unwrap().unwrap(), ZYGOTE);
        assert!(waiting.await.unwrap().is_ok());
    }

    #[tokio::test]
    async fn what_the_keeper_cannot_do_names_the_action() {
        let keepers = Arc::new(Keepers::new());
        let (mut keeper, client, _events) = FakeKeeper::start().unwrap();
        keepers.publish(client, None);
        let waiting = drop_zygote(&keepers);
        let answered = tokio::task::spawn_blocking(move || {
            let asked = keeper.expect::<DropZygote>().unwrap();
            keeper.answer(asked, Err(Failed::zygote_gone("it was dropped")))
        });
        answered.await.unwrap().unwrap();
        let error = waiting.await.unwrap().unwrap_err();
        assert!(matches!(error, Error::ZygoteGone { .. }), "{error:?}");
        assert_eq!(error.to_string(), "cannot drop the zygote: it was dropped");
    }
}
