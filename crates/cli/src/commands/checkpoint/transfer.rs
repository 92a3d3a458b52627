//! `pando checkpoint verify`, `export` and `import`.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    pin::Pin,
    process::ExitCode,
    task::{Context as TaskContext, Poll},
};

use anyhow::{Context, Result};
use api::{Checkpoint, CheckpointVerification};
use base::id::TemplateName;
use http_body_util::BodyExt;
use hyper::{
    Response,
    body::{Body, Bytes, Frame, Incoming},
};
use tempfile::NamedTempFile;
use tokio::sync::mpsc;

use crate::{
    client::Client,
    commands::store::{exit_code, verdict},
    exit::Failure,
    output::{self, Progress},
};

/// Standard input or output instead of a file.
const STANDARD: &str = "-";
/// Bytes read of a file at a time, and parts of it on their way.
const PART_BYTES: usize = 256 << 10;
const PARTS: usize = 4;

#[derive(Debug, clap::Args)]
pub(super) struct VerifyArgs {
    /// Name of the checkpoint.
    name: TemplateName,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct ExportArgs {
    /// Name of the checkpoint.
    name: TemplateName,
    /// The new file, which only its owner can read; -: standard output.
    file: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(super) struct ImportArgs {
    /// The file; -: standard input.
    file: PathBuf,
    /// Another name than it had.
    #[arg(long)]
    name: Option<TemplateName>,
    /// Take the place of a checkpoint of that name.
    #[arg(long)]
    replace: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) async fn verify(args: &VerifyArgs, client: &Client) -> Result<ExitCode> {
    let seen: CheckpointVerification = client.post(&format!("/checkpoints/{}/verify", args.name), &()).await?;
    if args.json {
        output::json(&seen)?;
    } else {
        let CheckpointVerification { segments, chunks, pages, files, damage, unreachable, .. } = &seen;
        println!("read {segments} segments, {chunks} chunks, {pages} pages of memory, {files} files");
        for found in damage {
            println!("damaged: {}: {}", found.part, found.problem);
        }
        for found in unreachable {
            println!("out of reach: {}: {}", found.part, found.problem);
        }
        println!("{}", verdict(damage.len(), unreachable.len()));
    }
    Ok(exit_code(seen.damage.len(), seen.unreachable.len()))
}

pub(super) async fn export(args: &ExportArgs, client: &Client) -> Result<()> {
    if args.file == Path::new(STANDARD) {
        let answer = ask_for(args, client).await?;
        let mut out = io::stdout();
        write_file(answer, &mut out, &args.name).await?;
        return out.flush().context("cannot write to standard output");
    }
    let taken = || Failure::Usage(format!("{} is there already", args.file.display()));
    if args.file.symlink_metadata().is_ok() {
        return Err(taken().into());
    }
    let at = || format!("cannot write {}", args.file.display());
    let directory = args.file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Mode 0600; gone if anything fails from here on, also when the command is interrupted.
    let mut file = NamedTempFile::new_in(directory).with_context(at)?;
    let answer = ask_for(args, client).await?;
    let bytes = write_file(answer, file.as_file_mut(), &args.name).await?;
    file.as_file().sync_all().with_context(at)?;
    let named = file.persist_noclobber(&args.file);
    named.map_err(|error| match error.error.kind() {
        io::ErrorKind::AlreadyExists => anyhow::Error::from(taken()),
        _ => anyhow::Error::from(error.error).context(at()),
    })?;
    File::open(directory).and_then(|directory| directory.sync_all()).with_context(at)?;
    eprintln!("{}: {}, not encrypted", args.file.display(), output::bytes(bytes));
    Ok(())
}

async fn ask_for(args: &ExportArgs, client: &Client) -> Result<Response<Incoming>> {
    client.get_stream(&format!("/checkpoints/{}/export", args.name)).await
}

/// Writes an answer as it comes, and gives its length.
async fn write_file(answer: Response<Incoming>, out: &mut impl Write, name: &TemplateName) -> Result<u64> {
    let mut progress = Progress::new();
    let (mut body, mut bytes) = (answer.into_body(), 0);
    while let Some(frame) = body.frame().await {
        let part = frame.with_context(|| {
            format!(
                "the export broke off; the node's log says why, and `pando checkpoint verify {name}` what is damaged"
            )
        });
        let part = part?.into_data().unwrap_or_default();
        out.write_all(&part).context("cannot write the file")?;
        bytes += part.len() as u64;
        progress.show(&output::bytes(bytes));
    }
    progress.clear();
    Ok(bytes)
}

pub(super) async fn import(args: &ImportArgs, client: &Client) -> Result<()> {
    let path = args.file.display();
    let file: Box<dyn Read + Send> = if args.file == Path::new(STANDARD) {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(&args.file).with_context(|| format!("cannot open {path}"))?)
    };
    let name = args.name.as_ref().map(|name| format!("&name={name}")).unwrap_or_default();
    let query = format!("/checkpoints?replace={}{name}", args.replace);
    let checkpoint: Checkpoint = client.post_body(&query, send(file)).await?;
    if args.json {
        return output::json(&checkpoint);
    }
    println!("{}", checkpoint.name);
    Ok(())
}

/// Sends a file, read by a thread of its own, which nobody waits for: standard input may never end.
fn send(mut file: Box<dyn Read + Send>) -> FileBody {
    let (sender, parts) = mpsc::channel(PARTS);
    std::thread::spawn(move || {
        let mut progress = Progress::new();
        let (mut buffer, mut bytes) = (vec![0; PART_BYTES], 0);
        loop {
            let part = match file.read(&mut buffer) {
                Ok(0) => return progress.clear(),
                Ok(read) => Ok(Bytes::copy_from_slice(&buffer[..read])),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            bytes += part.as_ref().map_or(0, Bytes::len) as u64;
            progress.show(&output::bytes(bytes));
            let failed = part.is_err();
            if sender.blocking_send(part).is_err() || failed {
                return progress.clear();
            }
        }
    });
    FileBody { parts }
}

struct FileBody {
    parts: mpsc::Receiver<io::Result<Bytes>>,
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.parts.poll_recv(context).map(|part| part.map(|part| part.map(Frame::data)))
    }
}
