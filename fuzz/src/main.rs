//! All fuzz targets in one program, so that one build serves all: `PANDO_FUZZ_TARGET` names the one that runs. See `scripts/fuzz.sh`.
//!
//! Inputs are what lies *behind* checksums, digests, hashes, compression and seals: the targets put these around them, or nothing that is
//! random would ever come to the parsers. `base::frame` itself is a target of its own.
//!
//! A panic, an overflow, a failed assertion, more than [`HEAP_BYTES_MAX`] in use at once, or more than ten seconds is a finding.

#![no_main]

mod clients;
mod files;
mod messages;
mod pages;
mod parts;

use std::{alloc::System, sync::OnceLock};

use cap::Cap;
use libfuzzer_sys::fuzz_target;

/// Far more than any parser needs for inputs of 64 KiB, far less than sizes that are not checked ask for.
const HEAP_BYTES_MAX: usize = 256 << 20;

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, HEAP_BYTES_MAX);

type Target = fn(&[u8]);

const TARGETS: &[(&str, Target)] = &[
    ("frame", messages::frame),
    ("segment", store::fuzzing::segment),
    ("manifest", store::fuzzing::manifest),
    ("tree_node", store::fuzzing::tree_node),
    ("references_and_keys", messages::references_and_keys),
    ("image_root", pages::image_root),
    ("page_image", pages::page_image),
    ("chunk", pages::chunk),
    ("cluster", pages::cluster),
    ("hot_set", pages::hot_set),
    ("contents", pages::contents),
    ("program_state", files::program_state),
    ("layer_archive", files::layer_archive),
    ("checkpoint", checkpoint::fuzzing::checkpoint),
    ("paused", checkpoint::fuzzing::paused),
    ("image_roots", checkpoint::fuzzing::image_roots),
    ("checkpoint_file", files::checkpoint_file),
    ("exec_stream", messages::exec_stream),
    ("requests", messages::requests),
    ("route", messages::route),
    ("pager_client", pager::fuzzing::client),
    ("keeper", messages::keeper),
    ("records", node::fuzzing::records),
    ("names", clients::names),
    ("bodies", clients::bodies),
    ("paths", clients::paths),
    ("connect", clients::connect),
    ("form", server::fuzzing::form),
    ("headers", clients::headers),
    ("queries", clients::queries),
];

fn target() -> Target {
    static CHOSEN: OnceLock<Target> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let name = std::env::var("PANDO_FUZZ_TARGET").unwrap_or_default();
        let found = TARGETS.iter().find(|(known, _)| *known == name);
        found
            .unwrap_or_else(|| {
                let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
                eprintln!("PANDO_FUZZ_TARGET must be one of: {}", names.join(" "));
                std::process::exit(2)
            })
            .1
    })
}

fuzz_target!(|data: &[u8]| target()(data));
