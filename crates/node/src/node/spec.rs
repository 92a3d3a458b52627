//! What a template may ask for.

use base::limits::{
    CPU_MILLIS_MAX, DISK_BYTES_MAX, DISK_BYTES_MIN, MEMORY_BYTES_MAX, PIDS_MAX, READY_TIMEOUT_MS_MAX,
    TEMPLATE_BYTES_MAX,
};
use checkpoint::nouns;
use model::{Image, Limits, Ready, TemplateSpec};

use crate::{
    error::{Error, Result},
    given::Given,
    node::{
        Account,
        exec::{check as check_command, check_path, command},
        volumes::check_mount_points,
    },
};

/// Refuses what no node could build.
pub fn check_spec(spec: &TemplateSpec) -> Result<()> {
    for argv in [&spec.command, &spec.on_fork].into_iter().filter(|argv| !argv.is_empty()) {
        check_command(&command(&Given::default(), spec, &Account::program(), argv.clone(), &[], None))?;
    }
    if let Image::Path(path) = &spec.image {
        check_path("the image", &path.to_string_lossy())?;
    }
    check_ready(spec)?;
    check_limits(&spec.limits)?;
    check_mount_points(&spec.mount_points)?;
    let bytes = nouns::bytes_of(spec);
    if bytes > TEMPLATE_BYTES_MAX {
        return invalid(format!(
            "the template's description has {bytes} bytes as JSON, more than {TEMPLATE_BYTES_MAX}"
        ));
    }
    Ok(())
}

fn check_ready(spec: &TemplateSpec) -> Result<()> {
    if !(1..=READY_TIMEOUT_MS_MAX).contains(&spec.ready_timeout_ms) {
        return invalid("the ready timeout must be between 1 ms and an hour".to_owned());
    }
    match &spec.ready {
        Ready::Listening => Ok(()),
        Ready::Port(0) => invalid("nothing listens on port 0".to_owned()),
        Ready::Port(_) => Ok(()),
        Ready::File(path) if path.is_empty() => invalid("the ready file needs a path".to_owned()),
        Ready::File(path) => check_path("the ready file", path),
        Ready::Command(argv) if argv.is_empty() => invalid("the ready command is empty".to_owned()),
        Ready::Command(argv) => {
            check_command(&command(&Given::default(), spec, &Account::program(), argv.clone(), &[], None))
        }
    }
}

fn check_limits(&Limits { memory_bytes, pids, cpu_millis, disk_bytes }: &Limits) -> Result<()> {
    if memory_bytes == 0 || pids == 0 || cpu_millis == Some(0) {
        return invalid("a limit of nothing lets no program start".to_owned());
    }
    if disk_bytes.is_some_and(|bytes| bytes < DISK_BYTES_MIN) {
        return invalid(format!("a sandbox needs {} MiB of disk at least", DISK_BYTES_MIN >> 20));
    }
    let bounds = [
        ("memory", "bytes", memory_bytes, MEMORY_BYTES_MAX),
        ("processes", "in number", pids, PIDS_MAX),
        ("disk", "bytes", disk_bytes.unwrap_or(0), DISK_BYTES_MAX),
        ("processor time", "thousandths", cpu_millis.map_or(1, u64::from), u64::from(CPU_MILLIS_MAX)),
    ];
    match bounds.into_iter().find(|(_, _, wanted, most)| wanted > most) {
        None => Ok(()),
        Some((what, unit, wanted, most)) => {
            invalid(format!("the limit of {what} is {wanted} ({unit}); the highest is {most}"))
        }
    }
}

fn invalid(message: String) -> Result<()> {
    Err(Error::Invalid { message, hint: None })
}
