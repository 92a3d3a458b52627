//! What is being made, and what is not to be made any more. Who gives up a request that makes a volume or a snapshot removes what it may have
//! made; without this, the request could be carried out, or be read at all, only after that.

use std::{collections::VecDeque, sync::Arc};

use tokio::sync::watch;

use crate::{
    failure::{Failure, Result},
    limits::UNWANTED_MAX,
    message::Source,
};

/// Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Makings(Arc<watch::Sender<Names>>);

#[derive(Debug, Default)]
struct Names {
    /// One for each request.
    under_way: Vec<Source>,
    /// The oldest first.
    unwanted: VecDeque<Source>,
}

/// A request that makes something, to its end.
#[derive(Debug)]
pub(crate) struct Making {
    makings: Makings,
    source: Source,
}

impl Makings {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::default()))
    }

    /// To be called before anything of it can be seen.
    pub(crate) fn begin(&self, source: Source) -> Result<Making> {
        let begun = self.0.send_if_modified(|names| {
            let is_wanted = !names.unwanted.contains(&source);
            if is_wanted {
                names.under_way.push(source.clone());
            }
            is_wanted
        });
        if begun { Ok(Making { makings: self.clone(), source }) } else { Err(Failure::Unwanted { what: source }) }
    }

    /// Resolves when no request makes it; none will.
    pub(crate) async fn prevent(&self, source: &Source) {
        self.0.send_modify(|names| {
            names.unwanted.retain(|unwanted| unwanted != source);
            if names.unwanted.len() == UNWANTED_MAX {
                names.unwanted.pop_front();
            }
            names.unwanted.push_back(source.clone());
        });
        // Fails only without a sender, which this has.
        let _ = self.0.subscribe().wait_for(|names| !names.under_way.contains(source)).await;
    }

    /// Its name may be used again.
    pub(crate) fn allow(&self, source: &Source) {
        self.0.send_modify(|names| names.unwanted.retain(|unwanted| unwanted != source));
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        self.makings.0.send_modify(|names| {
            if let Some(at) = names.under_way.iter().position(|source| *source == self.source) {
                names.under_way.swap_remove(at);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn source(name: &str) -> Source {
        Source::current(name.parse().unwrap())
    }

    #[tokio::test]
    async fn what_is_prevented_is_waited_for_and_not_begun_again() {
        let makings = Makings::new();
        let making = [makings.begin(source("a")).unwrap(), makings.begin(source("a")).unwrap()];
        let ours = makings.clone();
        let prevented = tokio::spawn(async move { ours.prevent(&source("a")).await });
        for making in making {
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(!prevented.is_finished());
            drop(making);
        }
        prevented.await.unwrap();
        assert!(matches!(makings.begin(source("a")), Err(Failure::Unwanted { .. })));
        makings.begin(source("b")).unwrap();
        makings.allow(&source("a"));
        makings.begin(source("a")).unwrap();
    }

    #[tokio::test]
    async fn only_so_many_are_remembered() {
        let makings = Makings::new();
        for number in 0..=UNWANTED_MAX {
            makings.prevent(&source(&format!("a{number}"))).await;
        }
        assert!(makings.begin(source("a0")).is_ok() && makings.begin(source("a1")).is_err());
        assert_eq!(makings.0.borrow().unwanted.len(), UNWANTED_MAX);
    }
}
