//! Taking in an image, beside `tar -x`; a build of steps that were done before.

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use api::{Origin, Ready, Recipe, RecipeStep};

use crate::{
    node::{Ahead, PrivateNode},
    program,
    report::{Goal, Report, median, progress, times},
};

/// Files of the image, and bytes of each: 200 MiB.
const FILES: u32 = 5_000;
const FILE_BYTES: usize = 40 << 10;

/// Steps of the build.
const STEPS: u32 = 10;
const ROUNDS: usize = 5;

pub(super) async fn measure(report: &mut Report) -> Result<()> {
    progress("starting a private node for images and builds");
    let node = PrivateNode::start_with(Ahead::Yes, &[]).await?;
    let measured = compare(&node, report).await;
    node.stop().await?;
    measured
}

async fn compare(node: &PrivateNode, report: &mut Report) -> Result<()> {
    let folder = base::scratch::make("bench-image")?;
    let done = match import(node, &folder, report).await {
        Ok(()) => build(node, report).await,
        failed => failed,
    };
    std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    done
}

fn run(program: &str, arguments: &[&str]) -> Result<Duration> {
    let began = Instant::now();
    let status = Command::new(program).args(arguments).status().with_context(|| format!("cannot run {program}"))?;
    ensure!(status.success(), "{program}: {status}");
    Ok(began.elapsed())
}

async fn import(node: &PrivateNode, folder: &Path, report: &mut Report) -> Result<()> {
    progress("a tarball of 200 MiB");
    let path = |name: &str| folder.join(name).to_str().map(str::to_owned).context("an odd path");
    let (root, archive, target) = (path("root")?, path("root.tar")?, path("target")?);
    let mut bytes = vec![0; FILE_BYTES];
    for n in 0..FILES {
        let directory = format!("{root}/usr/share/{}", n / 100);
        std::fs::create_dir_all(&directory)?;
        base::id::fill_random(&mut bytes);
        std::fs::write(format!("{directory}/{n}"), &bytes)?;
    }
    run("tar", &["-cf", &archive, "-C", &root, "."])?;
    progress("importing it, and unpacking it by tar, in turn");
    let (mut imports, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        std::fs::create_dir_all(&target)?;
        plain.push(run("tar", &["-xf", &archive, "-C", &target])?);
        std::fs::remove_dir_all(&target)?;
        let began = Instant::now();
        node.import_image(archive.as_ref(), "bench:1").await?;
        imports.push(began.elapsed());
        node.remove_image("bench:1").await?;
    }
    let rate = |took: Duration| format!("{:.0} MiB/s", 200.0 / took.as_secs_f64());
    let (ours, floor) = (median(&imports), median(&plain));
    report.add("image: tar -x of 200 MiB in 5,000 files", plain, rate(floor));
    report.add("image: import of that tarball, on the disk", imports, rate(ours));
    report.goal(Goal::at_least("image: import, rate of tar -x", "x", None, times(floor, ours), 0.5));
    Ok(())
}

async fn build(node: &PrivateNode, report: &mut Report) -> Result<()> {
    progress(&format!("a build of {STEPS} steps"));
    node.build("origin", program::python(super::files::FILES, &[&program::PORT.to_string()])).await?;
    let recipe = |name: &str, force| -> Result<Recipe> {
        let command = |n| format!("head -c 1000000 /dev/urandom > /home/user/step{n}");
        Ok(Recipe {
            name: name.parse()?,
            from: Origin::Template("origin".parse()?),
            steps: (0..STEPS).map(|n| RecipeStep::Run { command: command(n), env: Vec::new() }).collect(),
            startup: None,
            on_fork: None,
            ready: Ready::Listening,
            ready_timeout_ms: base::limits::READY_TIMEOUT_MS_DEFAULT,
            limits: api::Limits::default(),
            force,
        })
    };
    let (mut fresh, mut cached) = (Vec::new(), Vec::new());
    for n in 0..ROUNDS {
        for (all, name, force) in [(&mut fresh, format!("fresh{n}"), true), (&mut cached, format!("cached{n}"), false)]
        {
            let began = Instant::now();
            node.build_recipe(&recipe(&name, force)?).await?;
            all.push(began.elapsed());
        }
    }
    report.add("build: 10 steps, each in its own sandbox", fresh, "");
    let took = report.add("build: the same 10 steps, cached", cached, "");
    report.goal(Goal::at_most("build: 10 cached steps", "s", None, took.as_secs_f64(), 1.0));
    Ok(())
}
