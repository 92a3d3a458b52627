//! Checkpoints on this node: the first run of one restores its zygote, which is then a template like any other.
//!
//! ```text
//! manifest -> layers unpacked into the template's directory -> keeper: zygote restored, its descriptor of faults -> pager -> ready
//! ```

use std::{io::Write, os::fd::OwnedFd, path::PathBuf, sync::Arc, time::Instant};

use api::BuildTimings;
use base::id::TemplateName;
use pager::Client;
use process::ProgramState;
use sys::uffd::Uffd;
use tokio::{runtime::Handle, task::JoinHandle};

use super::{
    Node, ZYGOTE_DEADLINE,
    build::Admitted,
    images::{random_suffix, remove_quietly},
    pages::Served,
    unexpected,
};
use crate::{
    durable::{Checkpoint, Durable, HotPages, Storing},
    error::{Context, Error, Result},
    keeper::message::{Parcel, Reply, Request, RestoreZygote},
    records::TemplateRecord,
    state::{Blank, ZygoteRef},
};

impl Node {
    /// Makes a template of the checkpoint `name`; none if there is no such checkpoint.
    pub(super) async fn restore(self: &Arc<Self>, name: &TemplateName) -> Result<Option<()>> {
        let Some((head, checkpoint)) = Checkpoint::find(&self.durable, name).await? else { return Ok(None) };
        self.state().begin_build(&checkpoint.spec)?;
        let _admitted = Admitted::new(self, &checkpoint.spec.name);
        self.changed();
        let directory = self.config.template_dir(name);
        std::fs::create_dir_all(&directory).at("create", &directory)?;
        let own: Vec<PathBuf> =
            checkpoint.layers.iter().map(|_| directory.join(format!("layer-{}", random_suffix()))).collect();
        let restored = self.restore_into(&checkpoint, head.manifest.to_string(), &own).await;
        if restored.is_err() {
            for layer in &own {
                remove_quietly(layer).await;
            }
            // Only if nothing else is in it: an earlier build stays.
            let _ = std::fs::remove_dir(&directory);
        }
        restored.map(Some)
    }

    async fn restore_into(self: &Arc<Self>, checkpoint: &Checkpoint, manifest: String, own: &[PathBuf]) -> Result<()> {
        let began = Instant::now();
        let image_layers = self.prepare_image(&checkpoint.spec).await?;
        let hot = self.read_hot(checkpoint);
        let parcel = self.fetch(checkpoint, own).await?;
        tracing::debug!(name = %checkpoint.spec.name, us = began.elapsed().as_micros() as u64, "fetched what is needed first");
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
            pages: Some(format!("{}-{}", checkpoint.spec.name, random_suffix())),
            checkpoint: Some(manifest),
        };
        let layers = record.layers();
        // Whoever has a checkpoint restored will want a sandbox.
        let blank = self.create_blank(&layers, &record.spec.limits);
        let zygote = self.restore_zygote(&record, parcel, hot, began);
        let (zygote, blank) = tokio::join!(zygote, blank);
        let (name, pages) = (record.spec.name.clone(), record.pages.clone());
        let installed = match zygote {
            Ok(zygote) => self.install(record, zygote).await,
            Err(error) => Err(error),
        };
        self.take_in(&name, blank).await;
        installed?;
        if let (Some(pages), None) = (pages, &checkpoint.hot) {
            self.record_working_set(&name, pages);
        }
        Ok(())
    }

    /// Begins to read the working set, while the rest is fetched and built.
    pub(super) fn read_hot(&self, checkpoint: &Checkpoint) -> JoinHandle<Result<HotPages>> {
        let (checkpoint, durable, runtime) = (checkpoint.clone(), self.durable.clone(), Handle::current());
        tokio::task::spawn_blocking(move || HotPages::read(&checkpoint, &durable, &runtime))
    }

    /// Fetches what is needed first, with its layers into the directories `own`.
    pub(super) async fn fetch(&self, checkpoint: &Checkpoint, own: &[PathBuf]) -> Result<Packed> {
        let (durable, runtime) = (self.durable.clone(), Handle::current());
        let (fetched, into) = (checkpoint.clone(), own.to_vec());
        let fetch = move || {
            for (layer, into) in fetched.layers.iter().zip(&into) {
                Checkpoint::unpack_layer(layer, &durable, &runtime, into)?;
            }
            parcel(&fetched, &durable, &runtime)
        };
        tokio::task::spawn_blocking(fetch).await.doing("fetch the checkpoint").flatten()
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
        parcel: Packed,
        hot: JoinHandle<Result<HotPages>>,
        began: Instant,
    ) -> Result<ZygoteRef> {
        let number = self.state().number();
        let keeper = self.keeper("restore the zygote").await?;
        let request = Request::RestoreZygote(RestoreZygote { zygote: number, layers: record.layers() });
        let descriptors = [&parcel.file];
        let answer = keeper.call("restore the zygote", request, &descriptors, ZYGOTE_DEADLINE);
        // Beside each other, and both waited for in any case: a pager that comes up when nobody asks for it any more would stay.
        let (answer, client) = tokio::join!(answer, self.reach_pager());
        let answer = answer?;
        match answer.reply {
            Reply::Built { facts, build_us, .. } => {
                let total_us = began.elapsed().as_micros() as u64;
                tracing::debug!(name = %record.spec.name, us = total_us, "restored the zygote");
                let timings = BuildTimings { build_us, total_us, ..BuildTimings::default() };
                let zygote = ZygoteRef::new(number, facts, timings);
                if let Some(faults) = answer.descriptor
                    && let Err(error) = self.fill(parcel.served(&zygote, record), faults, hot, client).await
                {
                    self.drop_zygote(number).await;
                    return Err(error);
                }
                tracing::debug!(name = %record.spec.name, us = began.elapsed().as_micros() as u64, "the pager serves it");
                Ok(zygote)
            }
            Reply::Refused { refusals } => {
                let reasons = refusals.into_iter().map(|(_, reason)| reason).collect();
                Err(Error::Unfit { name: record.spec.name.clone(), reasons })
            }
            other => Err(unexpected("restore the zygote", &other)),
        }
    }

    /// Puts the working set into a zygote, and hands it over to the pager.
    async fn fill(
        &self,
        served: Served,
        faults: OwnedFd,
        hot: JoinHandle<Result<HotPages>>,
        client: Result<Client>,
    ) -> Result<()> {
        let hot = hot.await.doing("read the working set").flatten();
        let fill = move || {
            let faults = Uffd::from(faults);
            match hot.and_then(|hot| hot.fill(&faults)) {
                Ok(()) => {}
                // Its pages come by faults like all others; whether they can be had is seen then.
                Err(error) => tracing::warn!(error = crate::chain(&error), "the working set was not filled"),
            }
            OwnedFd::from(faults)
        };
        let faults = tokio::task::spawn_blocking(fill).await.doing("fill the working set")?;
        self.serve(served, faults, client?).await
    }
}

/// A packed parcel.
pub(super) struct Packed {
    file: OwnedFd,
    /// Mappings whose pages arrive by fault.
    by_fault: Vec<(u64, u64)>,
}

impl Packed {
    fn served(self, zygote: &ZygoteRef, record: &TemplateRecord) -> Served {
        Served {
            name: record.pages.clone().unwrap_or_default(),
            manifest: record.checkpoint.clone().unwrap_or_default(),
            pid: zygote.engine.pid,
            ranges: self.by_fault,
        }
    }
}

/// What the keeper needs to restore a zygote, in a file without a name. Blocks.
fn parcel(checkpoint: &Checkpoint, durable: &Durable, runtime: &Handle) -> Result<Packed> {
    let encoded = checkpoint.read_state(durable, runtime)?;
    let state = ProgramState::decode(&encoded).storing("read the description of the program")?;
    let reader = checkpoint.pages(durable, runtime)?;
    let runs = reader.runs().storing("read the index of the memory")?;
    let pages: Vec<(u64, u64)> = runs.iter().map(|run| (run.address(), run.address() + run.bytes())).collect();
    let by_fault = state.by_fault(&pages);
    let parcel = Parcel { state: encoded, pages };
    let bytes = postcard::to_stdvec(&parcel).storing("pack the checkpoint")?;
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let mut file = std::fs::File::from(rustix::fs::memfd_create("pando-parcel", flags).doing("pack the checkpoint")?);
    file.write_all(&bytes).doing("pack the checkpoint")?;
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).doing("pack the checkpoint")?;
    Ok(Packed { file: file.into(), by_fault })
}
