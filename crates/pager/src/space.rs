//! Where the registered pages of a process are now. Pure: events in, what they mean out.
//!
//! A page keeps the number it had in the image's [`Layout`](crate::pages::Layout), wherever the process moves it. *Spans* map addresses to
//! numbers, and change only when mappings are moved or unmapped. Whether a page still lacks its content is not kept here but in
//! [`Missing`](crate::missing::Missing), by number.
//!
//! **Moves have an echo.** The kernel reports `mremap` as a move, and then, in a second event, the unmapping of the old place. Between the
//! two, another thread of the program may already have moved something else to that place. So the unmapping that follows a move is
//! expected, and ignored: the move has emptied the place already. (`MREMAP_DONTUNMAP` sends no second event; what is expected then is
//! taken by the unmapping that ends the old place's life.)
//!
//! **Moves onto a place that is taken** can only be seen when the events of two threads overtake each other between the change and its
//! report. Which contents are where can no longer be told then: [`Confused::Overtaken`].

use std::{collections::VecDeque, ops::Range};

use crate::{
    limits::{ECHOES_MAX, PAGE_BYTES, SPANS_MAX},
    pages::Layout,
};

/// Consecutive addresses with consecutive numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// Address of the first page.
    pub(crate) at: u64,
    /// Its number.
    pub(crate) first: u64,
    /// How many.
    pub(crate) pages: u64,
}

impl Span {
    fn end(&self) -> u64 {
        self.at + self.pages * PAGE_BYTES
    }

    /// The part of it within `range`.
    fn within(&self, range: &Range<u64>) -> Option<Self> {
        let start = self.at.max(range.start);
        let end = self.end().min(range.end);
        (start < end).then(|| Self {
            at: start,
            first: self.first + (start - self.at) / PAGE_BYTES,
            pages: (end - start) / PAGE_BYTES,
        })
    }

    fn numbers(&self) -> Range<u64> {
        self.first..self.first + self.pages
    }
}

/// Why a process cannot be served any longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Confused {
    /// Two threads moved mappings to and from one place at once.
    #[error("events of two threads that moved the same addresses overtook each other")]
    Overtaken,
    /// The process divides its mappings without end.
    #[error("its mappings fell into more than {SPANS_MAX} parts")]
    TooManySpans,
}

/// Where the pages of one process are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Space {
    /// Sorted by address, apart.
    spans: Vec<Span>,
    /// Indexes into `spans`, sorted by number.
    by_number: Vec<u32>,
    /// Unmappings that follow a move.
    echoes: VecDeque<Range<u64>>,
}

impl Space {
    /// All pages where the image has them.
    pub(crate) fn new(layout: &Layout) -> Self {
        let span = |(range, first): &(Range<u64>, u64)| Span {
            at: range.start,
            first: *first,
            pages: (range.end - range.start) / PAGE_BYTES,
        };
        Self::from_parts(layout.ranges().iter().map(span).collect(), VecDeque::new())
    }

    /// From what [`Space::spans`] and [`Space::echoes`] gave.
    pub(crate) fn from_parts(mut spans: Vec<Span>, echoes: VecDeque<Range<u64>>) -> Self {
        spans.sort_unstable_by_key(|span| span.at);
        // What a move tore apart and another one joined again is one span.
        spans.dedup_by(|next, last| {
            let joined = last.end() == next.at && last.first + last.pages == next.first;
            if joined {
                last.pages += next.pages;
            }
            joined
        });
        let mut by_number: Vec<u32> = (0..spans.len() as u32).collect();
        by_number.sort_unstable_by_key(|index| spans[*index as usize].first);
        Self { spans, by_number, echoes }
    }

    /// All spans.
    pub(crate) fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Unmappings that are expected.
    pub(crate) fn echoes(&self) -> impl ExactSizeIterator<Item = &Range<u64>> {
        self.echoes.iter()
    }

    /// The number of the page at `address`.
    pub(crate) fn number(&self, address: u64) -> Option<u64> {
        let index = self.spans.partition_point(|span| span.at <= address).checked_sub(1)?;
        let span = &self.spans[index];
        (address < span.end()).then(|| span.first + (address - span.at) / PAGE_BYTES)
    }

    /// Where the pages with these numbers are: spans within them.
    pub(crate) fn places(&self, numbers: &Range<u64>) -> Vec<Span> {
        let span = |index: &u32| &self.spans[*index as usize];
        let from = self.by_number.partition_point(|index| span(index).numbers().end <= numbers.start);
        let reached = self.by_number[from..].iter().map(span).take_while(|span| span.first < numbers.end);
        reached
            .map(|span| {
                let first = span.first.max(numbers.start);
                let end = span.numbers().end.min(numbers.end);
                Span { at: span.at + (first - span.first) * PAGE_BYTES, first, pages: end - first }
            })
            .collect()
    }

    /// The numbers of the pages in `range`.
    fn numbers(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let from = self.spans.partition_point(|span| span.end() <= range.start);
        let reached = self.spans[from..].iter().map_while(|span| span.within(range));
        reached.map(|span| span.numbers()).collect()
    }

    /// Contents were given up: these pages are zeros from now on.
    pub(crate) fn remove(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        self.numbers(range)
    }

    /// Pages were unmapped: these are nowhere from now on.
    pub(crate) fn unmap(&mut self, range: &Range<u64>) -> Result<Vec<Range<u64>>, Confused> {
        if let Some(index) = self.echoes.iter().position(|echo| echo == range) {
            self.echoes.remove(index);
            return Ok(Vec::new());
        }
        let gone = self.numbers(range);
        if !gone.is_empty() {
            self.cut(range)?;
        }
        Ok(gone)
    }

    /// Pages were moved. `from` and `from + len`, `to` and `to + len` are what the kernel says, and are not trusted to fit.
    pub(crate) fn remap(&mut self, from: u64, to: u64, len: u64) -> Result<(), Confused> {
        let source = from..from.saturating_add(len);
        let target = to..to.saturating_add(len);
        if !self.numbers(&target).is_empty() {
            return Err(Confused::Overtaken);
        }
        let moved = self.cut(&source)?;
        let mut spans = std::mem::take(&mut self.spans);
        spans.extend(moved.into_iter().map(|span| Span { at: to + (span.at - from), ..span }));
        let mut echoes = std::mem::take(&mut self.echoes);
        if echoes.len() == ECHOES_MAX {
            echoes.pop_front();
        }
        echoes.push_back(source);
        *self = Self::from_parts(spans, echoes);
        self.bounded()
    }

    /// Takes what lies in `range` out.
    fn cut(&mut self, range: &Range<u64>) -> Result<Vec<Span>, Confused> {
        let mut taken = Vec::new();
        let mut left = Vec::with_capacity(self.spans.len() + 1);
        for span in &self.spans {
            taken.extend(span.within(range));
            left.extend(span.within(&(0..range.start)));
            left.extend(span.within(&(range.end..u64::MAX)));
        }
        *self = Self::from_parts(left, std::mem::take(&mut self.echoes));
        self.bounded()?;
        Ok(taken)
    }

    fn bounded(&self) -> Result<(), Confused> {
        if self.spans.len() > SPANS_MAX { Err(Confused::TooManySpans) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
