//! What volumes cost, and how they are.

use std::fmt::Write;

use api::volume::{Meter, Volume, VolumeMeter, VolumeUsage};
use axum::{Json, extract::State, http::header, response::IntoResponse};
use base::telemetry::{self, Metric};

use super::{Shared, volumes};
use crate::failure::Result;

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

/// A number of each volume that is open here, and where it is.
type Number = (&'static Metric, fn(&Volume) -> Option<f64>);

const NUMBERS: &[Number] = &[
    (&telemetry::VOLUME_BYTES, |volume| Some(volume.usage?.bytes as f64)),
    (&telemetry::VOLUME_BYTES_MAX, |volume| Some(volume.usage?.bytes_max as f64)),
    (&telemetry::VOLUME_INODES, |volume| Some(volume.usage?.inodes as f64)),
    (&telemetry::VOLUME_DIRTY_BYTES, |volume| Some(volume.open.as_ref()?.dirty_bytes as f64)),
    (&telemetry::VOLUME_COMMIT_AGE_SECONDS, |volume| Some(volume.open.as_ref()?.last_commit_age_ms as f64 / 1000.0)),
    (&telemetry::VOLUME_STORE_FAILURES, |volume| Some(volume.open.as_ref()?.store_failures as f64)),
    (&telemetry::VOLUME_READ_ONLY, |volume| Some(f64::from(u8::from(volume.open.as_ref()?.read_only.is_some())))),
    (&telemetry::VOLUME_HOLDERS, |volume| Some(volume.open.as_ref()?.holders.len() as f64)),
    (&telemetry::VOLUME_OPERATIONS, |volume| Some(volume.meter.operations as f64)),
    (&telemetry::VOLUME_READ_BYTES, |volume| Some(volume.meter.read_bytes as f64)),
    (&telemetry::VOLUME_WRITTEN_BYTES, |volume| Some(volume.meter.written_bytes as f64)),
    (&telemetry::VOLUME_HTTP_REQUESTS, |volume| Some(volume.meter.http_requests as f64)),
    (&telemetry::VOLUME_HTTP_READ_BYTES, |volume| Some(volume.meter.http_read_bytes as f64)),
    (&telemetry::VOLUME_HTTP_WRITTEN_BYTES, |volume| Some(volume.meter.http_written_bytes as f64)),
];

/// Of the volumes that are open here: a scrape every few seconds must not ask the store for all others.
pub(super) async fn text(State(table): Shared) -> impl IntoResponse {
    let mut volumes = Vec::new();
    for name in table.open_volumes() {
        volumes.extend(volumes::describe(&table, name).await.ok());
    }
    ([(header::CONTENT_TYPE, telemetry::CONTENT_TYPE)], render(table.realm(), &volumes))
}

fn render(realm: &str, volumes: &[Volume]) -> String {
    let mut text = String::new();
    for (Metric { name, kind, help, .. }, of) in NUMBERS {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {}", kind.name());
        for volume in volumes {
            if let Some(value) = of(volume) {
                // Names of realms and volumes need no escapes.
                let _ = writeln!(text, "{name}{{realm=\"{realm}\",volume=\"{}\"}} {value}", volume.name);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_of_volumes_is_rendered() {
        let text = render("test", &[]);
        let rendered: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next()).collect();
        let named = telemetry::ALL.iter().map(|metric| metric.name).filter(|name| name.starts_with("pando_volume_"));
        assert_eq!(rendered, named.collect::<Vec<_>>());
    }
}
