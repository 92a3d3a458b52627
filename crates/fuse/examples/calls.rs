//! How many system calls on small files a second: `calls FILES THREADS ROUNDS DIR...`, all directories in each round, the median of the
//! rounds, and each directory against the one named before it.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result};

const FILE_BYTES: usize = 4096;

/// Files in one directory.
const FANOUT: usize = 500;

const COLUMNS: [&str; 9] =
    ["create", "read", "stat 1st", "stat 2nd", "absent 1st", "absent 2nd", "list+stat", "rename", "unlink"];

struct Load {
    files: usize,
    threads: usize,
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [files, threads, rounds, directories @ ..] = &words[..] else {
        anyhow::bail!("usage: calls FILES THREADS ROUNDS DIR...");
    };
    let load = Load { files: files.parse()?, threads: threads.parse()? };
    let rounds: usize = rounds.parse()?;
    let mut rates = vec![vec![Vec::new(); COLUMNS.len()]; directories.len()];
    for _ in 0..rounds {
        for (directory, rates) in directories.iter().zip(&mut rates) {
            for (rate, all) in load.round(Path::new(directory))?.into_iter().zip(rates) {
                all.push(rate);
            }
        }
    }
    print!("{:24}", "");
    COLUMNS.iter().for_each(|column| print!("{column:>12}"));
    println!();
    let mut before: Option<Vec<f64>> = None;
    for (directory, rates) in directories.iter().zip(rates) {
        let medians: Vec<f64> = rates.into_iter().map(median).collect();
        print!("{directory:24}");
        medians.iter().for_each(|rate| print!("{rate:>12.0}"));
        println!();
        if let Some(before) = before {
            print!("{:24}", "  of that before");
            medians.iter().zip(before).for_each(|(rate, before)| print!("{:>12.2}", rate / before));
            println!();
        }
        before = Some(medians);
    }
    Ok(())
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

impl Load {
    fn round(&self, root: &Path) -> Result<Vec<f64>> {
        let root = root.join(format!("calls-{}", std::process::id()));
        for directory in 0..self.files.div_ceil(FANOUT) {
            fs::create_dir_all(root.join(directory.to_string()))?;
        }
        let path = |prefix: &str, file: usize| root.join((file / FANOUT).to_string()).join(format!("{prefix}{file}"));
        let data = [7; FILE_BYTES];
        let rates = vec![
            self.rate(|file| Ok(fs::File::create_new(path("f", file))?.write_all_at(&data, 0)?))?,
            self.rate(|file| read(&path("f", file)))?,
            self.rate(|file| Ok(fs::metadata(path("f", file)).map(drop)?))?,
            self.rate(|file| Ok(fs::metadata(path("f", file)).map(drop)?))?,
            self.rate(|file| absent(&path("x", file)))?,
            self.rate(|file| absent(&path("x", file)))?,
            self.list(&root)?,
            self.rate(|file| Ok(fs::rename(path("f", file), path("g", file))?))?,
            self.rate(|file| Ok(fs::remove_file(path("g", file))?))?,
        ];
        fs::remove_dir_all(&root)?;
        Ok(rates)
    }

    /// How often a second all threads together do it.
    fn rate(&self, once: impl Fn(usize) -> Result<()> + Sync) -> Result<f64> {
        let began = Instant::now();
        std::thread::scope(|scope| {
            let work = |thread| {
                let once = &once;
                move || (thread..self.files).step_by(self.threads).try_for_each(once)
            };
            let threads: Vec<_> = (0..self.threads).map(|thread| scope.spawn(work(thread))).collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?)
        })?;
        Ok(self.files as f64 / began.elapsed().as_secs_f64())
    }

    fn list(&self, root: &Path) -> Result<f64> {
        let began = Instant::now();
        let mut found = 0;
        for directory in fs::read_dir(root)? {
            for file in fs::read_dir(directory?.path())? {
                file?.metadata()?;
                found += 1;
            }
        }
        anyhow::ensure!(found == self.files, "{found} files are listed");
        Ok(self.files as f64 / began.elapsed().as_secs_f64())
    }
}

fn read(path: &Path) -> Result<()> {
    let mut data = [0; FILE_BYTES];
    let length = fs::File::open(path)?.read_at(&mut data, 0)?;
    anyhow::ensure!(length == FILE_BYTES && data[0] == 7, "what was read is not what was written");
    Ok(())
}

fn absent(path: &PathBuf) -> Result<()> {
    let error = fs::metadata(path).err().context("a file is there that nobody made")?;
    anyhow::ensure!(error.kind() == std::io::ErrorKind::NotFound, "{error}");
    Ok(())
}
