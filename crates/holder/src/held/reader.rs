//! One client that reads a command's output.

use std::sync::{Arc, atomic::Ordering};

use super::{Held, Positions, lock};
use crate::{
    message::{Link, Reply, Request},
    record::OUTPUTS_MAX,
};

/// A place among the readers of a command. Dropped, the command does not wait for it any more.
pub(crate) struct Reader {
    held: Arc<Held>,
    number: u64,
    positions: Positions,
}

impl Reader {
    /// A reader from these positions on; where there is none, from the command's first byte: what is not kept any more
    /// counts as missed.
    pub(crate) fn new(held: Arc<Held>, from: &[u64]) -> Self {
        let mut positions = [0; OUTPUTS_MAX];
        for (number, position) in positions.iter_mut().enumerate().take(held.outputs.len()) {
            let total = held.record.total(number);
            *position = from.get(number).copied().unwrap_or(0).min(total);
        }
        let number = {
            let mut readers = lock(&held.readers);
            readers.next += 1;
            let number = readers.next;
            readers.positions.insert(number, positions);
            number
        };
        Self { held, number, positions }
    }

    /// Sends all that there is and comes, and the end. Returns when the client has left or has all.
    pub(crate) async fn serve(mut self, link: &Link) {
        loop {
            let held = Arc::clone(&self.held);
            let news = held.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            // Before the outputs: what came before the end is sent before the end.
            let end = held.record.end();
            let mut sent = false;
            for output in 0..held.outputs.len() {
                match self.send_next(output, link).await {
                    Ok(more) => sent |= more,
                    Err(_gone) => return,
                }
            }
            if sent {
                continue;
            }
            if let Some(end) = end {
                // A client that has left does not want to know.
                let _ = link.send(&Reply::Ended(end), &[], &[]).await;
                return;
            }
            if held.moved.load(Ordering::Acquire) {
                return;
            }
            tokio::select! {
                () = news => {}
                // It says nothing more: this is its end.
                _ = link.receive::<Request>() => return,
            }
        }
    }

    /// Sends the next bytes of one output. False: there are none, or only bytes from after the command's end.
    async fn send_next(&mut self, output: usize, link: &Link) -> std::io::Result<bool> {
        let (record, position) = (&self.held.record, self.positions[output]);
        let limit = match record.end() {
            Some(_) => record.total_at_end(output),
            None => record.total(output),
        };
        let begin = position.max(record.oldest(output)).min(limit);
        let (missed, most) = (begin.saturating_sub(position), limit.saturating_sub(begin).min(self.held.chunk()));
        if missed == 0 && most == 0 {
            return Ok(false);
        }
        // Before anything is waited for: what is copied cannot be overwritten.
        let span = record.next(output, begin, most).span;
        let bytes = span.map(|span| record.copy_out(output, span)).transpose()?.unwrap_or_default();
        if missed > 0 {
            link.send(&Reply::Missed { output, bytes: missed }, &[], &[]).await?;
        }
        if !bytes.is_empty() {
            link.send(&Reply::Output { output }, &bytes, &[]).await?;
        }
        self.positions[output] = begin + bytes.len() as u64;
        lock(&self.held.readers).positions.insert(self.number, self.positions);
        self.held.room.notify_waiters();
        Ok(true)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        lock(&self.held.readers).positions.remove(&self.number);
        self.held.room.notify_waiters();
    }
}
