//! Figures of the kernel's in files of lines.

use std::fs;

use anyhow::{Context, Result};

/// The bytes behind `key`, colon included, which the file gives in kB.
pub(super) fn bytes_of(path: &str, key: &str) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(number.with_context(|| format!("{path} has no {key}"))? << 10)
}
