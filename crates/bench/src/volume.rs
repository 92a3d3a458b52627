//! Volumes on a node that has never seen them, after the one that wrote them was destroyed; and one long file.
//!
//! Every figure of a fresh node is of one of its own: own state directory, empty cache, its processes of volumes not yet started. Starting the node is
//! not measured: the time runs from the request to mount the volume. Each node is killed with all its processes; none gives the volume back.

mod host;
mod neighbours;

use std::{
    collections::HashSet,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use api::volume::VolumeDurability;
use base::id::VolumeName;
use base::text;
use store::object::Objects;
use tokio::task::{JoinSet, spawn_blocking};

use self::{
    host::{Directory, FILE_BYTES, long_read, long_write, read_file, sync, write_files, wrong_files},
    neighbours::{Load, Steps},
};
use super::{
    VolumeArgs,
    node::PrivateNode,
    place::{Place, Way},
    report::{Report, at, duration, median, progress, times},
};

const FILES: [u64; 2] = [1_000, 30_000];
const FILES_LONG: u64 = 1_000_000;
/// Up to so many files, all are read and compared.
const VERIFIED_MAX: u64 = 30_000;
const LONG_BYTES: u64 = 1 << 30;
const LONG_BYTES_QUICK: u64 = 128 << 20;
/// Writes and reads of the long file.
const LONG_ROUNDS: usize = 3;
const LATENCY: Duration = Duration::from_millis(1);
/// Parts of objects fetched at a time to see how fast the store is, and their size.
const FETCHED_AT_ONCE: usize = 8;
const PART_BYTES: u64 = 8 << 20;

pub(super) async fn measure(args: &VolumeArgs) -> Result<Report> {
    let mut report = Report::of(&format!("files of {FILE_BYTES} bytes that cannot be compressed"));
    let directory = Directory::new("mount")?;
    Run { args, directory: &directory, way: &Place::local()?.directly(), label: "directory" }.all(&mut report).await?;
    if let Some(service) = &args.s3 {
        let way = Place::s3(service)?.delayed(LATENCY)?;
        Run { args, directory: &directory, way: &way, label: "S3 at 1 ms" }.all(&mut report).await?;
    }
    report.fact("fresh node", "a node of its own for each sample, the one before it killed with all its processes");
    Ok(report)
}

/// What one place needs.
struct Run<'a> {
    args: &'a VolumeArgs,
    directory: &'a Directory,
    way: &'a Way,
    label: &'a str,
}

impl Run<'_> {
    async fn all(&self, report: &mut Report) -> Result<()> {
        let mut smallest = None;
        for files in FILES.into_iter().chain((!self.args.quick).then_some(FILES_LONG)) {
            self.attach(files, &mut smallest, report).await?;
        }
        self.neighbours(report).await?;
        self.long_file(report).await
    }

    /// Small steps in one volume, alone and beside another one.
    async fn neighbours(&self, report: &mut Report) -> Result<()> {
        let Self { label, directory, .. } = self;
        let (node, beside) = (PrivateNode::fresh(self.way).await?, Directory::new("busy")?);
        for (name, place) in [("quiet", directory.path()), ("busy", beside.path())] {
            let name: VolumeName = name.parse()?;
            node.create_volume(&name, VolumeDurability::Local).await?;
            node.mount(&name, place).await?;
        }
        for load in Load::ALL {
            progress(&format!("a quiet volume beside one with much to do ({load:?}), {label}"));
            let (quiet, busy) = (directory.path().to_owned(), beside.path().to_owned());
            let Steps { mut alone, beside } =
                spawn_blocking(move || neighbours::measure(&quiet, &busy, load)).await??;
            let mut sorted = beside.clone();
            alone.sort_unstable();
            sorted.sort_unstable();
            let of_alone = |percent| times(at(&sorted, percent), at(&alone, percent));
            let beside_text = format!("{:.2}x of alone; p99 {:.2}x", of_alone(50), of_alone(99));
            let what = match load {
                Load::Write => "write long files",
                Load::Read => "read long files",
                Load::Names => "make, rename and remove files",
            };
            let case =
                format!("small file written and renamed beside 8 threads that {what} in another volume, {label}");
            report.add(case, beside, beside_text);
        }
        beside.unmount()?;
        self.destroy(node).await
    }

    /// After it nothing of the node is there.
    async fn destroy(&self, mut node: PrivateNode) -> Result<()> {
        node.kill().await?;
        self.directory.unmount()?;
        node.clean_up().await
    }

    /// Another node takes over so many files.
    async fn attach(&self, files: u64, smallest: &mut Option<Duration>, report: &mut Report) -> Result<()> {
        let Self { label, directory, .. } = self;
        progress(&format!("{files} files are written, {label}"));
        let name: VolumeName = format!("files-{files}").parse()?;
        let node = PrivateNode::fresh(self.way).await?;
        node.create_volume(&name, VolumeDurability::Object).await?;
        node.mount(&name, directory.path()).await?;
        let place = directory.path().to_owned();
        let idle = node.memory_of_volumes()?;
        let wrote = spawn_blocking(move || write_files(&place, files)).await??;
        // The kernel writes the new files to the disk for seconds, and each of these waits for the same disk.
        spawn_blocking(rustix::fs::sync).await?;
        self.states(&node, &name, files, report).await?;
        let beside = format!("{} with an empty one", text::bytes(idle));
        let fact = format!("{}; {beside}", text::bytes(node.memory_of_volumes()?));
        report.fact(format!("memory of the processes of volumes that have {files} files, {label}"), fact);
        self.destroy(node).await?;
        report.fact(format!("{files} files written and synced to the store, {label}"), duration(wrote));

        progress(&format!("{files} files on fresh nodes, {label}"));
        let (mut mounted, mut first) = (Vec::new(), Vec::new());
        for round in 0..self.args.rounds {
            let node = PrivateNode::fresh(self.way).await?;
            let began = Instant::now();
            node.mount(&name, directory.path()).await?;
            mounted.push(began.elapsed());
            let number = u64::from(round) * 7919 % files;
            ensure!(read_file(directory.path(), number)?, "file {number} of {files} is wrong");
            first.push(began.elapsed());
            if round + 1 == self.args.rounds && files <= VERIFIED_MAX {
                let place = directory.path().to_owned();
                let wrong = spawn_blocking(move || wrong_files(&place, files)).await??;
                ensure!(wrong == 0, "{wrong} of {files} files are wrong on another node");
                report.fact(format!("{files} files compared on the last of these nodes, {label}"), "none is wrong");
            }
            self.destroy(node).await?;
        }
        let median = median(&first);
        let beside = format!(
            "{:.2}x of the smallest; mounted after {}",
            times(median, *smallest.get_or_insert(median)),
            duration(self::median(&mounted))
        );
        report.add(format!("mounted and one file read, fresh node, {files} files, {label}"), first, beside);
        Ok(())
    }

    /// Snapshots, forks and restores while the volume is mounted and all of it is in memory.
    async fn states(&self, node: &PrivateNode, name: &VolumeName, files: u64, report: &mut Report) -> Result<()> {
        let (mut snapshots, mut forks, mut restores) = (Vec::new(), Vec::new(), Vec::new());
        let mut snapshot = node.snapshot(name).await?;
        for round in 0..self.args.rounds {
            let began = Instant::now();
            node.restore_volume(name, snapshot).await?;
            restores.push(began.elapsed());
            let began = Instant::now();
            snapshot = node.snapshot(name).await?;
            snapshots.push(began.elapsed());
            let began = Instant::now();
            node.fork_volume(name, format!("{name}-{round}").parse()?).await?;
            forks.push(began.elapsed());
        }
        for (what, times) in [("snapshot", snapshots), ("fork", forks), ("restore", restores)] {
            report.add(
                format!("{what} of a volume with {files} files, {}", self.label),
                times,
                "as the API answers it",
            );
        }
        Ok(())
    }

    async fn long_file(&self, report: &mut Report) -> Result<()> {
        let Self { label, directory, .. } = self;
        let bytes = if self.args.quick { LONG_BYTES_QUICK } else { LONG_BYTES };
        let size = text::bytes(bytes);
        progress(&format!("a file of {size}, {label}"));
        let name: VolumeName = "long".parse()?;
        let objects = self.way.objects()?;
        let before: HashSet<String> = objects.list("").await?.into_iter().map(|object| object.key).collect();
        let beside = Directory::new("local")?;
        let node = PrivateNode::fresh(self.way).await?;
        node.create_volume(&name, VolumeDurability::Local).await?;
        node.mount(&name, directory.path()).await?;
        let local_writes = write_rounds(beside.path(), bytes).await?;
        let writes = write_rounds(directory.path(), bytes).await?;
        // Warm reads are of a volume that has stored what was written: before, sealing and storing it takes the processors.
        node.snapshot(&name).await?;
        let local_reads = read_rounds(beside.path(), bytes).await?;
        let reads = read_rounds(directory.path(), bytes).await?;
        drop(beside);
        self.destroy(node).await?;
        let rate = |time: Duration| format!("{:.0} MiB/s", bytes as f64 / (1 << 20) as f64 / time.as_secs_f64());
        let compared = |volume: &[Duration], local: &[Duration]| {
            let (volume, local) = (median(volume), median(local));
            format!("{} = {:.2}x of the same on the local disk", rate(volume), times(local, volume))
        };
        let beside = compared(&writes, &local_writes);
        report.add(format!("{size} written in order, and fsync, {label}"), writes, beside);
        let beside = compared(&reads, &local_reads);
        report.add(format!("{size} read in order, warm, {label}"), reads, beside);

        progress(&format!("a file of {size} on fresh nodes, {label}"));
        let (mut cold, mut fetched) = (Vec::new(), Vec::new());
        for _ in 0..LONG_ROUNDS {
            let node = PrivateNode::fresh(self.way).await?;
            node.mount(&name, directory.path()).await?;
            let place = directory.path().to_owned();
            cold.push(spawn_blocking(move || long_read(&place, bytes)).await??);
            self.destroy(node).await?;
            fetched.push(fetch_all(&objects, &before).await?);
        }
        let beside = format!(
            "{} = {:.2}x of its objects fetched in parts of {}, {FETCHED_AT_ONCE} at a time",
            rate(median(&cold)),
            times(median(&fetched), median(&cold)),
            text::bytes(PART_BYTES)
        );
        report.add(format!("{size} read in order, fresh node, {label}"), cold, beside);
        report.add(format!("its objects fetched, {label}"), fetched, "");
        Ok(())
    }
}

/// A long file, written in order and synced, some times over.
async fn write_rounds(place: &Path, bytes: u64) -> Result<Vec<Duration>> {
    let place = place.to_owned();
    spawn_blocking(move || {
        let round = |_| -> Result<Duration> {
            let took = long_write(&place, bytes)?;
            sync(&place)?;
            Ok(took)
        };
        (0..LONG_ROUNDS).map(round).collect()
    })
    .await?
}

/// The same file, read in order. What the first reader brings along, others find.
async fn read_rounds(place: &Path, bytes: u64) -> Result<Vec<Duration>> {
    let place = place.to_owned();
    spawn_blocking(move || {
        long_read(&place, bytes)?;
        (0..LONG_ROUNDS).map(|_| long_read(&place, bytes)).collect()
    })
    .await?
}

/// Fetches all objects that were not there `before`.
async fn fetch_all(objects: &Objects, before: &HashSet<String>) -> Result<Duration> {
    let new = objects.list("").await?.into_iter().filter(|object| !before.contains(&object.key));
    let parts = new.flat_map(|object| {
        let end = move |start: u64| (start + PART_BYTES).min(object.bytes);
        let starts = (0..object.bytes).step_by(PART_BYTES as usize);
        starts.map(move |start| (object.key.clone(), start..end(start))).collect::<Vec<_>>()
    });
    let wanted = Arc::new(std::sync::Mutex::new(parts.collect::<Vec<_>>()));
    let began = Instant::now();
    let mut fetching = JoinSet::new();
    for _ in 0..FETCHED_AT_ONCE {
        let (wanted, objects) = (wanted.clone(), objects.clone());
        fetching.spawn(async move {
            loop {
                let next = wanted.lock().ok().and_then(|mut wanted| wanted.pop());
                let Some((key, part)) = next else { return anyhow::Ok(()) };
                objects.get_range(&key, part).await.with_context(|| key)?;
            }
        });
    }
    while let Some(done) = fetching.join_next().await {
        done??;
    }
    Ok(began.elapsed())
}
