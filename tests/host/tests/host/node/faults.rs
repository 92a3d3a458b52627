//! Faults around checkpoints: store away, objects missing or damaged or deleted by others, full disks, another host. Programs wait or are
//! stopped with a reason, commands say what failed, and nobody ever reads a wrong byte.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use api::SandboxState;
use testkit::{node::Node, postgres::Postgres, runner::Case};

use super::{
    crash::{Choices, number},
    faults_captured::{kept_without, killed_watchers},
    faults_host,
    shared::Shared,
};

pub(crate) fn cases() -> Vec<Case> {
    let case = |name: &str, body: fn(&Shared, &Node, &Node) -> Result<()>| {
        Case::new(format!("faults::{name}"), move || two_nodes(None, body))
    };
    vec![
        case("programs_wait_for_a_store_that_is_away", |shared, node, other| outage(&Folder(shared), node, other))
            .slow("the store is away for seconds"),
        case("what_has_not_arrived_is_not_captured", |shared, node, other| {
            killed_watchers(&Folder(shared), node, other)
        }),
        case("a_sandbox_whose_checkpoint_is_damaged_can_be_kept", kept_without),
        case("damage_of_what_a_restore_needs_first_is_named_and_harms_nothing_else", damaged_at_start),
        case("a_damaged_page_stops_who_needs_it_and_the_user_learns_why", damaged_page),
        case("a_missing_working_set_is_done_without", working_set),
        case("deleted_while_it_is_restored", deleted),
        case("a_full_state_directory_fails_restores_and_checkpoints_and_no_running_program", faults_host::full_disk),
        case("a_host_with_other_files_is_refused_with_their_names", faults_host::unfit),
        Case::new("faults::two_nodes_on_postgresql", postgres),
    ]
}

/// Checkpoint of a service with 24 MiB of noise, by node A; what `body` does, with a second node B of the same store.
pub(crate) fn two_nodes(objects: Option<[&str; 2]>, body: impl Fn(&Shared, &Node, &Node) -> Result<()>) -> Result<()> {
    let shared = Shared::new()?;
    let folder = shared.0.join("objects").display().to_string();
    let [first, second] = objects.unwrap_or([&folder, &folder]);
    let node = shared.node_at(first, &shared.database(), "master.keys", None)?;
    node.build_geo("geo", &["--nidx", "2", "--hotels", "2000", "--mb", "24"])?;
    let other = shared.node_at(second, &shared.database(), "master.keys", None)?;
    let done = body(&shared, &node, &other);
    done.with_context(|| {
        format!("log of the first node:\n{}\n\nof the second:\n{}", node.log_tail(), other.log_tail())
    })?;
    other.finish()?;
    node.finish()
}

/// A checkpoint with a value and a file of its own.
pub(crate) fn take(node: &Node, name: &str) -> Result<()> {
    take_of(node, "geo", name)
}

fn take_of(node: &Node, template: &str, name: &str) -> Result<()> {
    let id = node.run(template, 1)?[0].id.to_string();
    node.ask(&id, &format!("POST /write?key=note&value={name}"))?;
    node.shell(&id, &format!("echo {name} > /home/user/note"))?;
    node.ok(&["checkpoint", &id, "--name", name])?;
    node.ok(&["kill", &id]).map(drop)
}

/// All of a copy's memory is right, and its files are.
pub(crate) fn expect_right(node: &Node, id: &str, name: &str) -> Result<()> {
    ensure!(node.ask(id, "GET /verify")?["intact"] == true, "{id} has wrong bytes");
    ensure!(node.ask(id, "GET /state")?["values"]["note"] == name, "{id} is not of {name}");
    ensure!(node.shell(id, "cat /home/user/note")?.trim_end() == name, "files of {id}");
    Ok(())
}

/// A new copy is right; then it and the template are removed, so that the next start restores again.
pub(crate) fn expect_starts(node: &Node, name: &str) -> Result<()> {
    let id = node.run(name, 1)?[0].id.to_string();
    expect_right(node, &id, name)?;
    node.ok(&["kill", &id])?;
    node.ok(&["template", "rm", name]).map(drop)
}

/// A store that can be taken away.
pub(crate) trait Away {
    fn set(&self, away: bool) -> Result<()>;
}

struct Folder<'a>(&'a Shared);

impl Away for Folder<'_> {
    fn set(&self, away: bool) -> Result<()> {
        let (here, there) = (self.0.0.join("objects/realms"), self.0.0.join("away"));
        if away {
            fs::rename(here, there)?
        } else {
            fs::rename(there, here)?
        }
        Ok(())
    }
}

pub(crate) fn outage(store: &dyn Away, node: &Node, other: &Node) -> Result<()> {
    let lasts = Duration::from_secs(number("PANDO_OUTAGE_S").unwrap_or(6));
    take(node, "warm")?;
    take(node, "cold")?;
    let ids: Vec<String> = other.run("warm", 3)?.iter().map(|sandbox| sandbox.id.to_string()).collect();
    store.set(true)?;
    let began = Instant::now();
    std::thread::scope(|scope| -> Result<()> {
        let verify = |id| scope.spawn(move || expect_right(other, id, "warm").map(|()| began.elapsed()));
        let waiting: Vec<_> = ids.iter().map(|id| verify(id)).collect();
        let refused = other.pando(&["create", "cold"])?;
        ensure!(refused.code == 1 && refused.stderr.contains("manifest"), "the store is away: {refused}");
        ensure!(refused.took < Duration::from_secs(60), "{refused}");
        while began.elapsed() < lasts {
            let answered = Instant::now();
            ensure!(other.ps()?.iter().all(|sandbox| sandbox.state == SandboxState::Running), "one was stopped");
            other.inspect(&ids[0])?;
            ensure!(answered.elapsed() < Duration::from_secs(5), "the node took {:?} to answer", answered.elapsed());
            std::thread::sleep(Duration::from_millis(200));
        }
        let ended = waiting.iter().filter(|verified| verified.is_finished()).count();
        store.set(false)?;
        ensure!(ended == 0, "{ended} programs had all their pages without the store");
        for verified in waiting {
            let after = verified.join().map_err(|_| anyhow::anyhow!("panicked"))??;
            ensure!(after >= lasts, "not waited for the store: {after:?}");
        }
        Ok(())
    })?;
    expect_starts(other, "cold")
}

/// Objects below the shared store, by their kind: `manifests`, `segments`, `keys`.
pub(crate) fn objects(shared: &Shared, kind: &str) -> Result<BTreeSet<PathBuf>> {
    let folder = shared.0.join("objects/realms/default").join(kind);
    let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// Does `look` while the file is away, or every 64th byte of it is wrong.
pub(crate) fn without(path: &Path, missing: bool, look: impl FnOnce() -> Result<()>) -> Result<()> {
    let away = path.with_extension("away");
    fs::rename(path, &away)?;
    if !missing {
        let mut bytes = fs::read(&away)?;
        bytes.iter_mut().step_by(64).for_each(|byte| *byte ^= 0x20);
        fs::write(path, bytes)?;
    }
    let looked = look();
    fs::rename(&away, path)?;
    looked.with_context(|| format!("{} {}", path.display(), if missing { "missing" } else { "damaged" }))
}

fn damaged_at_start(shared: &Shared, node: &Node, other: &Node) -> Result<()> {
    take(node, "good")?;
    let before = [objects(shared, "manifests")?, objects(shared, "segments")?];
    take(node, "bad")?;
    let manifests: Vec<PathBuf> = objects(shared, "manifests")?.difference(&before[0]).cloned().collect();
    let segments: Vec<PathBuf> = objects(shared, "segments")?.difference(&before[1]).cloned().collect();
    ensure!(manifests.len() == 1 && !segments.is_empty(), "{manifests:?} {segments:?}");
    for missing in [true, false] {
        for path in manifests.iter().chain(&segments) {
            without(path, missing, || {
                let name = path.file_name().and_then(|name| name.to_str()).context("no name")?;
                let refused = other.pando(&["create", "bad"])?;
                ensure!(refused.code == 1 && refused.stderr.contains(name), "{refused}");
                let (status, body) = other.api("POST /v1/templates/bad/run", b"{\"count\": 1}")?;
                ensure!(status == 500 && body.contains(name) && body.contains("\"hint\""), "{status} {body}");
                other.expect_only_itself()
            })?;
        }
    }
    expect_starts(other, "good")?;
    expect_starts(other, "bad")?;
    for key in objects(shared, "keys")? {
        let name = key.file_name().and_then(|name| name.to_str()).context("no name")?.to_owned();
        let refuses = |node: &Node| {
            let refused = node.pando(&["create", "good"])?;
            ensure!(refused.code == 1 && refused.stderr.contains(&name), "{refused}");
            Ok(())
        };
        // A node that could not read it when it came up.
        let mut fresh = None;
        without(&key, true, || refuses(fresh.insert(shared.node()?)))?;
        let fresh = fresh.context("no node")?;
        expect_starts(&fresh, "good")?;
        fresh.finish()?;
        // One that could, if it was quick enough, and whose pager cannot. What is not in the working set may be touched at once, or later.
        let fresh = shared.node()?;
        std::thread::sleep(Duration::from_millis(500));
        without(&key, true, || {
            let run = fresh.pando(&["create", "good"])?;
            let told = run.stderr.contains(&name) || run.stderr.contains("does not open");
            ensure!(run.code == 0 || told, "{run}");
            Ok(())
        })?;
        fresh.finish()?;
    }
    Ok(())
}

fn damaged_page(shared: &Shared, node: &Node, other: &Node) -> Result<()> {
    take(node, "good")?;
    let before = objects(shared, "segments")?;
    // Of another process: what it has in common with the good one would not be stored again.
    node.build_geo("other", &["--nidx", "2", "--hotels", "2000", "--mb", "24"])?;
    take_of(node, "other", "bad")?;
    let standing = other.run("good", 1)?[0].id.to_string();
    let ids: Vec<String> = other.run("bad", 2)?.iter().map(|sandbox| sandbox.id.to_string()).collect();
    let segments: Vec<PathBuf> = objects(shared, "segments")?.difference(&before).cloned().collect();
    let largest = segments.iter().max_by_key(|path| fs::metadata(path).map_or(0, |found| found.len()));
    let largest = largest.context("no segment")?;
    without(largest, false, || {
        let name = largest.file_name().and_then(|name| name.to_str()).context("no name")?;
        for id in &ids {
            let asked = other.ask(id, "GET /verify");
            ensure!(asked.is_err(), "{id} has read what was damaged: {asked:?}");
            let deadline = Instant::now() + Duration::from_secs(5);
            let reason = loop {
                let detail = other.inspect(id)?;
                if let Some(reason) = detail.sandbox.reason {
                    ensure!(detail.sandbox.state != SandboxState::Running, "{id} runs: {reason}");
                    break reason;
                }
                ensure!(Instant::now() < deadline, "nobody says why {id} ended: {:?}", detail.sandbox.state);
                std::thread::sleep(Duration::from_millis(50));
            };
            ensure!(reason.contains(name) && reason.contains("damaged"), "{reason}");
            let shown = other.ok(&["inspect", id])?;
            ensure!(shown.contains("because") && shown.contains(name), "for people: {shown}");
        }
        Ok(())
    })?;
    expect_right(other, &standing, "good")?;
    other.ok(&["kill", &ids[0], &ids[1]])?;
    other.ok(&["template", "rm", "bad"])?;
    expect_starts(other, "bad")
}

fn working_set(shared: &Shared, node: &Node, other: &Node) -> Result<()> {
    take(node, "warm")?;
    let before = objects(shared, "segments")?;
    let id = other.run("warm", 1)?[0].id.to_string();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !other.log()?.contains("recorded what copies") {
        ensure!(Instant::now() < deadline, "no working set is recorded");
        std::thread::sleep(Duration::from_millis(50));
    }
    other.ok(&["kill", &id])?;
    other.ok(&["template", "rm", "warm"])?;
    let hot: Vec<PathBuf> = objects(shared, "segments")?.difference(&before).cloned().collect();
    ensure!(hot.len() == 1, "{hot:?}");
    for missing in [true, false] {
        without(&hot[0], missing, || {
            let fresh = shared.node()?;
            let began = Instant::now();
            expect_starts(&fresh, "warm")?;
            ensure!(began.elapsed() < Duration::from_secs(20), "it took {:?}", began.elapsed());
            fresh.finish()
        })?;
    }
    Ok(())
}

/// B restores and runs, A removes and collects: right bytes, or a clear error, or a program that waits until it is stopped.
fn deleted(_: &Shared, node: &Node, other: &Node) -> Result<()> {
    let rounds = number("PANDO_ROUNDS").unwrap_or(2);
    let mut choices = Choices::new("faults::deleted_while_it_is_restored", rounds);
    let (mut right, mut refused, mut stopped) = (0, 0, 0);
    for round in 0..rounds {
        take(node, "warm")?;
        let run = || other.begin(&["create", "warm", "-n", "2", "--json"]);
        let delete = || node.ok(&["checkpoint", "rm", "warm"]).and_then(|_| node.ok(&["store", "gc", "--grace", "0"]));
        let running = match round {
            // The two that take no time limit of a start or of the pager, then anything in between.
            0 => delete().and_then(|_| run())?,
            1 => {
                let mut running = run()?;
                while !running.has_ended()? {
                    std::thread::sleep(Duration::from_millis(2));
                }
                delete()?;
                running
            }
            _ => {
                let running = run()?;
                std::thread::sleep(Duration::from_micros(choices.below(700_000)));
                delete()?;
                running
            }
        };
        let answer = running.end()?;
        match answer.code {
            0 => {
                for sandbox in other.ps()? {
                    match verified(other, sandbox.id.as_str())? {
                        true => right += 1,
                        false => stopped += 1,
                    }
                }
            }
            1 | 4 => {
                refused += 1;
                let known =
                    ["does not exist", "nor a checkpoint warm", "there is no manifest", "no answer within 30000 ms"];
                ensure!(known.iter().any(|known| answer.stderr.contains(known)), "round {round}: {answer}");
            }
            _ => anyhow::bail!("round {round}: {answer}"),
        }
        other.ok(&["kill", "--all", "--force"])?;
        let removed = other.pando(&["template", "rm", "warm"])?;
        ensure!(matches!(removed.code, 0 | 4), "{removed}");
        expect_nothing_later(other)?;
    }
    println!(
        "faults::deleted_while_it_is_restored: {right} copies right, {stopped} lacked pages, {refused} runs refused"
    );
    node.ok(&["store", "verify"]).map(drop)
}

/// A zygote that was stopped while it waits for a page ends when the pager gives up.
fn expect_nothing_later(node: &Node) -> Result<()> {
    const GIVEN_UP: Duration = Duration::from_secs(75);
    let began = Instant::now();
    loop {
        match node.expect_only_itself() {
            Err(_) if began.elapsed() < GIVEN_UP => {}
            found => return found,
        }
    }
}

/// Whether all of a copy's memory is there, and right; not if it waits for pages that are gone.
fn verified(node: &Node, id: &str) -> Result<bool> {
    const PATIENCE: Duration = Duration::from_secs(3);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| node.ask(id, "GET /verify"));
        let deadline = Instant::now() + PATIENCE;
        while !asked.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        if !asked.is_finished() {
            node.ok(&["kill", id])?;
        }
        match asked.join().map_err(|_| anyhow::anyhow!("panicked"))? {
            Ok(answer) => {
                ensure!(answer["intact"] == true, "{id} has wrong bytes");
                Ok(true)
            }
            Err(_) => Ok(false),
        }
    })
}

fn postgres() -> Result<()> {
    let shared = Shared::new()?;
    let server = Postgres::start()?;
    let objects = shared.0.join("objects").display().to_string();
    let node = || shared.node_at(&objects, &server.url(), "master.keys", None);
    let (first, second) = (node()?, node()?);
    first.build_geo("geo", &["--nidx", "2", "--hotels", "2000"])?;
    shared_database(&first, &second)
        .with_context(|| format!("log of the first:\n{}\n\nof the second:\n{}", first.log_tail(), second.log_tail()))?;
    second.finish()?;
    first.finish()
}

/// What two nodes do with names and garbage of one store.
pub(crate) fn shared_database(first: &Node, second: &Node) -> Result<()> {
    take(first, "one")?;
    take(first, "two")?;
    let again = second.ok(&["checkpoint", "ls"])?;
    ensure!(again.contains("one") && again.contains("two"), "{again}");
    let ids = second.run("one", 2)?;
    expect_right(second, ids[0].id.as_str(), "one")?;
    let taken = second.pando(&["checkpoint", ids[0].id.as_str(), "--name", "two"])?;
    ensure!(taken.code == 1 && taken.stderr.contains("there is a checkpoint two already"), "{taken}");
    second.ok(&["checkpoint", ids[1].id.as_str(), "--name", "three"])?;
    first.ok(&["checkpoint", "rm", "one"])?;
    second.ok(&["checkpoint", "rm", "two"])?;
    let [here, there] = [first, second].map(|node| node.begin(&["store", "gc", "--grace", "0", "--json"]));
    for gc in [here?.end()?, there?.end()?] {
        ensure!(gc.code == 0, "two collectors at once: {gc}");
    }
    let gone = second.pando(&["create", "two"])?;
    ensure!(gone.code == 4, "{gone}");
    for node in [first, second] {
        let said = node.ok(&["store", "verify"])?;
        ensure!(said.contains("read 1 heads") && said.contains("all of it is sound"), "{said}");
    }
    let id = first.run("three", 1)?[0].id.to_string();
    expect_right(first, &id, "one")?;
    first.ok(&["kill", &id])?;
    first.ok(&["template", "rm", "three"])?;
    first.ok(&["checkpoint", "rm", "three"])?;
    let last = second.json(&["store", "gc", "--grace", "0", "--json"])?;
    ensure!(last["garbage"]["objects"].as_u64().is_some_and(|objects| objects >= 2), "{last}");
    ensure!(second.json(&["store", "stats", "--json"])?["segments"]["objects"] == 0, "something is left");
    Ok(())
}
