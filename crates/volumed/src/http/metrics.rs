//! What volumes cost, and how they are.

use std::{fmt::Write, sync::Arc};

use api::volume::{Meter, Volume, VolumeMeter, VolumeUsage};
use axum::{Json, extract::State, http::header, response::IntoResponse};

use super::{Shared, volumes};
use crate::{failure::Result, worker::table::Table};

/// Each volume, then all of the realm together.
pub(super) async fn usage(State(table): Shared) -> Result<Json<Vec<VolumeMeter>>> {
    let volumes = volumes::present(&table).await?;
    let realm = table.realm().to_owned();
    let mut sum =
        VolumeMeter { realm: realm.clone(), name: None, usage: VolumeUsage::default(), meter: Meter::default() };
    let mut meters: Vec<VolumeMeter> = Vec::with_capacity(volumes.len() + 1);
    for Volume { name, usage, meter, .. } in volumes {
        let usage = usage.unwrap_or_default();
        add(&mut sum, &usage, &meter);
        meters.push(VolumeMeter { realm: realm.clone(), name: Some(name), usage, meter });
    }
    meters.push(sum);
    Ok(Json(meters))
}

fn add(sum: &mut VolumeMeter, usage: &VolumeUsage, meter: &Meter) {
    let pairs = [
        (&mut sum.usage.bytes, usage.bytes),
        (&mut sum.usage.bytes_max, usage.bytes_max),
        (&mut sum.usage.inodes, usage.inodes),
        (&mut sum.usage.inodes_max, usage.inodes_max),
        (&mut sum.meter.operations, meter.operations),
        (&mut sum.meter.read_bytes, meter.read_bytes),
        (&mut sum.meter.written_bytes, meter.written_bytes),
        (&mut sum.meter.http_requests, meter.http_requests),
        (&mut sum.meter.http_read_bytes, meter.http_read_bytes),
        (&mut sum.meter.http_written_bytes, meter.http_written_bytes),
    ];
    for (sum, part) in pairs {
        *sum = sum.saturating_add(part);
    }
}

/// A number of each volume that is open here: its name, type, help, and where it is.
type Metric = (&'static str, &'static str, &'static str, fn(&Volume) -> Option<f64>);

const METRICS: &[Metric] = &[
    ("pando_volume_bytes", "gauge", "Bytes of data.", |volume| Some(volume.usage?.bytes as f64)),
    ("pando_volume_bytes_max", "gauge", "Most bytes of data.", |volume| Some(volume.usage?.bytes_max as f64)),
    ("pando_volume_inodes", "gauge", "Files, directories and all else.", |volume| Some(volume.usage?.inodes as f64)),
    (
        "pando_volume_dirty_bytes",
        "gauge",
        "Data that is in memory and in the node's log only, and 1 KiB for each inode, name or piece of a file that has changed.",
        |volume| Some(volume.open.as_ref()?.dirty_bytes as f64),
    ),
    ("pando_volume_last_commit_age_seconds", "gauge", "Since everything was in the store.", |volume| {
        Some(volume.open.as_ref()?.last_commit_age_ms as f64 / 1000.0)
    }),
    ("pando_volume_store_failures_total", "counter", "Commits that failed since it was opened.", |volume| {
        Some(volume.open.as_ref()?.store_failures as f64)
    }),
    ("pando_volume_read_only", "gauge", "1: nothing in it can be changed here.", |volume| {
        Some(f64::from(u8::from(volume.open.as_ref()?.read_only.is_some())))
    }),
    ("pando_volume_holders", "gauge", "Sandboxes and directories of the host that have it mounted.", |volume| {
        Some(volume.open.as_ref()?.holders.len() as f64)
    }),
    ("pando_volume_operations_total", "counter", "Operations on files, the kernel's caches left out.", |volume| {
        Some(volume.meter.operations as f64)
    }),
    ("pando_volume_read_bytes_total", "counter", "Bytes of files that were read.", |volume| {
        Some(volume.meter.read_bytes as f64)
    }),
    ("pando_volume_written_bytes_total", "counter", "Bytes of files that were written.", |volume| {
        Some(volume.meter.written_bytes as f64)
    }),
    ("pando_volume_http_requests_total", "counter", "Requests by HTTP.", |volume| {
        Some(volume.meter.http_requests as f64)
    }),
    ("pando_volume_http_read_bytes_total", "counter", "Bytes read by HTTP.", |volume| {
        Some(volume.meter.http_read_bytes as f64)
    }),
    ("pando_volume_http_written_bytes_total", "counter", "Bytes written by HTTP.", |volume| {
        Some(volume.meter.http_written_bytes as f64)
    }),
];

/// Of the volumes that are open here: what is asked every few seconds must not ask the store for all others.
pub(super) async fn text(State(table): Shared) -> impl IntoResponse {
    let mut volumes = Vec::new();
    for name in table.open_volumes() {
        volumes.extend(volumes::describe(&table, name).await.ok());
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], render(&table, &volumes))
}

fn render(table: &Arc<Table>, volumes: &[Volume]) -> String {
    let (mut text, realm) = (String::new(), table.realm());
    for (name, kind, help, of) in METRICS {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for volume in volumes {
            if let Some(value) = of(volume) {
                // Names of realms and volumes need no escapes.
                let _ = writeln!(text, "{name}{{realm=\"{realm}\",volume=\"{}\"}} {value}", volume.name);
            }
        }
    }
    text
}
