//! A batch of records, put together in the place that it is sealed and written from.

use base::frame;
use store::seal::{self, SegmentKey};

use super::{BATCH_KIND, VERSION};
use crate::op::Record;

/// Where in a batch its number is, what is sealed, and in that the first record.
const NUMBER: usize = frame::HEADER_BYTES;
const SEALED: usize = NUMBER + 4;
const PLAIN: usize = SEALED + seal::BEFORE;
const RECORDS: usize = PLAIN + 8;

/// See the module.
#[derive(Default)]
pub(super) struct Batch {
    /// Room for what comes before the records, and they.
    memory: Vec<u8>,
}

impl Batch {
    /// An empty one, in memory that is there already.
    pub(super) fn within(mut memory: Vec<u8>) -> Self {
        memory.clear();
        Self { memory }
    }

    pub(super) fn add(&mut self, record: &Record<'_>) {
        if self.memory.is_empty() {
            self.memory.resize(RECORDS, 0);
        }
        encode_record(record, &mut self.memory);
    }

    /// Of records.
    pub(super) fn bytes(&self) -> usize {
        self.memory.len().saturating_sub(RECORDS)
    }

    /// As the file has it. `synced`: the last operation that is on disk.
    pub(super) fn seal(mut self, key: &SegmentKey, number: u32, synced: u64) -> Vec<u8> {
        let memory = &mut self.memory;
        memory.resize(memory.len().max(RECORDS), 0);
        memory[NUMBER..SEALED].copy_from_slice(&number.to_le_bytes());
        memory[PLAIN..RECORDS].copy_from_slice(&synced.to_le_bytes());
        let (before, behind) = key.seal_in_place(number, &mut memory[PLAIN..]);
        memory[SEALED..PLAIN].copy_from_slice(&before);
        memory.extend_from_slice(&behind);
        frame::complete(BATCH_KIND, VERSION, memory).expect("a batch is shorter than 4 GiB");
        self.memory
    }
}

/// Appends a record, behind its length.
pub(crate) fn encode_record(record: &Record<'_>, records: &mut Vec<u8>) {
    let start = records.len();
    records.extend_from_slice(&[0; 4]);
    let bytes = std::mem::take(records);
    *records = record.encode(bytes).expect("a record is made of numbers and bytes");
    let length = (records.len() - start - 4) as u32;
    records[start..start + 4].copy_from_slice(&length.to_le_bytes());
}
