//! `pando network`.

use std::{collections::BTreeMap, net::IpAddr, process::ExitCode};

use anyhow::Result;
use api::{Addresses, Destination, Domain, HeaderRule, NetworkPolicy};

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
    pando network web --header api.example.com:Authorization=key.txt
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
    #[arg(long, conflicts_with_all = ["no_internet", "allow", "deny", "headers", "bandwidth", "dns"])]
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
    /// A header of its HTTPS requests to a domain, whose value it does not see: api.example.com:Authorization=FILE. The node reads the value from FILE,
    /// and sets it in the place of what the request has. Of another port than 443: api.example.com:8443:NAME=FILE. It allows nothing. May be repeated.
    #[arg(long = "header", value_name = "DOMAIN:NAME=FILE", value_parser = parse_header)]
    headers: Vec<SetHeader>,
    /// Most bytes a second that it sends, and as many that it gets: 10M. Default: no limit.
    #[arg(long, value_name = "BYTES", value_parser = super::template::parse_bytes)]
    bandwidth: Option<u64>,
    /// A DNS server for it, in the place of the node's. May be repeated.
    #[arg(long, value_name = "IP")]
    dns: Vec<IpAddr>,
}

/// A header, as the command line has it.
#[derive(Clone)]
struct SetHeader {
    domain: Domain,
    name: String,
    value: String,
}

impl std::fmt::Debug for SetHeader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SetHeader").field("domain", &self.domain).field("name", &self.name).finish_non_exhaustive()
    }
}

fn parse_header(text: &str) -> Result<SetHeader, String> {
    let parts = text.split_once('=').and_then(|(header, file)| Some((header.rsplit_once(':')?, file)));
    let ((domain, name), file) = parts.ok_or("give DOMAIN:NAME=FILE")?;
    let value = std::fs::read_to_string(file).map_err(|error| format!("cannot read {file}: {error}"))?;
    Ok(SetHeader { domain: domain.parse()?, name: name.to_owned(), value: value.trim_end().to_owned() })
}

impl From<Policy> for NetworkPolicy {
    fn from(Policy { no_internet, allow, deny, headers, bandwidth, dns }: Policy) -> Self {
        let mut rules: Vec<HeaderRule> = Vec::new();
        for SetHeader { domain, name, value } in headers {
            match rules.iter_mut().find(|rule| rule.domain == domain) {
                Some(rule) => drop(rule.headers.insert(name, value)),
                None => rules.push(HeaderRule { domain, headers: BTreeMap::from([(name, value)]) }),
            }
        }
        Self { closed: no_internet, allow, deny, dns, rules, bandwidth }
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
    let names =
        |rule: &HeaderRule| rule.headers.keys().map(|name| format!("{}:{name}", rule.domain)).collect::<Vec<_>>();
    list("header", policy.rules.iter().flat_map(names).collect());
    list("bandwidth", policy.bandwidth.iter().map(|bytes| format!("{bytes} bytes a second")).collect());
    list("dns", policy.dns.iter().map(ToString::to_string).collect());
}
