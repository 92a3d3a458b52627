//! A pull, from the name of an image to an oci-layout with all that the node lacks of it.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use futures::{FutureExt, StreamExt, TryStreamExt};
use images::{Blob, DOCUMENT_BYTES_MAX, Digest, Images, Layout, Listing};
use network::Outside;
use tokio::{sync::Semaphore, time::timeout};

use crate::{
    attempts::Attempts,
    background::in_background,
    blob::Download,
    downloads::{self, Downloads, Sweep, Turn},
    error::{Context, Error, Result},
    http::Http,
    limits::{BLOBS_AT_ONCE, BLOBS_BYTES_MAX, INDEXES_MAX, MANIFESTS_AT_ONCE, PULL_MAX, PULLS_MAX, ROOM_MIN},
    meter::{Meter, Tell},
    reference::{Reference, Version},
    session::{Credentials, Session},
    settings::Settings,
};

/// Kinds of documents that have the name of an image: OCI's and Docker's.
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

/// The registry client of a node.
pub struct Registry {
    settings: Settings,
    outside: Outside,
    /// Made when it is needed: a machine without authorities can have none.
    http: OnceLock<Http>,
    downloads: Arc<Downloads>,
    /// Of those that ask for manifests, and of those that download.
    asking: Semaphore,
    slots: Semaphore,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// An image that has arrived. Its directory is this one's alone while it lives.
#[derive(Debug)]
pub struct Fetched {
    layout: Layout,
    _turn: Arc<Turn>,
}

impl Fetched {
    /// Where it is. Layers that the node has are not there.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Removes it. Without that, the next pull finds what is there.
    pub fn remove(self) -> Result<()> {
        downloads::remove(self.layout.path())
    }
}

impl Registry {
    /// Downloads are below `root`. Nothing is connected to yet.
    pub fn new(settings: Settings, outside: Outside, root: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&root).at("create", &root)?;
        let downloads = Downloads::new(root);
        downloads.sweep(Sweep::Stale)?;
        let (asking, slots) = (Semaphore::new(MANIFESTS_AT_ONCE), Semaphore::new(PULLS_MAX));
        Ok(Self { settings, outside, http: OnceLock::new(), downloads: Arc::new(downloads), asking, slots })
    }

    /// What a name means here.
    pub fn reference(&self, name: &str) -> Result<Reference> {
        Reference::parse(name, &self.settings.default)
    }

    /// Removes downloads that nothing works on. Gives how many.
    pub fn prune(&self) -> Result<usize> {
        self.downloads.sweep(Sweep::All)
    }

    /// Downloads what `store` lacks of an image. `tell` hears how far it is.
    ///
    /// It may be dropped at any time, and then leaves what the next pull of the image goes on with, as it does after a failure of the network. Of an
    /// image that is refused nothing is left.
    pub async fn fetch(
        &self,
        reference: &Reference,
        credentials: Option<&Credentials>,
        store: &Images,
        tell: &Tell,
    ) -> Result<Fetched> {
        let http = self.http()?;
        let session = Session::new(http, reference, credentials);
        let fetch = async {
            let manifest = {
                let _asking = self.asking.acquire().await;
                manifest(&session, reference).await?
            };
            let digest = Digest::of(&manifest);
            let turn = Arc::new(self.downloads.turn(&digest).await);
            let _slot = self.slots.acquire().await;
            let downloads = Arc::clone(&self.downloads);
            in_background(move || downloads.sweep(Sweep::Stale)).await?;
            let place = self.downloads.place(&digest);
            let fetched = self.fill(&session, reference, (&place, &manifest), (store, tell), &turn).await;
            if fetched.as_ref().is_err_and(is_useless) {
                // The first error is the one to report. The next pull, or a sweep, tries again.
                if let Err(error) = in_background(move || downloads::remove(&place)).await {
                    tracing::warn!(error = base::error::chain(&error), "a useless download stays");
                }
            }
            Ok(Fetched { layout: fetched?, _turn: turn })
        };
        timeout(PULL_MAX, fetch).await.unwrap_or(Err(Error::TooLong))
    }

    async fn fill(
        &self,
        session: &Session<'_>,
        reference: &Reference,
        (place, manifest): (&std::path::Path, &[u8]),
        (store, tell): (&Images, &Tell),
        turn: &Arc<Turn>,
    ) -> Result<Layout> {
        let layout = Layout::open(place, manifest)?;
        let silent = Meter::new(0, &|_, _| {});
        let config = layout.config();
        let what = format!("the configuration of {}", reference.name());
        let download = Download { session, blob: config, what, meter: &silent };
        download.run(layout.place(&config.digest), Arc::clone(turn)).await?;
        let wanted = layout.wanted(store)?;
        let bytes = wanted.iter().try_fold(0u64, |all, blob| all.checked_add(blob.bytes));
        let bytes = bytes.filter(|bytes| *bytes <= BLOBS_BYTES_MAX).ok_or_else(|| Error::TooLarge {
            what: format!("all layers of {} together", reference.name()),
            bytes_max: BLOBS_BYTES_MAX,
        })?;
        if self.check_room(&layout, &wanted).is_err() {
            let downloads = Arc::clone(&self.downloads);
            in_background(move || downloads.sweep(Sweep::All)).await?;
            self.check_room(&layout, &wanted)?;
        }
        let meter = Meter::new(bytes, tell);
        meter.add(0);
        let mut downloads = Vec::new();
        for blob in &wanted {
            let what = format!("layer {} of {}", blob.digest, reference.name());
            let (place, turn) = (layout.place(&blob.digest), Arc::clone(turn));
            let download = Download { session, blob, what, meter: &meter };
            downloads.push(async move { download.run(place, turn).await }.boxed());
        }
        futures::stream::iter(downloads).buffer_unordered(BLOBS_AT_ONCE).try_collect::<()>().await?;
        Ok(layout)
    }

    fn check_room(&self, layout: &Layout, wanted: &[Blob]) -> Result<()> {
        let root = self.downloads.root();
        let free = sys::file::room_at(root).at("look at the room in", root)?;
        let is_there = |blob: &Blob| std::fs::metadata(layout.place(&blob.digest)).map_or(0, |found| found.len());
        let needed = wanted.iter().map(|blob| blob.bytes.saturating_sub(is_there(blob))).sum::<u64>() + ROOM_MIN;
        if needed <= free {
            return Ok(());
        }
        Err(Error::NoRoom { path: root.to_owned(), needed: needed >> 20, free: free >> 20 })
    }

    fn http(&self) -> Result<&Http> {
        if let Some(http) = self.http.get() {
            return Ok(http);
        }
        let http = Http::new(&self.settings, self.outside.clone())?;
        Ok(self.http.get_or_init(|| http))
    }
}

/// The manifest of the image for this machine, checked.
async fn manifest(session: &Session<'_>, reference: &Reference) -> Result<Vec<u8>> {
    let mut version = reference.version().clone();
    for _ in 0..INDEXES_MAX {
        let document = document(session, &version, reference).await?;
        match Listing::read(&document)? {
            Listing::Image { .. } => return Ok(document),
            Listing::Index(of) => version = Version::Digest(of.digest),
        }
    }
    let why = format!("its index leads to more than {INDEXES_MAX} others");
    Err(Error::Reference { name: reference.name().to_owned(), why })
}

async fn document(session: &Session<'_>, version: &Version, reference: &Reference) -> Result<Vec<u8>> {
    let what = format!("the manifest of {}", reference.name());
    let mut attempts = Attempts::default();
    loop {
        let read = async {
            let mut answer = session.get(&format!("manifests/{version}"), &what, MANIFESTS, 0).await?;
            answer.bytes(DOCUMENT_BYTES_MAX).await
        };
        match read.await {
            Err(error) => attempts.pause_after(error).await?,
            Ok(bytes) => {
                let found = Digest::of(&bytes);
                return match version {
                    Version::Digest(wanted) if *wanted != found => {
                        Err(Error::Digest { what, found: found.to_string() })
                    }
                    Version::Digest(_) | Version::Tag(_) => Ok(bytes),
                };
            }
        }
    }
}

/// Whether what is there of a download is of no use to the next pull.
fn is_useless(error: &Error) -> bool {
    match error {
        Error::Image(error) => !error.is_of_host(),
        Error::Digest { .. }
        | Error::Length { .. }
        | Error::TooLarge { .. }
        | Error::NotFound { .. }
        | Error::Reference { .. } => true,
        Error::Denied { .. } | Error::Redirect { .. } => true,
        Error::Unauthorized { .. }
        | Error::Answer { .. }
        | Error::Unreachable { .. }
        | Error::Tls { .. }
        | Error::BrokenOff { .. }
        | Error::Slow { .. }
        | Error::TooLong
        | Error::Token { .. }
        | Error::NoRoom { .. }
        | Error::Authorities { .. }
        | Error::Client(_)
        | Error::File { .. } => false,
    }
}
