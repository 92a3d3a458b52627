//! How much of a program is known, by a look at some of its pages.

use super::{Known, hash_of};
use crate::{
    error::Error,
    limits::SAMPLE_EVERY,
    page::{PAGE_BYTES, PageRun},
    read::PageSource,
    scan::Piece,
};

/// Pages that were looked at, and how many of them are known. Zeros do not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sample {
    /// Pages that were looked at.
    pub pages: u64,
    /// Those of them that are known.
    pub known: u64,
}

impl Known {
    /// Looks at each [`SAMPLE_EVERY`]th of the pages that a dump would read.
    pub fn sample(
        &self,
        source: &dyn PageSource,
        pieces: impl Iterator<Item = Result<Piece, Error>>,
    ) -> Result<Sample, Error> {
        let mut sample = Sample::default();
        let mut bytes = [0; PAGE_BYTES];
        let mut skip = 0;
        for piece in pieces {
            let Piece::Own(run) = piece? else { continue };
            while skip < run.count {
                source.read(&[PageRun { first: run.first + skip, count: 1 }], &mut bytes)?;
                if bytes != [0; PAGE_BYTES] {
                    sample.pages += 1;
                    sample.known += u64::from(self.find(&hash_of(&bytes)).is_some());
                }
                skip += SAMPLE_EVERY;
            }
            skip -= run.count;
        }
        Ok(sample)
    }
}
