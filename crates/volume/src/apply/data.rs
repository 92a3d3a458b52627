//! Operations on the data of files, and questions about it.

use rustix::io::Errno;

use super::Outcome;
use crate::{
    extents::{Piece, windows},
    inode::{Ino, Time},
    limits::{FILE_BYTES_MAX, WINDOW_BYTES, WRITE_BYTES_MAX},
    state::{State, Step, window_gap},
};

/// Bytes to be read: holes, and pieces by their place in the answer.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) length: usize,
    pub(crate) pieces: Vec<(usize, Piece)>,
}

impl State {
    /// What a read of `length` bytes from `offset` gets; less at the end of the file.
    pub(crate) fn plan_read(&self, ino: Ino, offset: u64, length: u64) -> Step<Plan> {
        let node = self.file(ino)?;
        let length = length.min(node.inode.size.saturating_sub(offset));
        let mut plan = Plan { length: length as usize, pieces: Vec::new() };
        let mut before = 0;
        for (index, range) in windows(offset, length) {
            if let Some(window) = node.windows.get(index).map_err(|gap| window_gap(ino, gap))? {
                let place = |piece: Piece| (before + (piece.start - range.start) as usize, piece);
                plan.pieces.extend(window.parts(range.clone()).map(place));
            }
            before += range.len();
        }
        Ok(plan)
    }

    pub(super) fn write(
        &mut self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        drop_privileges: bool,
        now: Time,
    ) -> Step<Outcome> {
        let length = data.len() as u64;
        if data.len() > WRITE_BYTES_MAX {
            return Err(Errno::INVAL.into());
        }
        let end = checked_end(offset, length)?;
        let present = self.data_bytes(ino, offset, length)?;
        self.room(length - present, 0)?;
        let mut rest = data;
        for (index, range) in windows(offset, length) {
            let (part, later) = rest.split_at(range.len());
            rest = later;
            self.edit_window(ino, index, |window| window.write(range.start, part))?;
        }
        let inode = self.edit(ino)?;
        inode.size = inode.size.max(if data.is_empty() { 0 } else { end });
        inode.touch(now);
        if drop_privileges {
            inode.drop_privileges();
        }
        Ok(ino.into())
    }

    pub(super) fn punch(&mut self, ino: Ino, offset: u64, length: u64, now: Time) -> Step<Outcome> {
        if length == 0 {
            return Err(Errno::INVAL.into());
        }
        let size = self.file(ino)?.inode.size;
        let length = checked_end(offset, length)?.min(size).saturating_sub(offset);
        self.cut(ino, offset, length)?;
        self.edit(ino)?.touch(now);
        Ok(ino.into())
    }

    /// Makes a hole up to `offset + length`: nothing that is known is changed before all of it is known.
    pub(super) fn cut(&mut self, ino: Ino, offset: u64, length: u64) -> Step<()> {
        let (first, end) = (offset / u64::from(WINDOW_BYTES), offset.saturating_add(length));
        let in_range = |index: &u64| index.saturating_mul(WINDOW_BYTES.into()) < end;
        let touched = self.window_indexes(ino, first)?;
        for index in touched.into_iter().take_while(in_range) {
            let start = index * u64::from(WINDOW_BYTES);
            let from = offset.saturating_sub(start).min(WINDOW_BYTES.into()) as u32;
            let to = (end - start).min(WINDOW_BYTES.into()) as u32;
            self.edit_window(ino, index, |window| window.cut(from..to))?;
        }
        Ok(())
    }

    pub(super) fn copy(
        &mut self,
        (from, from_offset): (Ino, u64),
        (to, to_offset): (Ino, u64),
        length: u64,
        now: Time,
    ) -> Step<Outcome> {
        let length = length.min(self.file(from)?.inode.size.saturating_sub(from_offset));
        let overlaps = from_offset < to_offset.saturating_add(length) && to_offset < from_offset.saturating_add(length);
        if from == to && overlaps {
            return Err(Errno::INVAL.into());
        }
        if length == 0 {
            self.file(to)?;
            return Ok(Outcome { ino: Some(to), bytes: 0 });
        }
        let end = checked_end(to_offset, length)?;
        let plan = self.plan_read(from, from_offset, length)?;
        let present = self.data_bytes(to, to_offset, length)?;
        let bytes: u64 = plan.pieces.iter().map(|(_, piece)| u64::from(piece.length)).sum();
        self.room(bytes.saturating_sub(present), 0)?;
        self.window_indexes(to, to_offset / u64::from(WINDOW_BYTES))?;
        self.cut(to, to_offset, length)?;
        for (place, piece) in plan.pieces {
            self.place_piece(to, to_offset + place as u64, &piece)?;
        }
        let inode = self.edit(to)?;
        inode.size = inode.size.max(end);
        inode.touch(now);
        Ok(Outcome { ino: Some(to), bytes: length })
    }

    /// Puts a piece of another file where there is a hole, cut where windows end.
    fn place_piece(&mut self, ino: Ino, offset: u64, piece: &Piece) -> Step<()> {
        let mut skipped = 0;
        for (index, range) in windows(offset, piece.length.into()) {
            let (start, length) = (range.start, range.end - range.start);
            let part = Piece { start, length, source: piece.source.skip(skipped) };
            skipped += length;
            self.edit_window(ino, index, |window| window.insert(part))?;
        }
        Ok(())
    }

    /// The first byte of data at `offset` or behind it; `ENXIO` if there is none.
    pub(crate) fn next_data(&self, ino: Ino, offset: u64) -> Step<u64> {
        let node = self.file(ino)?;
        let (mut index, mut start) = split(offset);
        while let Some((found, window)) = node.windows.next(index).map_err(|gap| window_gap(ino, gap))? {
            start = if found == index { start } else { 0 };
            if let Some(data) = window.next_data(start) {
                let at = found * u64::from(WINDOW_BYTES) + u64::from(data);
                return if at < node.inode.size { Ok(at) } else { Err(Errno::NXIO.into()) };
            }
            (index, start) = (found + 1, 0);
        }
        Err(Errno::NXIO.into())
    }

    /// The first byte of a hole at `offset` or behind it; the end of the file is one. `ENXIO` behind it.
    pub(crate) fn next_hole(&self, ino: Ino, offset: u64) -> Step<u64> {
        let node = self.file(ino)?;
        if offset >= node.inode.size {
            return Err(Errno::NXIO.into());
        }
        let (mut index, mut start) = split(offset);
        loop {
            let window = node.windows.get(index).map_err(|gap| window_gap(ino, gap))?;
            let hole = window.map_or(Some(start), |window| window.next_hole(start));
            if let Some(hole) = hole {
                return Ok((index * u64::from(WINDOW_BYTES) + u64::from(hole)).min(node.inode.size));
            }
            (index, start) = (index + 1, 0);
        }
    }

    /// Bytes of data in a range.
    fn data_bytes(&self, ino: Ino, offset: u64, length: u64) -> Step<u64> {
        let node = self.file(ino)?;
        let mut bytes = 0;
        for (index, range) in windows(offset, length) {
            let window = node.windows.get(index).map_err(|gap| window_gap(ino, gap))?;
            bytes += window.map_or(0, |window| window.parts(range).map(|piece| u64::from(piece.length)).sum());
        }
        Ok(bytes)
    }

    /// Windows with data, from `first` to the last.
    pub(super) fn window_indexes(&self, ino: Ino, first: u64) -> Step<Vec<u64>> {
        let windows = self.node(ino)?.windows.range(first, u64::MAX).map_err(|gap| window_gap(ino, gap))?;
        Ok(windows.map(|(index, _)| index).collect())
    }
}

fn split(offset: u64) -> (u64, u32) {
    (offset / u64::from(WINDOW_BYTES), (offset % u64::from(WINDOW_BYTES)) as u32)
}

fn checked_end(offset: u64, length: u64) -> Result<u64, Errno> {
    offset.checked_add(length).filter(|end| *end <= FILE_BYTES_MAX).ok_or(Errno::FBIG)
}
