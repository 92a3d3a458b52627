//! Files that are sent.

use std::ops::Range;

use axum::{
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use rustix::io::Errno;
use volume::Attributes;

use super::{
    answer::tag,
    files::Job,
    stream::{self, Outlet},
};
use crate::{
    failure::{Failure, Result},
    limits::PIECE_BYTES,
};

/// The whole file or one range of it.
pub(super) async fn send(job: Job, found: Attributes, headers: &HeaderMap) -> Result<Response> {
    let (tag, size) = (tag(&found), found.inode.size);
    let given = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let told = [(header::ETAG, tag.clone()), (header::ACCEPT_RANGES, "bytes".to_owned())];
    if given(header::IF_NONE_MATCH).is_some_and(|known| known.split(',').any(|known| known.trim() == tag)) {
        return Ok((StatusCode::NOT_MODIFIED, told).into_response());
    }
    let range = match given(header::RANGE) {
        Some(range) if given(header::IF_RANGE).is_none_or(|known| known == tag) => parse_range(range, size)?,
        Some(_) | None => None,
    };
    let part = range.clone().unwrap_or(0..size);
    let length = [(header::CONTENT_LENGTH, (part.end - part.start).to_string())];
    let (table, volume) = (job.table.clone(), job.opened.source.volume.clone());
    let body =
        stream::answer(&table, &volume, "application/octet-stream", move |outlet| pass_on(&job, &found, part, outlet));
    Ok(match range {
        None => (told, length, body).into_response(),
        Some(Range { start, end }) => {
            let range = [(header::CONTENT_RANGE, format!("bytes {start}-{}/{size}", end - 1))];
            (StatusCode::PARTIAL_CONTENT, told, length, range, body).into_response()
        }
    })
}

/// Blocks.
fn pass_on(job: &Job, found: &Attributes, mut part: Range<u64>, outlet: &mut Outlet) -> Result<()> {
    let engine = job.opened.engine();
    let _hold = engine.hold(found.ino).map_err(job.failed("read"))?;
    while part.start < part.end {
        let length = (part.end - part.start).min(PIECE_BYTES as u64) as u32;
        let piece = engine.read(found.ino, part.start, length).map_err(job.failed("read"))?;
        if piece.is_empty() {
            // Somebody has made it shorter.
            return Err(job.failed("read")(Errno::STALE));
        }
        part.start += piece.len() as u64;
        job.opened.meter.read(piece.len());
        if outlet.send(piece.into()).is_err() {
            // The client has gone.
            break;
        }
    }
    Ok(())
}

/// `bytes=A-B`, `bytes=A-`, `bytes=-N`. Anything else, several ranges too, is answered with the whole file, as the standard allows.
fn parse_range(text: &str, size: u64) -> Result<Option<Range<u64>>> {
    let parsed = || {
        let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
        // Rust takes a sign as well.
        if text.contains('+') {
            return None;
        }
        match (first.trim(), last.trim()) {
            ("", last) => Some(size.saturating_sub(last.parse().ok()?)..size),
            (first, "") => Some(first.parse().ok()?..size),
            (first, last) => {
                let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
                (first <= last).then(|| first..last.saturating_add(1).min(size))
            }
        }
    };
    match parsed() {
        Some(range) if range.start >= range.end => Err(Failure::Range { size }),
        range => Ok(range),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_the_standard() {
        for (text, expected) in [
            ("bytes=0-0", Some(0..1)),
            ("bytes=2-4", Some(2..5)),
            ("bytes=5-", Some(5..10)),
            ("bytes=-3", Some(7..10)),
            ("bytes=-30", Some(0..10)),
            ("bytes=8-99", Some(8..10)),
            ("bytes=4-2", None),
            ("bytes=0-1,3-4", None),
            ("lines=0-1", None),
            ("bytes=x-", None),
        ] {
            assert_eq!(parse_range(text, 10).unwrap(), expected, "{text}");
        }
        for text in ["bytes=10-", "bytes=-0", "bytes=12-13"] {
            assert!(parse_range(text, 10).is_err(), "{text}");
        }
    }
}
