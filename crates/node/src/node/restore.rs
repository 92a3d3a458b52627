//! Checkpoints on this node: the first run of one restores its zygote, which is then a template like any other.
//!
//! ```text
//! manifest -> layers unpacked into the template's directory -> keeper: zygote restored, its descriptor of faults -> pager -> ready
//! ```

use std::{io::Write, os::fd::OwnedFd, path::PathBuf, sync::Arc, time::Instant};

use api::BuildTimings;
use base::id::TemplateName;
use process::ProgramState;
use tokio::runtime::Handle;

use super::{
    Node, ZYGOTE_DEADLINE,
    build::Admitted,
    images::{random_suffix, remove_quietly},
    pages::Served,
    unexpected,
};
use crate::{
    durable::{Checkpoint, Durable, Storing},
    error::{Context, Error, Result},
    keeper::message::{Parcel, Reply, Request, RestoreZygote},
    records::TemplateRecord,
    state::ZygoteRef,
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
        let zygote = self.restore_zygote(&record, parcel, began).await?;
        let (name, pages) = (record.spec.name.clone(), record.pages.clone());
        self.install(record, zygote).await?;
        if let (Some(pages), None) = (pages, &checkpoint.hot) {
            self.record_working_set(&name, pages);
        }
        Ok(())
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

    /// Has the keeper restore the zygote, and the pager fill it.
    pub(super) async fn restore_zygote(
        &self,
        record: &TemplateRecord,
        parcel: Packed,
        began: Instant,
    ) -> Result<ZygoteRef> {
        let number = self.state().number();
        let keeper = self.keeper("restore the zygote").await?;
        let request = Request::RestoreZygote(RestoreZygote { zygote: number, layers: record.layers() });
        let answer = keeper.call("restore the zygote", request, &[&parcel.file], ZYGOTE_DEADLINE).await?;
        match answer.reply {
            Reply::Built { facts, build_us, .. } => {
                let total_us = began.elapsed().as_micros() as u64;
                tracing::debug!(name = %record.spec.name, us = total_us, "restored the zygote");
                let timings = BuildTimings { build_us, total_us, ..BuildTimings::default() };
                let zygote = ZygoteRef::new(number, facts, timings);
                if let Some(faults) = answer.descriptor
                    && let Err(error) = self.serve(parcel.served(&zygote, record), faults).await
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
