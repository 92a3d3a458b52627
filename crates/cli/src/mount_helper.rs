//! `pando` under the name `mount.pando` or `mount.fuse.pando`: what mount(8) starts for these types of filesystem, and so for a line of /etc/fstab.
//!
//! ```text
//!   mount.pando VOLUME[@SNAPSHOT] DIRECTORY [-sfnv] [-o OPTIONS] [-t TYPE]  ─►  pando volume mount [--read-only] VOLUME[@SNAPSHOT] DIRECTORY
//! ```

use std::{ffi::OsString, path::Path};

use crate::exit::Failure;

const NAMES: [&str; 2] = ["mount.pando", "mount.fuse.pando"];

/// What every mount of a volume is, whoever asks, or what concerns mount(8) and who starts at boot only.
const WITHOUT_EFFECT: [&str; 17] = [
    "async", "auto", "defaults", "exec", "group", "noatime", "noauto", "nodev", "nofail", "nosuid", "nouser",
    "nousers", "owner", "user", "users", "_netdev", "relatime",
];

/// What mount(8) wants.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The words of the command that does it.
    Command(Vec<String>),
    /// Only to be told whether the words are right (`-f`).
    Nothing,
}

/// None if this process has another name.
pub(crate) fn wanted(words: impl IntoIterator<Item = OsString>) -> Option<Result<Wanted, Failure>> {
    let mut words = words.into_iter();
    let name = words.next()?;
    let is_helper = Path::new(&name).file_name().is_some_and(|name| NAMES.iter().any(|helper| name == *helper));
    let words = words.map(|word| word.into_string().map_err(|word| usage(format!("{word:?} is not UTF-8"))));
    is_helper.then(|| parse(words.collect::<Result<Vec<_>, _>>()?))
}

#[derive(Default)]
struct Options {
    read_only: bool,
    socket: Option<String>,
    /// Skip what is not known.
    sloppy: bool,
    fake: bool,
}

fn parse(words: Vec<String>) -> Result<Wanted, Failure> {
    let (mut options, mut given, mut places) = (Options::default(), Vec::new(), Vec::new());
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| usage(format!("{word} lacks its value")));
        match word.as_str() {
            "-o" => given.push(value()?),
            "-t" => drop(value()?),
            "-N" => {
                return Err(usage("a volume cannot be mounted in another mount namespace than its node's".to_owned()));
            }
            flags if flags.len() > 1 && flags.starts_with('-') => options.flags(&flags[1..])?,
            _ => places.push(word),
        }
    }
    given.iter().flat_map(|given| given.split(',')).try_for_each(|option| options.option(option))?;
    let [source, directory] = <[String; 2]>::try_from(places)
        .map_err(|_| usage("give a volume and a directory, as in `mount -t pando VOLUME DIRECTORY`".to_owned()))?;
    Ok(if options.fake { Wanted::Nothing } else { Wanted::Command(options.command(source, directory)) })
}

impl Options {
    fn flags(&mut self, flags: &str) -> Result<(), Failure> {
        for flag in flags.chars() {
            match flag {
                's' => self.sloppy = true,
                'f' => self.fake = true,
                'n' | 'v' => {}
                other => return Err(usage(format!("-{other} is no option of a mount"))),
            }
        }
        Ok(())
    }

    fn option(&mut self, option: &str) -> Result<(), Failure> {
        match option.split_once('=').unwrap_or((option, "")) {
            ("ro", "") => self.read_only = true,
            ("rw", "") => self.read_only = false,
            ("socket", path) if path.starts_with('/') => self.socket = Some(path.to_owned()),
            ("remount", "") => {
                return Err(usage("a volume is not remounted: unmount it, and mount it as it shall be".to_owned()));
            }
            (name, _) if name.is_empty() || name == "comment" || name.starts_with("x-") || name.starts_with("X-") => {}
            (name, "") if WITHOUT_EFFECT.contains(&name) => {}
            _ if self.sloppy => {}
            _ => {
                return Err(usage(format!(
                    "a mount of a volume has no option {option}; it has ro, rw and socket=PATH"
                )));
            }
        }
        Ok(())
    }

    fn command(self, source: String, directory: String) -> Vec<String> {
        let socket = self.socket.map(|socket| ["--socket".to_owned(), socket]);
        let read_only = self.read_only.then(|| "--read-only".to_owned());
        let own = ["pando", "volume", "mount"].map(str::to_owned);
        // No word behind it is an option, whatever it is called.
        let places = ["--".to_owned(), source, directory];
        own.into_iter().chain(socket.into_iter().flatten()).chain(read_only).chain(places).collect()
    }
}

fn usage(message: String) -> Failure {
    Failure::Usage(message)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::commands::Cli;

    fn told(line: &str) -> Result<String, String> {
        match wanted(line.split(' ').map(OsString::from)).unwrap() {
            Ok(Wanted::Command(words)) => {
                Cli::try_parse_from(&words).unwrap();
                Ok(words.join(" "))
            }
            Ok(Wanted::Nothing) => Ok("nothing".to_owned()),
            Err(failure) => Err(failure.to_string()),
        }
    }

    #[test]
    fn words_of_mount_become_a_command() {
        assert!(wanted(["/usr/bin/pando".into(), "ls".into()]).is_none());
        assert_eq!(told("/sbin/mount.pando ws /mnt"), Ok("pando volume mount -- ws /mnt".to_owned()));
        assert_eq!(
            told("mount.fuse.pando ws@old /mnt -sv -o ro,socket=/run/a,x-systemd.requires=b -t fuse.pando"),
            Ok("pando volume mount --socket /run/a --read-only -- ws@old /mnt".to_owned())
        );
        assert_eq!(told("mount.pando ws /mnt -o rw,nofail,odd -s"), Ok("pando volume mount -- ws /mnt".to_owned()));
        assert_eq!(told("mount.pando ws /mnt -f"), Ok("nothing".to_owned()));
    }

    #[test]
    fn what_a_mount_cannot_be_is_refused() {
        for (line, says) in [
            ("mount.pando ws", "give a volume and a directory"),
            ("mount.pando ws /mnt /other", "give a volume and a directory"),
            ("mount.pando ws /mnt -o remount,ro", "unmount it"),
            ("mount.pando ws /mnt -o noexec", "no option noexec"),
            ("mount.pando ws /mnt -o socket=run", "no option socket=run"),
            ("mount.pando ws /mnt -o", "lacks its value"),
            ("mount.pando ws /mnt -N /proc/1/ns/mnt", "mount namespace"),
            ("mount.pando ws /mnt -x", "-x is no option"),
        ] {
            let refused = told(line).unwrap_err();
            assert!(refused.contains(says), "{line}: {refused}");
        }
    }
}
