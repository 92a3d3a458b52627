//! Faults of a real S3 service, through a proxy that plays them. The service takes minutes to build the first time, so `make soak` runs these
//! (scripts/s3.sh); without it they only say so.

use std::{fs, io::Write, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use testkit::{
    node::Node,
    proxy::{Proxy, Weather},
    runner::{self, Case},
};

use super::faults::{Away, expect_right, expect_starts, outage, shared_database, take, two_nodes};

pub(crate) fn cases() -> Vec<Case> {
    let case = |name: &str, body: fn(&Proxy, &Node, &Node) -> Result<()>| {
        Case::new(format!("faults_s3::{name}"), move || on_s3(body))
    };
    vec![
        case("programs_wait_for_a_service_that_is_away", |proxy, node, other| outage(proxy, node, other)),
        case("late_throttled_broken_and_cut_answers_are_ridden_out", bad_weather),
        case("volumes_are_written_and_read_in_any_weather", volumes),
        case("a_service_that_stays_away_is_named", stays_away),
        case("two_nodes_collect_in_one_bucket", |_, node, other| shared_database(node, other)),
    ]
}

impl Away for Proxy {
    fn set(&self, away: bool) -> Result<()> {
        Proxy::set(self, Weather { outage: away, ..FINE });
        Ok(())
    }
}

/// A first node that reaches the bucket directly, and a second one behind the proxy.
fn on_s3(body: fn(&Proxy, &Node, &Node) -> Result<()>) -> Result<()> {
    let Some(place) = std::env::var("PANDO_TEST_S3").ok().filter(|place| !place.is_empty()) else {
        return runner::skip("it needs an S3 service: scripts/s3.sh starts one, as in `make soak`");
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

const FINE: Weather = Weather { late: 0, throttled: 0, reset: 0, cut: 0, outage: false };
const BAD: [Weather; 5] = [
    Weather { late: 10, ..FINE },
    Weather { throttled: 3, ..FINE },
    Weather { reset: 3, ..FINE },
    Weather { cut: 3, ..FINE },
    Weather { late: 17, throttled: 7, reset: 5, cut: 11, outage: false },
];

fn bad_weather(proxy: &Proxy, node: &Node, other: &Node) -> Result<()> {
    take(node, "warm")?;
    for weather in BAD {
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
        node.ok(&["kill", &id])?;
        node.ok(&["template", "rm", "back"])?;
        other.ok(&["kill", "--all", "--force"])?;
        other.ok(&["template", "rm", "warm"])?;
        // The next one fetches again.
        std::fs::remove_dir_all(other.state.join("store/cache/default"))?;
    }
    proxy.set(FINE);
    node.ok(&["store", "verify"]).map(drop)
}

/// One of so many connections has it: a volume needs few, and keeps them.
const STORMS: [Weather; 5] = [
    Weather { late: 2, ..FINE },
    Weather { throttled: 2, ..FINE },
    Weather { reset: 2, ..FINE },
    Weather { cut: 2, ..FINE },
    Weather { late: 5, throttled: 3, reset: 4, cut: 3, outage: false },
];

/// From now on, also for whoever is connected.
fn change(proxy: &Proxy, weather: Weather) {
    proxy.set(Weather { outage: true, ..FINE });
    std::thread::sleep(Duration::from_millis(300));
    proxy.set(weather);
}

/// What is written behind the proxy is read without it, and the other way round.
fn volumes(proxy: &Proxy, node: &Node, other: &Node) -> Result<()> {
    for (number, weather) in STORMS.into_iter().enumerate() {
        let there = format!("ws{number}");
        change(proxy, weather);
        let before = proxy.counts();
        other.ok(&["volume", "create", &there, "--durability", "object"])?;
        mounted(other, &there, |directory| write_files(directory, number))?;
        other.ok(&["volume", "snapshot", &there, "all"])?;
        change(proxy, weather);
        let verified = other.ok(&["volume", "verify", &there])?;
        ensure!(verified.contains("all of it is sound"), "{weather:?}: {verified}");
        mounted(node, &format!("{there}@all"), |directory| expect_files(directory, number))?;
        let back = format!("back{number}");
        node.ok(&["volume", "create", &back])?;
        mounted(node, &back, |directory| write_files(directory, number + STORMS.len()))?;
        // A node that writes it may not have stored all of it when it is unmounted.
        node.ok(&["volume", "snapshot", &back, "all"])?;
        change(proxy, weather);
        mounted(other, &format!("{back}@all"), |directory| expect_files(directory, number + STORMS.len()))
            .with_context(|| format!("{weather:?}"))?;
        let after = proxy.counts();
        println!("faults_s3: volumes: {weather:?}: {} of {} connections", after.1 - before.1, after.0 - before.0);
        ensure!(after.1 > before.1, "nothing went wrong in {weather:?}");
        for volume in [&there, &back] {
            node.ok(&["volume", "rm", &format!("{volume}@all"), volume])?;
        }
    }
    proxy.set(FINE);
    node.ok(&["store", "verify"]).map(drop)
}

/// Does something in a volume that is mounted on the host.
fn mounted(node: &Node, volume: &str, work: impl Fn(&Path) -> Result<()>) -> Result<()> {
    let directory = node.dir().join("mounted");
    fs::create_dir_all(&directory)?;
    let shown = directory.display().to_string();
    node.ok(&["volume", "mount", volume, &shown])?;
    let worked = work(&directory).with_context(|| format!("in {volume}"));
    let name = volume.split('@').next().unwrap_or_default();
    node.ok(&["volume", "unmount", name, &shown])?;
    worked
}

/// Files of all sizes, some synced, and what is in each; no two of them alike.
fn files(seed: usize) -> impl Iterator<Item = (String, Vec<u8>)> {
    [0, 1, 100, 4096, 70_000, 1 << 20, 9 << 20].into_iter().cycle().take(35).enumerate().map(move |(number, bytes)| {
        let mut state = (seed * 1000 + number) as u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        };
        (format!("{}/{number}", number % 7), std::iter::repeat_with(&mut next).take(bytes).collect())
    })
}

fn write_files(directory: &Path, seed: usize) -> Result<()> {
    for (number, (name, bytes)) in files(seed).enumerate() {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().context("it has a directory")?)?;
        let mut file = fs::File::create(&path)?;
        file.write_all(&bytes)?;
        if number % 10 == 0 {
            file.sync_all()?;
        }
    }
    Ok(())
}

fn expect_files(directory: &Path, seed: usize) -> Result<()> {
    for (name, bytes) in files(seed) {
        ensure!(fs::read(directory.join(&name))? == bytes, "{name} is another one");
    }
    Ok(())
}

fn stays_away(proxy: &Proxy, node: &Node, other: &Node) -> Result<()> {
    take(node, "warm")?;
    let id = other.run("warm", 1)?[0].id.to_string();
    expect_right(other, &id, "warm")?;
    proxy.set(Weather { outage: true, ..FINE });
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
    proxy.set(Weather { throttled: 1, ..FINE });
    let refused = other.pando(&["store", "stats"])?;
    ensure!(refused.code == 1 && refused.stderr.contains("503"), "{refused}");
    proxy.set(FINE);
    ensure!(node.json(&["checkpoint", "ls", "--json"])?.as_array().is_some_and(|list| list.len() == 1), "half of one");
    expect_right(other, &id, "warm")?;
    other.ok(&["kill", &id])?;
    other.ok(&["template", "rm", "warm"])?;
    expect_starts(other, "warm")
}
