//! `pando store`.

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use api::{GcRequest, KeyRotation, PeerStats, StoreVerification, Tally};
use base::text;
use client::Client;

use crate::{exit, output};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Read everything that checkpoints and volumes need, and name what is damaged. Exits with 1 if something is damaged, with 7 if something
    /// is only out of reach.
    Verify(JsonArgs),
    /// Count what is in the store, and the requests of this node.
    Stats(JsonArgs),
    /// Remove what nothing needs any more: rests of removed checkpoints and volumes, and of interrupted work.
    Gc(GcArgs),
    /// Make the first master key of the file the only one that opens the store. Stored data is not written again.
    ///
    /// Before: put the new key first into the file of every node, keep the old key behind it, and restart the nodes. Then run this on one node.
    /// After: remove the old key from the files.
    RotateKey(JsonArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct JsonArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GcArgs {
    /// Only tell what would be removed.
    #[arg(long)]
    dry_run: bool,
    /// Spare what was written less than this ago, by the store's own clock: 0, 90s, 10m. Default: an hour. What is being written is always
    /// spared. Readers need this time to finish with a checkpoint that was removed meanwhile.
    #[arg(long, value_name = "TIME", value_parser = parse_grace)]
    grace: Option<Duration>,
    /// Also empty this node's cache of the store.
    #[arg(long)]
    cache: bool,
    /// Print JSON, with the keys of the objects.
    #[arg(long)]
    json: bool,
}

/// As other times, but none at all is a grace, too.
fn parse_grace(text: &str) -> Result<Duration, String> {
    match text {
        "0" | "0s" => Ok(Duration::ZERO),
        _ => super::template::parse_time(text),
    }
}

pub(crate) async fn run(command: Command, client: &Client) -> Result<ExitCode> {
    match command {
        Command::Verify(args) => return verify(&args, client).await,
        Command::Stats(args) => stats(&args, client).await?,
        Command::Gc(args) => collect(&args, client).await?,
        Command::RotateKey(args) => rotate_key(&args, client).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn verify(args: &JsonArgs, client: &Client) -> Result<ExitCode> {
    let seen = client.verify_store().await?;
    if args.json {
        output::json(&seen)?;
    } else {
        let StoreVerification { heads, manifests, nodes, segments, chunks, damage, unreachable } = &seen;
        outln!("read {heads} heads, {manifests} manifests, {nodes} tree nodes, {segments} segments, {chunks} chunks");
        for found in damage {
            outln!("damaged: {} (needed by {})", found.problem, found.heads.join(", "));
        }
        for found in unreachable {
            outln!("out of reach: {} (needed by {})", found.problem, found.heads.join(", "));
        }
        outln!("{}", verdict(damage.len(), unreachable.len()));
    }
    Ok(exit_code(seen.damage.len(), seen.unreachable.len()))
}

/// The last line for people.
pub(super) fn verdict(damaged: usize, unreachable: usize) -> String {
    let parts = |count: usize| if count == 1 { "1 part is".to_owned() } else { format!("{count} parts are") };
    let said = [(damaged, "damaged"), (unreachable, "out of reach")].into_iter().filter(|(count, _)| *count > 0);
    let said: Vec<String> = said.map(|(count, what)| format!("{} {what}", parts(count))).collect();
    if said.is_empty() { "all of it is sound".to_owned() } else { said.join(", ") }
}

/// Damage is a failure, though not of the command. What is only out of reach may be sound.
pub(super) fn exit_code(damaged: usize, unreachable: usize) -> ExitCode {
    match (damaged, unreachable) {
        (0, 0) => ExitCode::SUCCESS,
        (0, _) => ExitCode::from(exit::OUT_OF_REACH),
        _ => ExitCode::FAILURE,
    }
}

async fn stats(args: &JsonArgs, client: &Client) -> Result<()> {
    let stats = client.store_stats().await?;
    if args.json {
        return output::json(&stats);
    }
    let lines = [
        ("objects in", stats.objects.clone()),
        ("heads", stats.heads.to_string()),
        ("leases", stats.leases.to_string()),
        ("manifests", tally(stats.manifests)),
        ("segments", tally(stats.segments)),
        ("keys", tally(stats.keys)),
        ("unknown", tally(stats.unknown)),
        ("needed", tally(stats.kept)),
        ("cache", format!("{} of {}", text::bytes(stats.cache_bytes), text::bytes(stats.cache_bytes_max))),
        (
            "chunks read",
            format!(
                "{} from the cache, {} from other nodes, {} from the store; {} did not open",
                stats.reads.cached, stats.reads.from_peers, stats.reads.fetched, stats.reads.broken
            ),
        ),
        ("peers", peers(&stats.peers)),
        (
            "requests",
            format!(
                "{}, {} of them again, {} failed; {} written, {} read",
                stats.requests.attempts,
                stats.requests.retries,
                stats.requests.errors,
                text::bytes(stats.requests.bytes_out),
                text::bytes(stats.requests.bytes_in)
            ),
        ),
    ];
    for (what, value) in lines {
        outln!("{what:<12} {value}");
    }
    Ok(())
}

pub(super) async fn collect(args: &GcArgs, client: &Client) -> Result<()> {
    let grace_ms = args.grace.map(|grace| grace.as_millis() as u64);
    let request = GcRequest { dry_run: args.dry_run, grace_ms, cache: args.cache };
    let report = client.collect(&request).await?;
    if args.json {
        return output::json(&report);
    }
    outln!("{} {}", if report.dry_run { "would remove" } else { "removed" }, tally(report.garbage));
    outln!("spared as too young: {}", tally(report.young));
    outln!("needed: {}", tally(report.kept));
    if report.leases_ended > 0 {
        outln!("leases that were over: {}", report.leases_ended);
    }
    if let Some(bytes) = report.cache_bytes {
        outln!("cached on this node: {}", text::bytes(bytes));
    }
    Ok(())
}

async fn rotate_key(args: &JsonArgs, client: &Client) -> Result<()> {
    let done = client.rotate_key().await?;
    if args.json {
        return output::json(&done);
    }
    let KeyRotation { master, keys, wrapped } = done;
    outln!("wrapped by master key {master:?}, and by no other one: {keys} data keys, {wrapped} of them anew");
    Ok(())
}

fn peers(stats: &PeerStats) -> String {
    let PeerStats { address, known, hits, misses, failures, served, served_bytes, refused } = stats;
    let at = address.as_ref().map_or_else(|| "serves nobody".to_owned(), |address| format!("serves at {address}"));
    let given = text::bytes(*served_bytes);
    format!(
        "{known} known; {hits} chunks given by them, {misses} not, {failures} failures; {at}: {served} chunks, {given}; {refused} refused"
    )
}

fn tally(tally: Tally) -> String {
    let plural = if tally.objects == 1 { "" } else { "s" };
    format!("{} object{plural}, {}", tally.objects, text::bytes(tally.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_reach_is_not_called_damaged() {
        assert_eq!(verdict(0, 0), "all of it is sound");
        assert_eq!(verdict(1, 0), "1 part is damaged");
        assert_eq!(verdict(0, 2), "2 parts are out of reach");
        assert_eq!(verdict(3, 1), "3 parts are damaged, 1 part is out of reach");
    }

    #[test]
    fn a_grace_may_be_nothing() {
        assert_eq!(parse_grace("0"), Ok(Duration::ZERO));
        assert_eq!(parse_grace("10m"), Ok(Duration::from_secs(600)));
        assert!(parse_grace("soon").is_err());
    }
}
