//! `pando forward`.

use std::{process::ExitCode, str::FromStr, sync::Arc};

use anyhow::{Context, Result};
use base::id::SandboxId;
use serde::Serialize;
use tokio::{net::TcpListener, task::JoinSet};

use crate::{
    output,
    sandbox_id::{Among, SandboxName},
    target::{Door, Target},
};

const EXAMPLES: &str = "\
Examples:
    pando forward web 8080                       http://127.0.0.1:8080
    pando forward web 9000:8080 0:5432           port 9000, and any free one";

/// Let ports of this machine lead to ports in a sandbox, until Ctrl-C. Prints each as soon as it can be used.
///
/// A node carries any bytes. A server carries HTTP, also with WebSocket and other upgrades. Only programs of this
/// machine can connect.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Identifier of the sandbox, its beginning, or its name.
    #[arg(value_name = "SANDBOX")]
    id: SandboxName,
    /// Ports inside the sandbox, each after the port of this machine if that is another one. 0: any free one.
    #[arg(required = true, value_name = "[LOCAL:]PORT")]
    ports: Vec<Ports>,
    /// Print JSON: one line for each port.
    #[arg(long)]
    json: bool,
}

/// A port of this machine, and the one in the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ports {
    local: u16,
    port: u16,
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (local, port) = text.split_once(':').unwrap_or((text, text));
        match (local.parse(), port.parse()) {
            (Ok(local), Ok(port)) if port != 0 => Ok(Self { local, port }),
            _ => Err("give it as PORT or LOCAL:PORT, numbers up to 65535".to_owned()),
        }
    }
}

/// A port that leads to one, as it is printed.
#[derive(Debug, Serialize)]
struct Forwarded<'a> {
    address: String,
    sandbox: &'a SandboxId,
    port: u16,
}

pub(crate) async fn run(args: Args, target: &dyn Target) -> Result<ExitCode> {
    let id = args.id.find(Among::Node, target).await?;
    let mut served = JoinSet::new();
    for Ports { local, port } in args.ports {
        let door = Arc::new(target.door(&id, port).await?);
        let listener = TcpListener::bind(("127.0.0.1", local)).await;
        let listener = listener.with_context(|| format!("cannot listen on 127.0.0.1:{local}"))?;
        let address = listener.local_addr().context("cannot tell the port")?.to_string();
        if args.json {
            output::json_line(&Forwarded { address, sandbox: &id, port });
        } else {
            outln!("{address} leads to port {port} of {id}");
        }
        served.spawn(serve(listener, door));
    }
    while let Some(ended) = served.join_next().await {
        ended.context("a port is not served any more")??;
    }
    Ok(ExitCode::SUCCESS)
}

async fn serve(listener: TcpListener, door: Arc<Door>) -> Result<()> {
    loop {
        let (stream, _) = listener.accept().await.context("cannot take a connection")?;
        let door = Arc::clone(&door);
        tokio::spawn(async move {
            // The others go on.
            if let Err(error) = door.pass(stream).await {
                errln!("pando: {error:#}");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_is_both_ports() {
        let of = |text: &str| text.parse::<Ports>().map(|ports| (ports.local, ports.port));
        assert_eq!(of("8080"), Ok((8080, 8080)));
        assert_eq!(of("0:80"), Ok((0, 80)));
        for wrong in ["", "0", "80:0", "80:", ":80", "70000", "1:2:3", "web"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
