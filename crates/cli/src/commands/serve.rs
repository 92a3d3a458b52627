//! `pando serve`.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use anyhow::Result;
use gateway::{
    domain::{DOMAIN_DEFAULT, Domain},
    serve::Plain,
    tls::Own,
};
use server::Public;

use crate::output::Log;

/// Run a server that E2B's SDKs drive: a node, and the control plane on a TCP port.
///
/// Clients need a few variables: `eval "$(pando env)"`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// Where clients reach it, by TLS or plain HTTP. Port 0: any free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7443")]
    listen: SocketAddr,
    /// The domain: `api.DOMAIN` answers requests, `PORT-ID.DOMAIN` are ports of sandboxes. With a port if clients use another one than
    /// --listen.
    #[arg(long, value_name = "NAME", default_value = DOMAIN_DEFAULT)]
    domain: Domain,
    /// The certificate of the domain and of all names directly below it, as PEM. Default: one of a local authority.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of the certificate, as PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Serve plain HTTP to other machines, too. Keys and files can be read on the way.
    #[arg(long)]
    plain_http: bool,
    /// Root filesystem of the template `base`, and of its warmed variants `python` and `node`: a directory or tarball.
    /// `scripts/base.sh --print-path` makes one.
    #[arg(long, value_name = "PATH", env = "PANDO_BASE")]
    base: Option<PathBuf>,
    /// File that gets the variables for SDKs, as KEY=value lines, as soon as requests are taken.
    #[arg(long, value_name = "FILE")]
    env_file: Option<PathBuf>,
    #[command(flatten)]
    node: super::node::Args,
}

pub(crate) async fn run(args: Args, socket: PathBuf, log: &Log) -> Result<ExitCode> {
    let certificate = args.tls_cert.zip(args.tls_key).map(|(certificate, key)| Own { certificate, key });
    let public = Public {
        listen: args.listen,
        domain: args.domain,
        certificate,
        plain: if args.plain_http { Plain::Anywhere } else { Plain::Loopback },
        base: args.base,
        env_file: args.env_file,
    };
    super::node::run(args.node, socket, log, Some(public)).await
}
