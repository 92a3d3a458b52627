//! How the ids of a user namespace are those of the reader's: `/proc/PID/uid_map` and `gid_map` (user_namespaces(7)).

use crate::{error::Error, read::read};

/// The users and groups of a process's user namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdMaps {
    users: Vec<Extent>,
    groups: Vec<Extent>,
}

/// Ids that follow each other on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Extent {
    inside: u32,
    outside: u32,
    count: u32,
}

/// What the kernel shows of an id that the other side does not have (`/proc/sys/kernel/overflowuid`).
const OVERFLOW: u32 = 65_534;

impl IdMaps {
    /// Those of the user namespace that `pid` is in.
    pub fn of(pid: i32) -> Result<Self, Error> {
        let extents = |name: &str| {
            let path = format!("/proc/{pid}/{name}");
            parse(&String::from_utf8_lossy(&read(&path)?)).map_err(|line| Error::Format { path, line })
        };
        Ok(Self { users: extents("uid_map")?, groups: extents("gid_map")? })
    }

    /// The user inside that is `outside` here.
    pub fn user_inside(&self, outside: u32) -> u32 {
        inside(&self.users, outside)
    }

    /// The group inside that is `outside` here.
    pub fn group_inside(&self, outside: u32) -> u32 {
        inside(&self.groups, outside)
    }

    /// The user here that is `inside` there; none if no user is.
    pub fn user_outside(&self, inside: u32) -> Option<u32> {
        outside(&self.users, inside)
    }

    /// The group here that is `inside` there; none if no group is.
    pub fn group_outside(&self, inside: u32) -> Option<u32> {
        outside(&self.groups, inside)
    }
}

fn outside(extents: &[Extent], inside: u32) -> Option<u32> {
    let within = |extent: &Extent| {
        let nth = inside.checked_sub(extent.inside).filter(|nth| *nth < extent.count)?;
        extent.outside.checked_add(nth)
    };
    extents.iter().find_map(within)
}

fn inside(extents: &[Extent], outside: u32) -> u32 {
    let within = |extent: &&Extent| outside.checked_sub(extent.outside).is_some_and(|nth| nth < extent.count);
    extents.iter().find(within).map_or(OVERFLOW, |extent| extent.inside + (outside - extent.outside))
}

/// Fails with the line that is none.
fn parse(text: &str) -> Result<Vec<Extent>, String> {
    let extent = |line: &str| {
        let mut numbers = line.split_ascii_whitespace().map(|word| word.parse().ok());
        let [inside, outside, count] = std::array::from_fn(|_| numbers.next().flatten());
        Some(Extent { inside: inside?, outside: outside?, count: count? })
    };
    text.lines().map(|line| extent(line).ok_or_else(|| line.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_translated_by_the_extent_that_has_them() {
        let users = parse("         0     100000       1000\n      1000       7000          1\n").unwrap();
        let maps = IdMaps { groups: Vec::new(), users };
        assert_eq!(
            [100_000, 100_999, 101_000, 7_000, 0].map(|id| maps.user_inside(id)),
            [0, 999, 65_534, 1_000, 65_534]
        );
        assert_eq!((maps.user_outside(0), maps.group_inside(0)), (Some(100_000), 65_534));
        assert_eq!([999, 1_000, 1_001].map(|id| maps.user_outside(id)), [Some(100_999), Some(7_000), None]);
        assert_eq!(parse("0 x 1"), Err("0 x 1".to_owned()));
    }

    #[test]
    fn the_whole_range_is_read() {
        let maps = IdMaps { users: parse("0 0 4294967295").unwrap(), groups: Vec::new() };
        assert_eq!((maps.user_inside(4_294_967_294), maps.user_outside(0)), (4_294_967_294, Some(0)));
        assert!(IdMaps::of(std::process::id() as i32).is_ok());
    }
}
