//! One image: its source and layout, what is being fetched of it, and the order of first faults.

use std::{
    collections::HashMap,
    io::Read,
    ops::Range,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use super::{Server, demand::Wanted, fill::Progress, lock, process::Process, still::Still};
use crate::{
    board::{Word, image::PageImageRecord, process::ProcessRecord},
    error::{SourceError, chain},
    limits::PAGE_BYTES,
    missing::Missing,
    pages::{Cluster, Layout, PageSource},
    space::Space,
};

/// First and longest pause before something is asked for again.
const BACKOFF: Range<Duration> = Duration::from_millis(5)..Duration::from_secs(1);

/// How long to wait before attempt number `tries` (from 1 on).
pub(super) fn backoff(tries: u32) -> Duration {
    BACKOFF.start.saturating_mul(1 << tries.min(16)).min(BACKOFF.end)
}

/// An image that is open.
pub(super) struct PageImage {
    pub(super) record: PageImageRecord,
    pub(super) name: String,
    serial: u64,
    pub(super) layout: Layout,
    pub(super) source: Arc<dyn PageSource>,
    /// The process that has its bytes, if one stands still.
    pub(super) still: OnceLock<Still>,
    /// Why there is none, if there is none.
    pub(super) lost: Option<String>,
    /// By the start of a cluster that is being fetched: whoever waits for it, but for the one who fetches.
    pub(super) fetching: Mutex<HashMap<u64, Vec<Wanted>>>,
    pub(super) progress: Mutex<Progress>,
    /// One bit per page that was faulted on.
    seen: Mutex<Vec<u64>>,
    processes: AtomicUsize,
}

impl std::fmt::Debug for PageImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageImage").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Stands for a source that could not be opened.
struct Lost(String);

impl PageSource for Lost {
    fn extent(&self, address: u64) -> Range<u64> {
        address..address + PAGE_BYTES
    }

    fn cluster(&self, _address: u64) -> Result<Cluster, SourceError> {
        Err(SourceError::Permanent(self.0.clone().into()))
    }

    fn is_local(&self, _address: u64) -> bool {
        false
    }

    /// All of them: nothing is known to be zeros.
    fn ranges(&self) -> Vec<Range<u64>> {
        std::iter::once(0..u64::MAX - u64::MAX % PAGE_BYTES).collect()
    }

    fn is_recorded(&self) -> bool {
        true
    }
}

impl PageImage {
    fn new(record: PageImageRecord, layout: Layout, source: Arc<dyn PageSource>, lost: Option<String>) -> Self {
        let mut seen = vec![0; layout.pages().div_ceil(64) as usize];
        // An earlier pager may have recorded some.
        for address in record.order() {
            for number in layout.numbers(&(address..address + PAGE_BYTES)).into_iter().flat_map(|(_, numbers)| numbers)
            {
                seen[(number / 64) as usize] |= 1 << (number % 64);
            }
        }
        Self {
            name: record.name(),
            serial: record.serial(),
            record,
            layout,
            progress: Mutex::new(Progress::new(source.is_recorded())),
            source,
            still: OnceLock::new(),
            lost,
            fetching: Mutex::default(),
            seen: Mutex::new(seen),
            processes: AtomicUsize::new(0),
        }
    }

    /// Remembers that page `number` was faulted on, if it is the first time.
    pub(super) fn note_fault(&self, number: u64) {
        let mut seen = lock(&self.seen);
        let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
        if seen[word] & bit == 0 {
            seen[word] |= bit;
            self.record.add_fault(self.layout.address(number));
        }
    }

    /// The process stands still: what its forks lack is read from it.
    fn keep_still(&self, process: &Arc<Process>) {
        match Still::of(process) {
            // Another one cannot be there: an image is handed over with one process.
            Ok(still) => drop(self.still.set(still)),
            Err(error) => {
                tracing::warn!(%error, image = self.name, "its memory cannot be read; its forks are served from the source")
            }
        }
    }

    /// What the process that stands still has of the pages around `place`, within `within`.
    pub(super) fn standing(&self, place: u64, within: &Range<u64>) -> Option<Cluster> {
        self.still.get()?.cluster(&self.layout, place, within)
    }

    /// Whether a process is filled unasked. Forks of one that stands still are not as long as it can give them all that they touch: what they
    /// never touch would be theirs alone.
    pub(super) fn is_filled(&self, process: &Process) -> bool {
        process.record.pid().is_some() || self.record.is_hurried() || self.still.get().is_none_or(Still::is_gone)
    }

    pub(super) fn joined(&self) {
        self.processes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn left(&self) {
        self.processes.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many processes it has.
    pub(super) fn processes(&self) -> usize {
        self.processes.load(Ordering::Relaxed)
    }
}

/// The registered ranges of an image, and its opaque bytes.
fn read_description(record: PageImageRecord) -> Result<(Layout, Vec<u8>), String> {
    let image = record.description().ok_or("it was removed")?;
    // Opened anew: the guardian's descriptor keeps its place.
    let mut file = std::fs::File::open(format!("/proc/self/fd/{}", image.descriptor)).map_err(|e| e.to_string())?;
    let mut bytes = vec![0; (image.ranges * 16 + image.image_bytes) as usize];
    file.read_exact(&mut bytes).map_err(|e| e.to_string())?;
    let opaque = bytes.split_off((image.ranges * 16) as usize);
    Ok((Layout::decode(&bytes).ok_or("its ranges are not sorted")?, opaque))
}

impl Server {
    /// Opens an image and begins to serve all its processes. Waits for the store.
    pub(super) fn open_image(self: &Arc<Self>, index: usize) {
        if !lock(&self.opening).insert(index) {
            return;
        }
        let record = self.board.image(index);
        let known = lock(&self.images).get(&index).cloned();
        let image = match known.filter(|known| known.serial == record.serial()) {
            Some(image) => image,
            None => {
                let image = Arc::new(self.open_source(record));
                lock(&self.images).insert(index, Arc::clone(&image));
                image
            }
        };
        self.waiting().filter(|record| record.image() == index).for_each(|record| self.take_over(record, &image));
        lock(&self.opening).remove(&index);
        // Others may have come and been turned away.
        if self.waiting().any(|record| record.image() == index) {
            self.demand.open(index);
        }
    }

    fn open_source(&self, record: PageImageRecord) -> PageImage {
        let (layout, opaque) = match read_description(record) {
            Ok(read) => read,
            Err(reason) => {
                return PageImage::new(record, Layout::default(), Arc::new(Lost(reason.clone())), Some(reason));
            }
        };
        let start = Instant::now();
        let mut tries = 0;
        let reason = loop {
            match self.opener.open(&opaque) {
                Ok(source) => return PageImage::new(record, layout, source, None),
                Err(error @ SourceError::Permanent(_)) => break chain(&error),
                Err(error @ SourceError::Transient(_)) if start.elapsed() > self.options.give_up => {
                    break chain(&error);
                }
                Err(SourceError::Transient(_)) => {
                    self.board.add(Word::Retries, 1);
                    tries += 1;
                    std::thread::sleep(backoff(tries));
                }
            }
        };
        PageImage::new(record, layout, Arc::new(Lost(reason.clone())), Some(reason))
    }

    /// Goes on with a process where its record says that it is.
    fn take_over(self: &Arc<Self>, record: ProcessRecord, image: &Arc<PageImage>) {
        if record.pages().is_none() {
            let missing: Missing<'_> = record.missing(image.layout.pages());
            for (_, numbers) in image.source.ranges().iter().flat_map(|range| image.layout.numbers(range)) {
                missing.set(&numbers);
            }
            record.begin(&Space::new(&image.layout), image.layout.pages());
        }
        let process = match Process::new(record, image, &self.claims) {
            Ok(process) => process,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return,
            Err(error) => {
                // Only if the descriptor is none: there is nothing to serve.
                tracing::error!(%error, image = image.name, "a process has no descriptor");
                record.free();
                return;
            }
        };
        {
            let mut book = lock(&process.book);
            for event in record.unapplied() {
                self.apply_again(&process, &mut book, event);
            }
            process.wake_all(&book);
            if image.record.is_parked() && record.pid().is_some() {
                image.keep_still(&process);
            }
            self.enlist(&process);
            if book.doomed {
                self.demand.doom(Arc::clone(&process));
            }
        }
        match &image.lost {
            Some(reason) => self.doom(&process, reason),
            None => self.settle(&process),
        }
    }
}
