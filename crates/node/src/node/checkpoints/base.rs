//! What a checkpoint is taken against: one that is in the store already, whose pages need not be stored again.

use std::path::PathBuf;

use checkpoint::{BlobRef, Checkpoint, Durable, Writing, known_pages, page_reader};
use memory::Known;
use model::TemplateSpec;
use store::{heads::Head, id::ManifestId};
use tokio::runtime::Handle;

use crate::{
    error::{Result, Storing},
    state::RestoredZygote,
};

/// Most images of one checkpoint, and most lists of contents, those it was taken against included: each image may have to be asked for a page,
/// and each list is read by the next one.
const CHAIN_MAX: usize = 8;
/// Most checkpoints that are looked at, the newest first, for one of the same program: a small object each.
const LOOKED_AT_MAX: usize = 32;
/// Most of the same program whose lists of contents are read. One program that was started twice may have nothing in common with itself: its
/// addresses are in its pages, and are others each time.
const ALIKE_MAX: usize = 3;
/// Most heads that are listed for that, in thousands: newer ones beyond are not found.
const LISTS_MAX: usize = 4;
/// One page in so many must be in a checkpoint that is found by its program: what is referred to is kept, also if its name is removed.
const SHARE_MIN: u64 = 8;

/// A checkpoint that is kept for the writing.
pub(super) struct Base {
    /// A zygote that was restored from it: pages whose frames are still this one's are in its images.
    pub(super) zygote: Option<i32>,
    pub(super) manifest: ManifestId,
    /// Its images, newest first.
    pub(super) roots: Vec<BlobRef>,
    /// Its lists of contents, newest first.
    pub(super) contents: Vec<BlobRef>,
    /// Its layers, topmost first, if the last ones of what is captured are these.
    pub(super) layers: Vec<BlobRef>,
}

impl Base {
    /// None if too many are in a row already, or if it has files only.
    fn of(checkpoint: &Checkpoint, manifest: ManifestId, zygote: Option<i32>) -> Option<Self> {
        let program = checkpoint.program.as_ref()?;
        let roots: Vec<BlobRef> = program.images().cloned().collect();
        let fits = roots.len() < CHAIN_MAX && program.contents.len() < CHAIN_MAX;
        fits.then(|| Self { zygote, manifest, roots, contents: program.contents.clone(), layers: Vec::new() })
    }

    /// The pages that are in it and in those that it was taken against.
    pub(super) fn known(&self, durable: &Durable, runtime: &Handle) -> Result<Known> {
        Ok(known_pages(&self.contents, durable, runtime)?)
    }
}

/// The checkpoint that a template was restored from, if that is still what its name stands for. `layers` are captured, topmost first.
pub(super) fn restored(
    RestoredZygote { pid, name, manifest, layers: of_template }: &RestoredZygote,
    layers: &[PathBuf],
    (durable, runtime, writing): (&Durable, &Handle, &Writing),
) -> Result<Option<Base>> {
    let Some(head) = writing.keep(&checkpoint::name_of(name)?)? else { return Ok(None) };
    let now = runtime.block_on(Checkpoint::read(durable, head.manifest))?;
    // Another manifest may stand for the same memory: with a working set, for example.
    if head.manifest.to_string() != *manifest {
        match runtime.block_on(Checkpoint::of_manifest(durable, manifest)) {
            Ok(then) if then.images().eq(now.images()) => {}
            Ok(_) | Err(_) => return Ok(None),
        }
    }
    // What says where its pages are has to be whole: this checkpoint will refer to it.
    page_reader(now.images(), durable, runtime)?.runs().storing("read the index of the memory")?;
    let base = Base::of(&now, head.manifest, Some(*pid));
    // Each restore unpacks them into directories of its own names.
    let is_the_same = of_template.get(..now.layers.len()).is_some_and(|own| layers.ends_with(own));
    Ok(base.map(|base| Base { layers: if is_the_same { now.layers } else { Vec::new() }, ..base }))
}

/// The newest checkpoints of the same program, those of the same command first. Those that cannot be read are passed over: everything can be
/// stored without them.
pub(super) fn alike(spec: &TemplateSpec, durable: &Durable, runtime: &Handle, writing: &Writing) -> Result<Vec<Base>> {
    let mut heads = recent(durable, runtime)?;
    heads.sort_by_key(|head| std::cmp::Reverse(head.updated_ms));
    let mut found = Vec::new();
    for head in heads.into_iter().take(LOOKED_AT_MAX) {
        let Ok(checkpoint) = runtime.block_on(Checkpoint::read(durable, head.manifest)) else { continue };
        if let Some(likeness) = likeness(spec, &checkpoint.spec) {
            found.push((likeness, head, checkpoint));
        }
    }
    found.sort_by_key(|(likeness, ..)| *likeness);
    let mut bases = Vec::new();
    for (_, head, checkpoint) in found.into_iter().take(ALIKE_MAX) {
        // What it was when it was read it must be when it is kept.
        if writing.keep(&head.name)?.is_some_and(|kept| kept.manifest == head.manifest) {
            bases.extend(Base::of(&checkpoint, head.manifest, None));
        }
    }
    Ok(bases)
}

fn recent(durable: &Durable, runtime: &Handle) -> Result<Vec<Head>> {
    let mut heads: Vec<Head> = Vec::new();
    for _ in 0..LISTS_MAX {
        let after = heads.last().map(|head| head.name.clone());
        let mut more = runtime.block_on(Checkpoint::heads(durable, after.as_ref()))?;
        if more.is_empty() {
            break;
        }
        heads.append(&mut more);
    }
    Ok(heads)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Likeness {
    /// The same program with the same arguments.
    Command,
    /// The same program.
    Program,
}

fn likeness(one: &TemplateSpec, other: &TemplateSpec) -> Option<Likeness> {
    if one.image != other.image || one.command.first() != other.command.first() {
        return None;
    }
    Some(if one.command == other.command { Likeness::Command } else { Likeness::Program })
}

/// Whether enough of a program's memory is known, by a sample of it.
pub(super) fn is_worth_keeping(known: &Known, sample: memory::Sample) -> bool {
    known.pages() > 0 && sample.known * SHARE_MIN >= sample.pages.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, command: &[&str]) -> TemplateSpec {
        TemplateSpec {
            name: name.parse().unwrap(),
            image: model::Image::Host,
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            env: Vec::new(),
            cwd: "/".to_owned(),
            ready: model::Ready::Listening,
            ready_timeout_ms: 1,
            limits: model::Limits::default(),
            mount_points: Vec::new(),
            user: None,
            startup: Vec::new(),
            on_fork: Vec::new(),
        }
    }

    #[test]
    fn programs_are_alike_whatever_their_names() {
        let one = spec("one", &["/bin/a", "x"]);
        assert_eq!(likeness(&one, &spec("two", &["/bin/a", "x"])), Some(Likeness::Command));
        assert_eq!(likeness(&one, &spec("one", &["/bin/a", "y"])), Some(Likeness::Program));
        assert_eq!(likeness(&one, &spec("one", &["/bin/b", "x"])), None);
        let elsewhere = TemplateSpec { image: model::Image::Path("/srv".into()), ..spec("one", &["/bin/a", "x"]) };
        assert_eq!(likeness(&one, &elsewhere), None);
    }
}
