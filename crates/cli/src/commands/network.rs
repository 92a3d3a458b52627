//! `pando network`.

use std::{net::IpAddr, process::ExitCode};

use anyhow::Result;
use api::{Addresses, Destination, NetworkPolicy};

use crate::{
    output,
    sandbox_id::{Among, SandboxName},
    target::Target,
};

const EXAMPLES: &str = "\
Examples:
    pando network web                              shows it
    pando network web --no-internet --allow 203.0.113.7
    pando network web --no-internet --allow '*.example.com'
    pando network web --deny 198.51.100.0/24
    pando network web --open                       as every sandbox has it";

/// Show or change what a running sandbox may reach. A change replaces all of the policy and holds at once: connections that are not allowed any
/// more end.
///
/// Without a policy a sandbox reaches the internet, but no private network, no other sandbox and not its node. Nothing opens these but the
/// options of the node.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Identifier of the sandbox, its beginning, or its name.
    #[arg(value_name = "SANDBOX")]
    id: SandboxName,
    #[command(flatten)]
    policy: Policy,
    /// Give it the policy that every sandbox has.
    #[arg(long, conflicts_with_all = ["no_internet", "allow", "deny", "dns"])]
    open: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What a sandbox may reach.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Policy {
    /// It reaches nothing but what --allow names. Without --allow names are not resolved either.
    #[arg(long)]
    no_internet: bool,
    /// What it reaches whatever is denied: a network, an address, or a domain. 203.0.113.0/24, 203.0.113.7:443, example.com, *.example.com:8443.
    /// A domain needs --no-internet, and is reached by TLS and HTTP, without a port at 80 and 443. May be repeated.
    #[arg(long, value_name = "NET|DOMAIN[:PORT]")]
    allow: Vec<Destination>,
    /// A network, or an address, that it does not reach, with a port of TCP and UDP or without. May be repeated.
    #[arg(long, value_name = "NET[:PORT]")]
    deny: Vec<Addresses>,
    /// A DNS server for it, in the place of the node's. May be repeated.
    #[arg(long, value_name = "IP")]
    dns: Vec<IpAddr>,
}

impl From<Policy> for NetworkPolicy {
    fn from(Policy { no_internet, allow, deny, dns }: Policy) -> Self {
        Self { closed: no_internet, allow, deny, dns }
    }
}

pub(crate) async fn run(args: Args, target: &dyn Target) -> Result<ExitCode> {
    let id = args.id.find(Among::Node, target).await?;
    let wanted = NetworkPolicy::from(args.policy);
    let policy = if args.open || !wanted.is_default() {
        target.set_network(&id, &wanted).await?;
        wanted
    } else {
        target.network(&id).await?
    };
    if args.json {
        output::json(&policy)?;
    } else {
        show(&policy);
    }
    Ok(ExitCode::SUCCESS)
}

fn show(policy: &NetworkPolicy) {
    let list = |name: &str, texts: Vec<String>| {
        if !texts.is_empty() {
            outln!("{name:<10} {}", texts.join("\n           "));
        }
    };
    outln!("internet   {}", if policy.closed { "closed" } else { "open" });
    list("allow", policy.allow.iter().map(ToString::to_string).collect());
    list("deny", policy.deny.iter().map(ToString::to_string).collect());
    list("dns", policy.dns.iter().map(ToString::to_string).collect());
}
