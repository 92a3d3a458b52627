//! Threads that may wait for the store.

use std::sync::Arc;

use super::{
    Server,
    demand::{Job, Wanted},
    lock,
    process::{Process, Trouble},
};
use crate::{
    board::Word,
    error::{SourceError, chain},
    pages::Cluster,
};

/// How often events are read to make way for a copy, before the fault is put off.
const ATTEMPTS: u32 = 3;

/// What a fault needs.
enum Need {
    /// This page of the image.
    Page(u64),
    /// Zeros.
    Zeros,
    /// Nothing: the process is over.
    Nothing,
}

impl Server {
    pub(super) fn fetch_loop(self: &Arc<Self>) {
        loop {
            match self.demand.take() {
                Job::Open(image) => self.open_image(image),
                Job::Kill(process) => self.kill(&process),
                Job::Answer(wanted) => {
                    let index = wanted.process.record.index;
                    self.answer(wanted);
                    self.demand.done(index);
                }
            }
        }
    }

    fn need(process: &Process, address: u64) -> Need {
        let book = lock(&process.book);
        if book.doomed || process.is_over() {
            return Need::Nothing;
        }
        match book.space.number(address).filter(|number| process.missing.has(*number)) {
            Some(number) => Need::Page(process.image.layout.address(number)),
            None => Need::Zeros,
        }
    }

    fn answer(self: &Arc<Self>, wanted: Wanted) {
        let place = match Self::need(&wanted.process, wanted.address) {
            Need::Page(place) => place,
            Need::Zeros => return self.hand_over(wanted, None),
            Need::Nothing => return,
        };
        let image = Arc::clone(&wanted.process.image);
        let key = image.source.extent(place).start;
        {
            let mut fetching = lock(&image.fetching);
            if let Some(waiters) = fetching.get_mut(&key) {
                waiters.push(wanted);
                return;
            }
            fetching.insert(key, Vec::new());
        }
        self.board.add(Word::Fetches, 1);
        let result = self.fetch(&image, place);
        let mut waiters = lock(&image.fetching).remove(&key).unwrap_or_default();
        waiters.push(wanted);
        for wanted in waiters {
            match &result {
                Ok(cluster) => self.hand_over(wanted, Some(cluster)),
                Err(error) => self.fetch_failed(wanted, error),
            }
        }
    }

    /// A cluster of an image, checked.
    pub(super) fn fetch(&self, image: &super::PageImage, place: u64) -> Result<Cluster, SourceError> {
        let cluster = image.source.cluster(place)?;
        if cluster.is_sound(place) {
            Ok(cluster)
        } else {
            Err(SourceError::Permanent(format!("the source gave {:x?} for {place:#x}", cluster.range()).into()))
        }
    }

    fn fetch_failed(&self, wanted: Wanted, error: &SourceError) {
        let final_try = wanted.since.elapsed() > self.options.give_up;
        match error {
            SourceError::Transient(_) if !final_try => {
                self.board.add(Word::Retries, 1);
                self.demand.add(wanted.after_failure());
            }
            SourceError::Transient(_) | SourceError::Permanent(_) => {
                self.doom(&wanted.process, &format!("address {:#x}: {}", wanted.address, chain(error)));
            }
        }
    }

    /// Answers a fault with what was fetched, or with zeros.
    fn hand_over(self: &Arc<Self>, wanted: Wanted, cluster: Option<&Cluster>) {
        let process = Arc::clone(&wanted.process);
        for _ in 0..ATTEMPTS {
            match self.try_to_answer(&wanted, cluster) {
                Ok(true) => {
                    self.board.count_latency(wanted.since.elapsed().as_nanos() as u64);
                    return self.settle(&process);
                }
                // The process has moved the page, or put another one there.
                Ok(false) => return self.demand.add(wanted.later()),
                Err(Trouble::Again) => self.pump(&process),
                Err(Trouble::Gone) => return self.retire(&process),
                Err(Trouble::Failed(error)) if wanted.since.elapsed() > self.options.give_up => {
                    return self.doom(&process, &format!("address {:#x} cannot be filled: {error}", wanted.address));
                }
                Err(Trouble::Failed(_)) => return self.demand.add(wanted.after_failure()),
            }
        }
        self.demand.add(wanted.later());
    }

    fn try_to_answer(&self, wanted: &Wanted, cluster: Option<&Cluster>) -> Result<bool, Trouble> {
        let process = &wanted.process;
        let mut book = lock(&process.book);
        if book.doomed || process.is_over() {
            return Ok(true);
        }
        let Some(number) = book.space.number(wanted.address).filter(|number| process.missing.has(*number)) else {
            self.board.add(Word::ZeroPages, 1);
            return process.zero(wanted.address).map(|()| true);
        };
        let place = process.image.layout.address(number);
        match cluster.filter(|cluster| cluster.range().contains(&place)) {
            Some(cluster) => {
                self.board.add(Word::FaultPages, process.answer(&mut book, cluster, number)?);
                Ok(true)
            }
            None => Ok(false),
        }
    }
}
