//! One client: requests, one after the other, until one of them makes the connection a stream of events.

use std::{collections::HashSet, io, os::fd::OwnedFd, sync::Arc};

use super::Holder;
use crate::{
    error::{Error, Refusal},
    held::{Held, Streams, reader::Reader},
    limits::INPUT_BYTES_MAX,
    message::{Link, Received, Reply, Request, Telling},
};

/// What becomes of a connection after a request.
enum Next {
    /// It was answered; the next request may come.
    Done(Reply),
    /// Streams are here, and their command is about to start.
    Starting(Box<Streams>, super::table::Place),
    /// Events of a command follow.
    Follow(Reader),
    /// Names of ended commands follow.
    Watch,
    /// Records follow.
    List(Vec<Arc<Held>>),
    /// The holder ends.
    End,
}

impl Holder {
    /// Serves a client until it leaves.
    pub(super) async fn attend(self: Arc<Self>, link: Link) {
        let _present = self.table.client();
        let mut starting = None;
        while let Ok(Some(received)) = link.receive::<Request>().await {
            let next = self.handle(received, starting.take()).await;
            let answered = match next {
                Ok(Next::Done(reply)) => link.send(&reply, &[], &[]).await,
                Ok(Next::Starting(streams, place)) => {
                    starting = Some((streams, place));
                    link.send(&Reply::Done, &[], &[]).await
                }
                Ok(Next::Follow(reader)) => {
                    // Before any event, so that a refusal can be told from one.
                    if link.send(&Reply::Done, &[], &[]).await.is_ok() {
                        reader.serve(&link).await;
                    }
                    return;
                }
                Ok(Next::Watch) => return self.name_ended(&link).await,
                Ok(Next::List(commands)) => list(&link, &commands).await,
                Ok(Next::End) => {
                    let _ = link.send(&Reply::Done, &[], &[]).await;
                    return self.stop.notify_one();
                }
                Err(error) => link.send(&refusal(&error), &[], &[]).await,
            };
            if answered.is_err() {
                return;
            }
        }
    }

    async fn handle(
        self: &Arc<Self>,
        Received { head, body, files }: Received<Request>,
        starting: Option<(Box<Streams>, super::table::Place)>,
    ) -> Result<Next, Error> {
        match head {
            Request::Hold => {
                let streams = Streams::of(files)?;
                let place = self.table.reserve(&streams.meta.sandbox, &streams.meta.key)?;
                Ok(Next::Starting(Box::new(streams), place))
            }
            Request::Begin { process } => {
                let (streams, _place) = starting.ok_or_else(|| invalid("no streams came before it"))?;
                let [pidfd] = <[OwnedFd; 1]>::try_from(files).map_err(|_| invalid("a pidfd is needed"))?;
                self.begin(*streams, process, pidfd).await
            }
            Request::Attach { key, from } => Ok(Next::Follow(Reader::new(self.table.find(&key)?, &from))),
            Request::List { sandbox } => Ok(Next::List(self.table.of(sandbox.as_deref()))),
            Request::Input { key } => {
                if body.len() > INPUT_BYTES_MAX {
                    return Err(invalid("too much input for one request"));
                }
                done(self.table.find(&key)?.write(&body).await)
            }
            Request::CloseInput { key } => {
                self.table.find(&key)?.close_input().await?;
                self.spare.tell(&Telling::CloseInput { key }).await;
                done(Ok(()))
            }
            Request::Resize { key, rows, columns } => done(self.table.find(&key)?.resize(rows, columns)),
            Request::Report { key, status } => done(self.table.find(&key).map(|held| held.report(status))),
            Request::Mark { key, reason } => {
                let held = self.table.find(&key)?;
                // Of one that has ended, nothing changes any more.
                if held.record.end().is_none() {
                    held.record.set_reason(reason);
                }
                done(Ok(()))
            }
            Request::Settle { key } => {
                self.settle(&key).await;
                done(Ok(()))
            }
            Request::ForgetSandbox { sandbox } => {
                for held in self.table.of(Some(&sandbox)) {
                    self.forget(&held.meta.key).await;
                }
                done(Ok(()))
            }
            Request::Watch => Ok(Next::Watch),
            Request::Status => Ok(Next::Done(Reply::Family(self.family()))),
            Request::Shutdown if self.table.is_empty() => Ok(Next::End),
            Request::Shutdown => {
                let message = "the holder still holds commands".to_owned();
                Err(Error::Refused { refusal: Refusal::Busy, message })
            }
        }
    }

    /// The client is the first reader, so that the command waits for it from its first byte on.
    async fn begin(
        self: &Arc<Self>,
        streams: Streams,
        process: crate::record::Process,
        pidfd: OwnedFd,
    ) -> Result<Next, Error> {
        let held = self.enter(streams, pidfd, Some(process)).map_err(Error::system("take the command"))?;
        let reader = Reader::new(Arc::clone(&held), &[]);
        // Before anything is read: from here on the death of this process loses nothing.
        self.spare.tell_of(&held).await;
        held.pump();
        Ok(Next::Follow(reader))
    }

    /// Names each ended command that is not settled, once.
    async fn name_ended(&self, link: &Link) {
        let mut ends = self.ends.subscribe();
        let mut named = HashSet::new();
        loop {
            ends.mark_unchanged();
            let all = self.table.begun();
            let unsettled = |held: &&Arc<Held>| held.record.end().is_some() && !held.record.is_settled();
            for held in all.iter().filter(unsettled) {
                let (key, sandbox) = (held.meta.key.clone(), held.meta.sandbox.clone());
                if named.insert(key.clone()) && link.send(&Reply::Unsettled { key, sandbox }, &[], &[]).await.is_err() {
                    return;
                }
            }
            named.retain(|key| self.table.get(key).is_some_and(|held| !held.record.is_settled()));
            tokio::select! {
                _ = ends.changed() => {}
                // It says nothing more: this is its end.
                _ = link.receive::<Request>() => return,
            }
        }
    }
}

/// The records, and the end of the list.
async fn list(link: &Link, commands: &[Arc<Held>]) -> io::Result<()> {
    for held in commands {
        link.send(&Reply::Entry, &[], &[held.record.file()]).await?;
    }
    link.send(&Reply::Done, &[], &[]).await
}

fn done(outcome: Result<(), Error>) -> Result<Next, Error> {
    outcome.map(|()| Next::Done(Reply::Done))
}

fn invalid(message: &str) -> Error {
    Error::Refused { refusal: Refusal::Invalid, message: message.to_owned() }
}

fn refusal(error: &Error) -> Reply {
    match error {
        Error::Refused { refusal, message } => Reply::Refused { refusal: *refusal, message: message.clone() },
        other => Reply::Refused { refusal: Refusal::Failed, message: base::error::chain(other) },
    }
}
