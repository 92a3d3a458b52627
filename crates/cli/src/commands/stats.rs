//! `pando stats`.

use std::process::ExitCode;

use anyhow::Result;
use api::{SandboxState, Usage};
use base::{id::SandboxId, text};
use serde::Serialize;

use crate::{
    exit,
    output::{self, Column},
    sandbox_id::{Among, SandboxName},
    target::Target,
};

/// Show what running sandboxes use at this moment: CPU, memory and disk.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Identifiers of the sandboxes, their beginnings, or their names. Default: all that run.
    #[arg(value_name = "SANDBOX")]
    ids: Vec<SandboxName>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// One sandbox, as it is printed.
#[derive(Debug, Serialize)]
struct Row {
    id: SandboxId,
    /// None: it does not run.
    #[serde(flatten)]
    usage: Option<Usage>,
}

pub(crate) async fn run(args: Args, target: &dyn Target) -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    let ids = if args.ids.is_empty() {
        let all = target.list(Among::Node).await?.into_iter();
        all.filter(|shown| shown.state == SandboxState::Running).map(|shown| shown.id).collect()
    } else {
        let mut ids = Vec::new();
        for name in &args.ids {
            match name.find(Among::Node, target).await {
                Ok(id) => ids.push(id),
                Err(error) => code = exit::report(&error),
            }
        }
        ids
    };
    let usages = target.usage(&ids).await?;
    let rows: Vec<Row> = ids.into_iter().zip(usages).map(|(id, usage)| Row { id, usage }).collect();
    if args.json {
        output::json(&rows)?;
    } else {
        print(&rows);
    }
    Ok(code)
}

fn print(rows: &[Row]) {
    let cells = |cell: fn(&Usage) -> Option<String>| {
        rows.iter().map(|row| row.usage.as_ref().and_then(cell).unwrap_or_else(|| "-".to_owned())).collect()
    };
    let columns = [
        Column::always("ID", rows.iter().map(|row| row.id.to_string()).collect()),
        Column::always("CPU", cells(|usage| Some(format!("{:.1} %", usage.cpu_percent)))),
        Column::always("MEMORY", cells(|usage| Some(text::bytes(usage.memory_bytes)))),
        Column::always("LIMIT", cells(|usage| usage.memory_limit_bytes.map(text::bytes))),
        Column::always("DISK", cells(|usage| Some(text::bytes(usage.disk_used_bytes)))),
        Column::always("DISK SIZE", cells(|usage| Some(text::bytes(usage.disk_total_bytes)))),
    ];
    output::columns(&columns);
}
