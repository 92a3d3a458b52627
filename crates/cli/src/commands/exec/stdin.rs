//! Standard input, which outlives the connections that it is sent through. A read of it cannot be taken back: what has been read and not been sent is
//! kept for the next one.

use std::sync::Arc;

use tokio::{
    io::AsyncReadExt,
    sync::{Mutex, OwnedMutexGuard, mpsc},
};

use super::CHUNK_BYTES;

/// Standard input. Nothing is read of it before it is asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct StandardInput(Arc<Mutex<Chunks>>);

impl StandardInput {
    /// For one that sends it; another one waits.
    pub(super) async fn chunks(&self) -> OwnedMutexGuard<Chunks> {
        Arc::clone(&self.0).lock_owned().await
    }
}

/// What is read of it, piece by piece.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    read: Option<mpsc::Receiver<Vec<u8>>>,
    unsent: Option<Vec<u8>>,
}

impl Chunks {
    /// The same one again until it is [`Self::sent`]; nothing at the end. May be given up at any time.
    pub(super) async fn next(&mut self) -> Option<&[u8]> {
        if self.unsent.is_none() {
            self.unsent = self.read.get_or_insert_with(read_all).recv().await;
        }
        self.unsent.as_deref()
    }

    pub(super) fn sent(&mut self) {
        self.unsent = None;
    }
}

fn read_all() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut stdin = tokio::io::stdin();
        let mut buffer = vec![0; CHUNK_BYTES];
        while let Ok(length) = stdin.read(&mut buffer).await
            && length > 0
            && sender.send(buffer[..length].to_vec()).await.is_ok()
        {}
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_not_sent_comes_again() {
        let (sender, receiver) = mpsc::channel(2);
        for chunk in [b"one", b"two"] {
            sender.send(chunk.to_vec()).await.unwrap();
        }
        drop(sender);
        let mut chunks = Chunks { read: Some(receiver), unsent: None };
        assert_eq!(chunks.next().await, Some(&b"one"[..]));
        assert_eq!(chunks.next().await, Some(&b"one"[..]));
        chunks.sent();
        assert_eq!(chunks.next().await, Some(&b"two"[..]));
        chunks.sent();
        assert_eq!(chunks.next().await, None);
    }
}
