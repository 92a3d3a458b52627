//! All cases, in the order in which they run.

mod adoption;
mod caches;
mod files;
mod mounts;
mod privileges;
mod programs;

pub(crate) use mounts::attach;

type Case = (&'static str, fn());

pub(crate) const ALL: &[Case] = &[
    ("files: what is written is read, before and after a remount", files::written_and_read),
    ("files: an unlinked file stays while it is open", files::unlinked_open),
    ("files: holes are found, made and filled", files::holes),
    ("files: extended attributes", files::attributes),
    ("files: renames replace, refuse and exchange", files::renames),
    ("files: a directory of 20,000 entries is listed whole while it changes", files::big_directory),
    ("files: names, times and special files", files::kinds),
    ("files: permissions are the kernel's, privileges go with writes", files::permissions),
    ("files: times before 1970 keep their fractions", files::early_times),
    ("files: handles outlive a mount, and say that a file is gone", files::handles),
    ("files: a volume that is full says so, and df knows", files::full),
    ("files: a copy shares its data", files::copies),
    ("privileges: each change by an ordinary user takes set-user-id away", privileges::taken_away),
    ("caches: no way of writing leaves stale pages beside a reader", caches::never_stale),
    ("mounts: a clone is read-only, in another namespace, and the last one ends it", mounts::clones),
    ("mounts: the device alone has its superblock mounted again", mounts::again),
    ("mounts: what the kernel can is tried, and nothing is left", mounts::tried),
    ("mounts: a remount makes one of them read-only, and no other", mounts::remounts),
    ("mounts: the kernel forgets what others change", mounts::forgets),
    ("mounts: the kernel forgets what others change without epochs", mounts::forgets_without_epochs),
    ("mounts: there are about as many threads as are busy, which end with the superblock", mounts::crew),
    ("programs: git", programs::git),
    ("programs: tar with everything in it", programs::tar),
    ("programs: sqlite with a log and with a journal", programs::sqlite),
    ("programs: shared mappings", programs::mappings),
    ("programs: what they have mapped is written back, which is waited for", programs::written_back),
    ("programs: locks between processes", programs::locks),
    ("adoption: one request of each kind waits for the next server", adoption::waits),
    ("adoption: storms under servers that are killed", adoption::storms),
];
