//! Files of volumes, without a mount.

use std::path::PathBuf;

use anyhow::Result;
use base::id::VolumeName;
use base::text;
use hyper::header;

use super::State;
use crate::{client::Client, exit::Failure, transfer};

/// Write all of a volume, or of a snapshot, into a tar archive. THE FILE IS NOT ENCRYPTED.
#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    /// Name of the volume, or VOLUME@SNAPSHOT.
    volume: State,
    /// The new file, readable by its owner only; -: standard output.
    file: PathBuf,
}

/// Unpack a tar archive into a volume. Its files replace those of the same path.
#[derive(Debug, clap::Args)]
pub(crate) struct ImportArgs {
    /// Name of the volume.
    volume: VolumeName,
    /// The file; -: standard input.
    file: PathBuf,
    /// Directory of the volume in which it is unpacked.
    #[arg(long, value_name = "DIR", default_value = "/")]
    to: String,
}

/// Print a file of a volume, or of a snapshot.
#[derive(Debug, clap::Args)]
pub(crate) struct CatArgs {
    /// Name of the volume, or VOLUME@SNAPSHOT.
    volume: State,
    /// Path of the file, from the volume's top directory.
    path: String,
}

pub(super) async fn export(args: &ExportArgs, client: &Client) -> Result<()> {
    let path = format!("/volumes/{}/export{}", args.volume.volume, args.volume.query('?'));
    let advice = format!("the node's log says why, and `pando volume verify {}` what is damaged", args.volume.volume);
    if let Some(bytes) = transfer::write(&args.file, client.get_stream(&path), &advice).await? {
        errln!("{}: {}, not encrypted", args.file.display(), text::bytes(bytes));
    }
    Ok(())
}

pub(super) async fn import(args: &ImportArgs, client: &Client) -> Result<()> {
    let path = format!("/volumes/{}/import?path={}", args.volume, encoded(&args.to));
    client.post_body(&path, transfer::read(&args.file)?).await
}

pub(super) async fn cat(args: &CatArgs, client: &Client) -> Result<()> {
    let path = encoded(args.path.trim_start_matches('/'));
    let path = format!("/volumes/{}/files/{path}{}", args.volume.volume, args.volume.query('?'));
    let advice = "the node's log says why";
    let file = async {
        let answer = client.get_stream(&path).await?;
        // Of a directory its entries come, as JSON; what a file has, is not said of what kind it is.
        match answer.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json") {
            true => Err(Failure::Usage(format!("{} is a directory", args.path)).into()),
            false => Ok(answer),
        }
    };
    transfer::write(std::path::Path::new(transfer::STANDARD), file, advice).await.map(drop)
}

/// Percent-encoded but for slashes, as a part of an address (RFC 3986, 2.3).
fn encoded(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    path.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_addresses() {
        assert_eq!(encoded("a b/ü?.txt"), "a%20b/%C3%BC%3F.txt");
        assert_eq!(encoded("plain-1.0/_~"), "plain-1.0/_~");
    }
}
