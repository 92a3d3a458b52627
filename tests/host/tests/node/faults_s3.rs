//! Faults of a real S3 service, through a proxy that plays them. The service takes minutes to build the first time, so `make soak` runs these
//! (scripts/s3.sh); without it they only say so.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pando_host_tests::{
    node::Node,
    proxy::{Proxy, Weather},
    runner::Case,
};

use crate::faults::{Away, expect_right, expect_starts, outage, shared_database, take, two_nodes};

pub(crate) fn cases() -> Vec<Case> {
    let case = |name: &str, body: fn(&Proxy, &Node, &Node) -> Result<()>| {
        let name = format!("faults_s3::{name}");
        Case::new(name.clone(), move || on_s3(&name, body))
    };
    vec![
        case("programs_wait_for_a_service_that_is_away", |proxy, node, other| outage(proxy, node, other)),
        case("late_throttled_broken_and_cut_answers_are_ridden_out", bad_weather),
        case("a_service_that_stays_away_is_named", stays_away),
        case("two_nodes_collect_in_one_bucket", |_, node, other| shared_database(node, other)),
    ]
}

impl Away for Proxy {
    fn set(&self, away: bool) -> Result<()> {
        Proxy::set(self, Weather { outage: away, ..Weather::default() });
        Ok(())
    }
}

/// A first node that reaches the bucket directly, and a second one behind the proxy.
fn on_s3(name: &str, body: fn(&Proxy, &Node, &Node) -> Result<()>) -> Result<()> {
    let Some(place) = std::env::var("PANDO_TEST_S3").ok().filter(|place| !place.is_empty()) else {
        println!("{name}: not run, it needs an S3 service: scripts/s3.sh, as in `make soak`");
        return Ok(());
    };
    let (bucket, settings) = place.split_once('?').context("no settings")?;
    let endpoint = settings.split('&').find_map(|setting| setting.strip_prefix("endpoint=http://"));
    let endpoint = endpoint.context("PANDO_TEST_S3 has no endpoint")?;
    let proxy = Proxy::start(endpoint)?;
    let prefix = format!("{bucket}/{}", base::id::random_uuid());
    let rest = "region=us-east-1&path_style=true";
    let direct = format!("{prefix}?endpoint=http://{endpoint}&{rest}");
    let through = format!("{prefix}?endpoint={}&{rest}", proxy.url());
    two_nodes(Some([&direct, &through]), |_, node, other| body(&proxy, node, other))
}

fn bad_weather(proxy: &Proxy, node: &Node, other: &Node) -> Result<()> {
    take(node, "warm")?;
    let kinds = [
        Weather { late: 10, ..Weather::default() },
        Weather { throttled: 3, ..Weather::default() },
        Weather { reset: 3, ..Weather::default() },
        Weather { cut: 3, ..Weather::default() },
        Weather { late: 17, throttled: 7, reset: 5, cut: 11, outage: false },
    ];
    for weather in kinds {
        proxy.set(weather);
        let before = proxy.counts();
        let ids: Vec<String> = other.run("warm", 2)?.iter().map(|sandbox| sandbox.id.to_string()).collect();
        ids.iter().try_for_each(|id| expect_right(other, id, "warm")).with_context(|| format!("{weather:?}"))?;
        // Written through it, too; read by the other node.
        other.ok(&["checkpoint", &ids[0], "--name", "back", "--replace"])?;
        let after = proxy.counts();
        println!("faults_s3: {weather:?}: {} of {} requests", after.1 - before.1, after.0 - before.0);
        ensure!(after.1 > before.1, "nothing went wrong in {weather:?}");
        let id = node.run("back", 1)?[0].id.to_string();
        expect_right(node, &id, "warm")?;
        node.ok(&["rm", &id])?;
        node.ok(&["template", "rm", "back"])?;
        other.ok(&["rm", "--all"])?;
        other.ok(&["template", "rm", "warm"])?;
        // The next one fetches again.
        std::fs::remove_dir_all(other.state.join("store/cache/default"))?;
    }
    proxy.set(Weather::default());
    node.ok(&["store", "verify"]).map(drop)
}

fn stays_away(proxy: &Proxy, node: &Node, other: &Node) -> Result<()> {
    take(node, "warm")?;
    let id = other.run("warm", 1)?[0].id.to_string();
    expect_right(other, &id, "warm")?;
    proxy.set(Weather { outage: true, ..Weather::default() });
    for command in [vec!["checkpoint", &id, "--name", "kept"], vec!["store", "stats"], vec!["store", "verify"]] {
        let refused = other.pando(&command)?;
        let code = if command.contains(&"verify") { 7 } else { 1 };
        ensure!(
            refused.code == code && refused.to_string().contains("out of reach or overloaded"),
            "{command:?}: {refused}"
        );
        ensure!(!refused.to_string().contains("damaged"), "{command:?}: {refused}");
        ensure!(refused.took < Duration::from_secs(60), "{command:?}: {refused}");
    }
    proxy.set(Weather { throttled: 1, ..Weather::default() });
    let refused = other.pando(&["store", "stats"])?;
    ensure!(refused.code == 1 && refused.stderr.contains("503"), "{refused}");
    proxy.set(Weather::default());
    ensure!(node.json(&["checkpoint", "ls", "--json"])?.as_array().is_some_and(|list| list.len() == 1), "half of one");
    expect_right(other, &id, "warm")?;
    other.ok(&["rm", &id])?;
    other.ok(&["template", "rm", "warm"])?;
    expect_starts(other, "warm")
}
