//! Several nodes (each with connections of its own) want the same at the same time.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use futures::future::join_all;
use store::{
    heads::{Head, Heads, HeadsError, Lease, Protected},
    id::ManifestId,
};

use crate::place::{Place, create, lease, lease_of, name, realm};

/// Commits that are raced for, unless `PANDO_ROUNDS` says otherwise: 10,000 as a soak.
const COMMITS: usize = 1_000;

fn commits() -> usize {
    std::env::var("PANDO_ROUNDS").map_or(COMMITS, |rounds| rounds.parse().unwrap())
}

/// Creates and opens take longer, and there are fewer of them.
fn creates() -> usize {
    commits() / 10
}

/// One node that wants to commit, with the manifest that it wants next and the lease that keeps it: both until it wins.
struct Writer {
    heads: Heads,
    next: Option<(ManifestId, Lease)>,
}

impl Writer {
    async fn new(place: &Place) -> Self {
        Self { heads: place.open().await, next: None }
    }

    async fn all(place: &Place) -> Vec<Self> {
        let mut writers = Vec::new();
        for _ in 0..place.writers {
            writers.push(Self::new(place).await);
        }
        writers
    }

    async fn next(&mut self) -> (ManifestId, Lease) {
        if let Some(next) = self.next.take() {
            return next;
        }
        let next = ManifestId::random();
        (next, lease_of(&self.heads, next).await)
    }

    /// The head if this one won the race for it.
    async fn commit(&mut self, expected: &Head) -> Option<Head> {
        let (next, lease) = self.next().await;
        match self.heads.commit(expected, next, &lease).await {
            Ok(head) => {
                assert_eq!((head.manifest, head.generation), (next, expected.generation));
                Some(head)
            }
            Err(HeadsError::Moved { expected: held, .. }) => {
                assert_eq!(held, expected.manifest);
                self.next = Some((next, lease));
                None
            }
            Err(error) => panic!("a loser learns that the head has moved, not {error:?}"),
        }
    }

    async fn create(&mut self) -> Option<Head> {
        let (next, lease) = self.next().await;
        match self.heads.create(&realm(), &name("raced"), next, &lease).await {
            Ok(head) => Some(head),
            Err(HeadsError::Exists { .. }) => {
                self.next = Some((next, lease));
                None
            }
            Err(error) => panic!("a loser learns that the head exists, not {error:?}"),
        }
    }

    async fn take_over(&mut self, seen: &Head) -> Option<Head> {
        match self.heads.take_over(seen).await {
            Ok(head) => Some(head),
            Err(HeadsError::Fenced { .. }) => None,
            Err(error) => panic!("a loser learns that it is fenced off, not {error:?}"),
        }
    }

    async fn remove(&mut self, expected: &Head) -> Option<Head> {
        match self.heads.remove(expected).await {
            Ok(()) => Some(expected.clone()),
            Err(HeadsError::NotFound { .. }) => None,
            Err(error) => panic!("a loser learns that there is no head, not {error:?}"),
        }
    }
}

fn winner(outcomes: Vec<Option<Head>>) -> Head {
    let mut winners = outcomes.into_iter().flatten();
    let winner = winners.next().expect("somebody wins");
    assert_eq!(winners.next(), None, "nobody else wins");
    winner
}

pub(crate) async fn many_commits_are_raced_for_and_each_has_one_winner(place: &Place) {
    let mut writers = Writer::all(place).await;
    let mut head = create(&writers[0].heads, "raced").await;
    let begun = std::time::Instant::now();
    for _ in 0..commits() {
        head = winner(join_all(writers.iter_mut().map(|writer| writer.commit(&head))).await);
    }
    println!("{} races of {}: {:?}", commits(), place.writers, begun.elapsed());
    assert_eq!(writers[0].heads.get(&realm(), &head.name).await.unwrap(), head);
}

pub(crate) async fn creates_and_removals_are_raced_for_and_each_has_one_winner(place: &Place) {
    let mut writers = Writer::all(place).await;
    let mut last_generation = 0;
    for _ in 0..creates() {
        let created = winner(join_all(writers.iter_mut().map(Writer::create)).await);
        assert!(created.generation > last_generation);
        let taken = winner(join_all(writers.iter_mut().map(|writer| writer.take_over(&created))).await);
        assert!(taken.generation > created.generation);
        last_generation = taken.generation;
        winner(join_all(writers.iter_mut().map(|writer| writer.remove(&taken))).await);
    }
}

/// A reader opens a head while a writer moves it and a collector looks: what the reader got must be kept from then on.
pub(crate) async fn what_is_opened_under_a_lease_is_never_missing_from_the_roots(place: &Place) {
    let (collector, reader) = (place.open().await, place.open().await);
    let mut writer = Writer::new(place).await;
    let mut head = create(&writer.heads, "raced").await;
    let done = Arc::new(AtomicBool::new(false));
    let writing = tokio::spawn({
        let done = done.clone();
        async move {
            while !done.load(Ordering::Relaxed) {
                head = writer.commit(&head).await.expect("there is one writer only");
            }
        }
    });
    for _ in 0..creates() {
        let lease = lease(&reader).await;
        let opened = reader.open_under(&lease, &name("raced")).await.unwrap();
        let roots = collector.roots(&realm()).await.unwrap();
        assert!(roots.leased.contains(&Protected::Manifest(opened.manifest)));
        reader.release(lease).await.unwrap();
    }
    done.store(true, Ordering::Relaxed);
    writing.await.unwrap();
}
