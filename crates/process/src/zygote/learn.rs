//! Learning the pages that copies touch first, from a copy that runs.

use std::{fs::File, io};

use procfs::MapLine;
use sys::remote::{self, PAGE, Range};

use super::{ZygoteFacts, memory::WRITE};
use crate::{
    error::{Context, Error},
    observe::{
        mappings::of_arena,
        sort::{Sort, sort},
    },
    start::working_set::WorkingSet,
};

/// Adds to a zygote's working set what its copy `copy` has touched so far. Gives the pages that the set has now; the set is
/// bounded, and what is beyond its bounds is left out.
pub fn learn(zygote: &ZygoteFacts, copy: i32) -> Result<u64, Error> {
    let path = format!("/proc/{}/mem", zygote.pid);
    let memory = File::options().read(true).write(true).open(&path).on("open", path)?;
    let mut set = WorkingSet::read(&memory, zygote.working_set).of("read memory of zygote", zygote.pid)?;
    let maps = [copy, zygote.pid].map(|pid| {
        let path = format!("/proc/{pid}/pagemap");
        File::open(&path).on("open", path)
    });
    let [copy_map, zygote_map] = maps;
    let (copy_map, zygote_map) = (copy_map?, zygote_map?);
    for line in procfs::maps(zygote.pid)? {
        let arena = of_arena(zygote.arena);
        if line.shared || (line.range.start < arena.end && arena.start < line.range.end) {
            continue;
        }
        look(&line, &copy_map, &zygote_map, &mut set).of("compare the page maps of zygote", zygote.pid)?;
    }
    set.bound();
    set.write(&memory, zygote.working_set).of("write memory of zygote", zygote.pid)?;
    Ok(set.written.iter().chain(&set.looked_at).map(|range| (range.end - range.start) / PAGE).sum())
}

/// Adds what the copy touched of one mapping.
fn look(line: &MapLine, copy: &File, zygote: &File, set: &mut WorkingSet) -> io::Result<()> {
    match sort(line) {
        Ok(Sort::Anonymous | Sort::PrivateFile) if line.protection & WRITE != 0 => {
            for run in remote::private_pages(copy, line.range)? {
                let (own, shared) = (remote::page_entries(copy, run)?, remote::page_entries(zygote, run)?);
                for (n, (own, shared)) in own.iter().zip(&shared).enumerate() {
                    if *own != 0 && own != shared {
                        let start = run.start + n as u64 * PAGE;
                        set.written.push(Range { start, end: start + PAGE });
                    }
                }
            }
        }
        Ok(Sort::PrivateFile) => set.looked_at.extend(remote::file_pages(copy, line.range)?),
        _ => {}
    }
    Ok(())
}
