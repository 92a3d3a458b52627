//! From a captured program to a state that another node can restore, and from that state to a zygote.
//!
//! ```text
//! capture --describe--> ProgramState --encode--> bytes ... bytes --decode--> ProgramState --restore--> zygote
//!                                                                                |
//!                                        pages of memory, kept elsewhere: arrive by fault
//! ```
//!
//! Changed pages of mapped files are part of the state: they cannot arrive by fault, and are needed before there is a zygote.
//!
//! A restored zygote is like one built from a still: the same script starts copies of it. A state names the processor, the kernel ([`host`])
//! and the mapped files ([`files`]) that it needs. They are compared before anything is made: [`Error::Unfit`] names all that differs.

mod files;
mod host;

use std::{fs::File, os::fd::BorrowedFd};

use base::limits::RESTORED_ADDRESS_BYTES_MAX;
use sys::{
    remote::{self, PAGE, Range},
    uffd::Uffd,
};

use crate::{
    capture::Capture,
    error::{Context, Error},
    image::{
        Backing, Host, Mapping, Pages, ProgramImage, ProgramState, Tree,
        xstate::{self, Format, Lacking},
    },
    refusal::{Refusal, Unfit},
    stop::still::Still,
    zygote::{self, RestoreSpec, Restored},
};

impl ProgramState {
    /// Describes a captured program, whose files are those of the root filesystem `rootfs`.
    pub fn describe(capture: Capture, rootfs: BorrowedFd<'_>) -> Result<Self, Error> {
        let Capture { mut tree, stills, .. } = capture;
        let host = Host::of(tree.first())?;
        let files = files::identify(&tree, rootfs)?;
        let pagemap = |still: &Still| -> Result<File, Error> {
            let path = format!("/proc/{}/pagemap", still.pid());
            File::open(&path).on("open", path)
        };
        let pagemaps: Vec<File> = stills.iter().map(pagemap).collect::<Result<_, _>>()?;
        restorable(&tree, &pagemaps, &stills)?;
        let mut file_pages = Vec::new();
        for ((member, still), pagemap) in tree.members.iter_mut().zip(&stills).zip(&pagemaps) {
            member.image.arguments = arguments(&member.image, still, pagemap)?;
            for mapping in member.image.mappings.iter().filter(|mapping| is_of_file(mapping)) {
                for run in remote::private_pages(pagemap, mapping.range).of("scan the page map", still.pid())? {
                    let mut bytes = vec![0; (run.end - run.start) as usize];
                    still.read(run.start, &mut bytes)?;
                    file_pages.push(Pages { start: member.kin.place(run).start, bytes });
                }
            }
        }
        file_pages.sort_unstable_by_key(|pages| pages.start);
        let clocks = tree.first().clocks;
        Ok(Self { tree, host, clocks, files, file_pages })
    }

    /// Restores the zygote. Everything that this host or its files lack is in [`Error::Unfit`], and nothing is made then.
    pub fn restore(&mut self, spec: &RestoreSpec<'_>) -> Result<Restored, Error> {
        let mut unfit = self.host.unfit(self.tree.first())?;
        unfit.extend(files::unfit(&self.files, spec.rootfs)?);
        let here = Format::here().on("look for", "extended registers")?;
        let shown_here = Format::shown_here().on("look for", "extended registers")?;
        for member in &mut self.tree.members {
            if let Err(Lacking(components)) = xstate::fit(&mut member.image, here, shown_here) {
                unfit.push(Unfit::ExtendedRegisters { components });
            }
        }
        if !unfit.is_empty() {
            return Err(Error::Unfit(unfit));
        }
        let files: Vec<Range> = self.file_pages.iter().map(Pages::range).collect();
        let restored = zygote::restore(&self.tree, spec, &files, &mut |at, bytes| self.read_file_page(at, bytes))?;
        self.fill_arguments(restored)
    }

    /// Before anybody else fills anything: a page that is there already is left alone.
    fn fill_arguments(&self, restored: Restored) -> Result<Restored, Error> {
        let Restored { zygote, faults } = restored;
        let Some(faults) = faults.map(Uffd::from) else { return Ok(Restored { zygote, faults: None }) };
        let arguments = self.tree.members.iter().flat_map(|member| {
            let place = |address: u64| member.kin.place(Range { start: address, end: address + PAGE }).start;
            member.image.arguments.iter().map(move |(address, bytes)| (place(*address), bytes))
        });
        for (address, bytes) in arguments {
            for (n, page) in bytes.chunks_exact(PAGE as usize).enumerate() {
                // Where nothing arrives by fault it is there already.
                faults.copy(address + n as u64 * PAGE, page).of("fill the arguments of zygote", zygote.facts.pid)?;
            }
        }
        Ok(Restored { zygote, faults: Some(faults.into()) })
    }

    fn read_file_page(&self, at: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let after = self.file_pages.partition_point(|pages| pages.start <= at);
        let pages = self.file_pages[..after].last().filter(|pages| at + bytes.len() as u64 <= pages.range().end);
        let pages = pages.ok_or(Error::MissingPage { address: at })?;
        let from = (at - pages.start) as usize;
        bytes.copy_from_slice(&pages.bytes[from..from + bytes.len()]);
        Ok(())
    }
}

/// The pages of arguments and environment that the program has.
fn arguments(image: &ProgramImage, still: &Still, pagemap: &File) -> Result<Vec<(u64, Vec<u8>)>, Error> {
    let mut pages = Vec::new();
    let inside = |range: &Range| image.anonymous().any(|own| own.start <= range.start && range.end <= own.end);
    for range in image.layout.arguments().into_iter().filter(inside) {
        for run in remote::private_pages(pagemap, range).of("scan the page map", still.pid())? {
            let mut bytes = vec![0; (run.end - run.start) as usize];
            still.read(run.start, &mut bytes)?;
            pages.push((run.start, bytes));
        }
    }
    Ok(pages)
}

/// Refuses what could be captured and never restored: the pager has a bit for each page of the mappings that it serves.
fn restorable(tree: &Tree, pagemaps: &[File], stills: &[Still]) -> Result<(), Error> {
    let length = |range: &Range| range.end - range.start;
    let max = RESTORED_ADDRESS_BYTES_MAX;
    if tree.anonymous().iter().map(length).sum::<u64>() <= max {
        return Ok(());
    }
    let mut bytes = 0;
    for ((image, pagemap), still) in tree.images().zip(pagemaps).zip(stills) {
        for range in image.anonymous() {
            let pages = remote::private_pages(pagemap, range).of("scan the page map", still.pid())?;
            bytes += if pages.is_empty() { 0 } else { length(&range) };
        }
    }
    if bytes <= max { Ok(()) } else { Err(Error::Refused(vec![Refusal::TooManyAddresses { bytes, max }])) }
}

fn is_of_file(mapping: &Mapping) -> bool {
    matches!(mapping.backing, Backing::File { .. }) && !mapping.flags.wipe_on_fork
}
