//! Answers of one JSON document per line: progress, then a result or a failure.

use api::ErrorDetail;
use http_body_util::BodyExt;
use hyper::{Response, body::Incoming};
use serde::de::DeserializeOwned;

use crate::{Error, Result};

/// What an event means for the call that waits.
pub(crate) enum Step<T> {
    Continue,
    Done(T),
    Failed(ErrorDetail),
}

/// Reads events until one ends the answer.
pub(crate) async fn finish<E: DeserializeOwned, T>(
    answer: Response<Incoming>,
    take: impl FnMut(E) -> Step<T>,
) -> Result<T> {
    read(answer, take).await?.ok_or(Error::HungUp)
}

/// Reads events until one ends the answer, or there is none any more.
pub(crate) async fn read<E: DeserializeOwned, T>(
    answer: Response<Incoming>,
    mut take: impl FnMut(E) -> Step<T>,
) -> Result<Option<T>> {
    let mut answer = answer.into_body();
    let mut buffer = Vec::new();
    while let Some(frame) = answer.frame().await {
        buffer.extend_from_slice(&frame.map_err(Error::BrokenOff)?.into_data().unwrap_or_default());
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            match take(serde_json::from_slice(&line).map_err(Error::NotUnderstood)?) {
                Step::Continue => {}
                Step::Done(done) => return Ok(Some(done)),
                Step::Failed(detail) => return Err(Error::Node(detail)),
            }
        }
    }
    Ok(None)
}
