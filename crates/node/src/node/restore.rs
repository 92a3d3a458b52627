//! Checkpoints on this node: the first run of one restores its zygote, which is then a template like any other.
//!
//! ```text
//! manifest -> layers unpacked into the template's directory -> keeper: zygote restored, its descriptor of faults -> pager -> ready
//! ```

use std::{
    io::{Read, Seek, Write},
    os::fd::OwnedFd,
    path::PathBuf,
    sync::Arc,
    time::Instant,
};

use base::id::TemplateName;
use checkpoint::{BlobRef, Checkpoint, Durable, HotPages, PageImageRoots, Program};
use keeper::protocol::{ByFault, Parcel, RestoreZygote};
use model::BuildTimings;
use store::heads::Head;
use sys::uffd::Uffd;
use tokio::{runtime::Handle, task::JoinHandle};

use super::{
    Node,
    build::Admitted,
    images::{random_suffix, remove_quietly},
    pager_link::Served,
    start::InFlight,
};
use crate::{
    error::{Context, Error, Result, Storing},
    records::TemplateRecord,
    state::{Blank, ZygoteRef},
};

impl Node {
    /// Makes a template of the checkpoint `name`; none if there is no such checkpoint.
    pub(super) async fn restore(self: &Arc<Self>, name: &TemplateName) -> Result<Option<()>> {
        let Some((head, checkpoint)) = self.begin_restore(name).await? else { return Ok(None) };
        let _admitted = Admitted::new(self, &checkpoint.spec.name);
        self.ledger.changed();
        let directory = self.host.config.template_dir(name);
        std::fs::create_dir_all(&directory).at("create", &directory)?;
        let own: Vec<PathBuf> =
            checkpoint.layers.iter().map(|_| directory.join(format!("layer-{}", random_suffix()))).collect();
        let restored = self.restore_into(&checkpoint, head.manifest.to_string(), &own).await;
        self.ledger.metrics.restored(&restored);
        if restored.is_err() {
            for layer in &own {
                remove_quietly(layer).await;
            }
            // Only if nothing else is in it: an earlier build stays.
            let _ = std::fs::remove_dir(&directory);
        }
        restored.map(Some)
    }

    /// Finds a checkpoint and admits its restore. If it is replaced from then on, what is restored counts as lost.
    async fn begin_restore(&self, name: &TemplateName) -> Result<Option<(Head, Checkpoint)>> {
        loop {
            let before = self.state().replacements();
            let Some((head, checkpoint)) = Checkpoint::find(&self.durable, name).await? else { return Ok(None) };
            let mut state = self.state();
            // If one was replaced meanwhile it may be this one.
            if state.replacements() == before {
                // Of many who look for it at once one may have restored it before another has found it.
                state.begin_again(&checkpoint.spec)?;
                return Ok(Some((head, checkpoint)));
            }
        }
    }

    async fn restore_into(self: &Arc<Self>, checkpoint: &Checkpoint, manifest: String, own: &[PathBuf]) -> Result<()> {
        let began = Instant::now();
        let (image_layers, _guard) = self.prepare_image(&checkpoint.spec).await?;
        let [layer, lower @ ..] = own else {
            return Err("it has no layer").storing("restore the checkpoint");
        };
        let image_layers: Vec<PathBuf> = lower.iter().cloned().chain(image_layers).collect();
        let record = TemplateRecord {
            spec: checkpoint.spec.clone(),
            created_ms: checkpoint.created_ms,
            image_layers,
            layer: layer.clone(),
            timings: BuildTimings::default(),
            is_built: self.state().template_record(&checkpoint.spec.name).is_some_and(|earlier| earlier.is_built),
            pages: checkpoint.program.as_ref().map(|_| format!("{}-{}", checkpoint.spec.name, random_suffix())),
            checkpoint: Some(manifest),
            volumes: checkpoint.kept_volumes()?,
        };
        let Some(program) = &checkpoint.program else {
            // Sandboxes of it are blank ones.
            self.unpack(&checkpoint.layers, own).await?;
            return self.install(record, None).await;
        };
        let hot = self.read_hot(program);
        let fetched = self.fetch(program, &checkpoint.layers, own).await?;
        tracing::debug!(name = %checkpoint.spec.name, us = began.elapsed().as_micros() as u64, "fetched what is needed first");
        let layers = record.layers();
        // Whoever has a checkpoint restored will want a sandbox.
        let blank = self.create_blank(&layers, &record.spec.limits);
        let zygote = self.restore_zygote(&record, fetched, hot, began);
        let (zygote, blank) = tokio::join!(zygote, blank);
        let (name, pages, manifest) = (record.spec.name.clone(), record.pages.clone(), record.checkpoint.clone());
        let installed = match zygote {
            Ok(zygote) => self.install(record, Some(zygote)).await,
            Err(error) => Err(error),
        };
        self.take_in(&name, blank).await;
        installed?;
        if let (Some(pages), Some(manifest)) = (pages, manifest) {
            self.record_working_set(&name, manifest, pages);
        }
        Ok(())
    }

    /// Begins to read the working set, while the rest is fetched and built.
    pub(super) fn read_hot(&self, program: &Program) -> JoinHandle<Result<HotPages>> {
        let (program, durable, runtime) = (program.clone(), self.durable.clone(), Handle::current());
        tokio::task::spawn_blocking(move || Ok(HotPages::read(&program, &durable, &runtime)?))
    }

    /// Fetches what is needed first, with its layers into the directories `own`. A pager comes up meanwhile: where the kernel makes it wait
    /// for a control group, others wait with it.
    pub(super) async fn fetch(
        self: &Arc<Self>,
        program: &Program,
        layers: &[BlobRef],
        own: &[PathBuf],
    ) -> Result<Fetched> {
        let (durable, runtime, fetched) = (self.durable.clone(), Handle::current(), program.clone());
        let parcel = tokio::task::spawn_blocking(move || parcel(&fetched, &durable, &runtime));
        let node = Arc::clone(self);
        // Without a connection that is held meanwhile: it has places for a few.
        let pager = tokio::spawn(async move { node.pager.reach().await.map(drop) });
        // Both are waited for in any case: what is unpacked is removed after a failure.
        let (parcel, unpacked) = tokio::join!(parcel, self.unpack(layers, own));
        let parcel = parcel.doing("fetch the checkpoint").flatten();
        match unpacked.and(parcel).and_then(|parcel| Ok((parcel, PageImageRoots::of(program).encode()?))) {
            Ok((parcel, image)) => Ok(Fetched { parcel, image, pager }),
            Err(error) => {
                // One that comes up when nobody asks for it any more would stay.
                drop(pager.await);
                Err(error)
            }
        }
    }

    /// Unpacks layers into the directories `own`, which are not there yet. A failure may leave some.
    pub(super) async fn unpack(&self, layers: &[BlobRef], own: &[PathBuf]) -> Result<()> {
        let (durable, runtime) = (self.durable.clone(), Handle::current());
        let (layers, into) = (layers.to_vec(), own.to_vec());
        let unpack = move || {
            let mut layers = layers.iter().zip(&into);
            layers.try_for_each(|(layer, into)| {
                Checkpoint::unpack_layer(layer, &durable, &runtime, into)?;
                Ok(())
            })
        };
        tokio::task::spawn_blocking(unpack).await.doing("unpack the checkpoint").flatten()
    }

    /// Puts a blank into the pool, if the template came to be.
    async fn take_in(self: &Arc<Self>, name: &TemplateName, blank: Result<Blank>) {
        let unwanted = match blank {
            Ok(blank) => self.state().put_blank(name, blank),
            Err(error) => {
                // The start makes one itself, and tells if it cannot.
                tracing::debug!(%name, error = crate::chain(&error), "no sandbox was made ahead");
                None
            }
        };
        if let Some(blank) = unwanted {
            self.discard(blank.id).await;
        }
    }

    /// Has the keeper restore the zygote, and the pager fill it.
    pub(super) async fn restore_zygote(
        &self,
        record: &TemplateRecord,
        fetched: Fetched,
        hot: JoinHandle<Result<HotPages>>,
        began: Instant,
    ) -> Result<ZygoteRef> {
        let number = self.state().new_zygote();
        let request = RestoreZygote { zygote: number, layers: record.layers() };
        let Fetched { parcel, image, pager } = fetched;
        // The pool would take the keeper's time.
        let in_flight = InFlight::new(self);
        let answer = self.keepers.call(request, [&parcel]).await;
        drop(in_flight);
        let pager = pager.await.doing("start the pager").flatten();
        match answer? {
            Ok(restored) => {
                let total_us = began.elapsed().as_micros() as u64;
                tracing::debug!(name = %record.spec.name, us = total_us, "restored the zygote");
                let timings = BuildTimings { build_us: restored.build_us, total_us, ..BuildTimings::default() };
                let zygote = ZygoteRef::new(number, restored.facts, timings);
                let fill = async {
                    let Some(faults) = restored.file else { return Ok(()) };
                    let (name, pid) = (record.pages.clone().unwrap_or_default(), zygote.engine.pid);
                    pager?;
                    self.fill(Served { name, image, pid, ranges: by_fault(parcel)? }, faults, hot).await
                };
                if let Err(error) = fill.await {
                    self.drop_zygote(number).await;
                    return Err(error);
                }
                tracing::debug!(name = %record.spec.name, us = began.elapsed().as_micros() as u64, "the pager serves it");
                Ok(zygote)
            }
            Err(refusals) => {
                self.ledger.metrics.refused(&refusals);
                let reasons = refusals.into_iter().map(|refusal| refusal.reason).collect();
                Err(Error::Unfit { name: record.spec.name.clone(), reasons })
            }
        }
    }

    /// Puts the working set into a zygote, and hands it over to the pager.
    async fn fill(&self, served: Served, faults: OwnedFd, hot: JoinHandle<Result<HotPages>>) -> Result<()> {
        let hot = hot.await.doing("read the working set").flatten();
        let fill = move || {
            let faults = Uffd::from(faults);
            match hot.and_then(|hot| Ok(hot.fill(&faults)?)) {
                Ok(()) => {}
                // Its pages come by faults like all others; whether they can be had is seen then.
                Err(error) => tracing::warn!(error = crate::chain(&error), "the working set was not filled"),
            }
            OwnedFd::from(faults)
        };
        let faults = tokio::task::spawn_blocking(fill).await.doing("fill the working set")?;
        // It may have waited in vain for as long as it stays, and have ended.
        let client = self.pager.reach().await?;
        self.pager.serve(served, faults, client).await
    }
}

/// What a zygote is restored from.
pub(super) struct Fetched {
    /// Holds a [`Parcel`].
    parcel: OwnedFd,
    /// For the pager.
    image: Vec<u8>,
    /// A pager comes up.
    pager: JoinHandle<Result<()>>,
}

/// What the keeper needs to restore a zygote, in a file without a name. Blocks.
fn parcel(program: &Program, durable: &Durable, runtime: &Handle) -> Result<OwnedFd> {
    let state = program.read_state(durable, runtime)?;
    let reader = program.pages(durable, runtime)?;
    let runs = reader.runs().storing("read the index of the memory")?;
    let pages = runs.iter().map(|run| (run.address(), run.address() + run.bytes())).collect();
    let bytes = postcard::to_stdvec(&Parcel { state, pages }).storing("pack the checkpoint")?;
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let mut file = std::fs::File::from(rustix::fs::memfd_create("pando-parcel", flags).doing("pack the checkpoint")?);
    file.write_all(&bytes).and_then(|()| file.rewind()).doing("pack the checkpoint")?;
    Ok(file.into())
}

/// What the keeper has left in the file.
fn by_fault(parcel: OwnedFd) -> Result<ByFault> {
    let (mut file, mut bytes) = (std::fs::File::from(parcel), Vec::new());
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).doing("read what the keeper says")?;
    postcard::from_bytes(&bytes).storing("read what the keeper says")
}
