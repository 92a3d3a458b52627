//! Where checkpoints and volumes are while they are measured: objects, names and keys that several nodes share, one after the other.

use std::{
    ffi::OsString,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use store::object::{Location, Objects, RequestOptions};

use super::{proxy::Proxy, report::median};

/// Requests that a latency is looked at by.
const PROBES: u32 = 11;

/// A store of its own. All of it is removed when dropped.
pub(super) struct Place {
    dir: PathBuf,
    location: Location,
}

/// The way from a node to the objects.
pub(super) struct Way {
    place: Arc<Place>,
    location: Location,
    proxy: Option<Proxy>,
}

impl Place {
    /// In a directory of the local disk.
    pub(super) fn local() -> Result<Arc<Self>> {
        let dir = base::scratch::make("bench-store")?;
        let location = Location::Directory(dir.join("objects"));
        Ok(Arc::new(Self { dir, location }))
    }

    /// Below a prefix of its own of a bucket.
    pub(super) fn s3(service: &Location) -> Result<Arc<Self>> {
        let Location::S3(mut s3) = service.clone() else { bail!("{service} is not s3://...") };
        let own = format!("pando-bench-{}", std::process::id());
        s3.prefix = if s3.prefix.is_empty() { own } else { format!("{}/{own}", s3.prefix) };
        Ok(Arc::new(Self { dir: base::scratch::make("bench-store")?, location: Location::S3(s3) }))
    }

    /// Without anything in between.
    pub(super) fn directly(self: &Arc<Self>) -> Way {
        Way { place: self.clone(), location: self.location.clone(), proxy: None }
    }

    /// Each answer comes this much later than it would.
    pub(super) fn delayed(self: &Arc<Self>, latency: Duration) -> Result<Way> {
        let Location::S3(mut s3) = self.location.clone() else { bail!("a directory cannot be far away") };
        let endpoint = s3.endpoint.as_deref().context("--s3 needs endpoint=http://HOST:PORT")?;
        let service = endpoint.strip_prefix("http://").context("the service behind --s3 must speak plain HTTP")?;
        let proxy = Proxy::start(service, latency)?;
        s3.endpoint = Some(format!("http://{}", proxy.address()));
        Ok(Way { place: self.clone(), location: Location::S3(s3), proxy: Some(proxy) })
    }

    async fn remove_objects(location: &Location) -> Result<()> {
        let objects = Objects::open(location, RequestOptions::default())?;
        for object in objects.list("").await? {
            objects.delete(&object.key).await?;
        }
        Ok(())
    }

    /// Also when the measurement was dropped in the middle: on a thread, because a runtime must not wait for itself.
    fn clean_up_bucket(location: Location) -> Result<()> {
        let clean = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(Self::remove_objects(&location))
        };
        std::thread::spawn(clean).join().ok().context("the thread has failed")?
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Location::S3(_) = &self.location
            && let Err(error) = Self::clean_up_bucket(self.location.clone())
        {
            tracing::warn!(location = %self.location, error = format!("{error:#}"), "objects of the bench stay behind");
        }
        if let Err(error) = std::fs::remove_dir_all(&self.dir) {
            tracing::warn!(dir = %self.dir.display(), %error, "cannot remove the store of the bench");
        }
    }
}

impl Way {
    /// For `pando node`.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let database = format!("sqlite://{}?mode=rwc", self.place.dir.join("heads.db").display());
        let keys = self.place.dir.join("master.keys");
        [
            "--objects".into(),
            self.location.to_string().into(),
            "--database".into(),
            database.into(),
            "--master-keys".into(),
            keys.into(),
        ]
        .into()
    }

    /// Bytes that have come from the objects so far, if a proxy in between counts them.
    pub(super) fn bytes(&self) -> Option<u64> {
        self.proxy.as_ref().map(Proxy::bytes)
    }

    /// The objects, by this way.
    pub(super) fn objects(&self) -> Result<Objects> {
        Ok(Objects::open(&self.location, RequestOptions::default())?)
    }

    /// How long a request takes that hardly any bytes are for.
    pub(super) async fn probe(&self) -> Result<Duration> {
        let objects = self.objects()?;
        let key = objects.list("").await?.into_iter().next().context("an empty store")?.key;
        let mut took = Vec::new();
        for _ in 0..PROBES {
            let began = Instant::now();
            objects.head(&key).await?;
            took.push(began.elapsed());
        }
        Ok(median(&took))
    }
}
