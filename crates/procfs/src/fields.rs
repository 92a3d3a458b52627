//! Files with one `Name: value` line for each field.

use crate::{error::Error, read::read};

/// The `Name:\tvalue` lines of `/proc/PID/status`, `fdinfo` and the like.
#[derive(Debug)]
pub struct Fields {
    path: String,
    text: String,
}

impl Fields {
    /// The lines of this file. Bytes that are not UTF-8 are replaced.
    pub fn read(path: String) -> Result<Self, Error> {
        let text = String::from_utf8_lossy(&read(&path)?).into_owned();
        Ok(Self { path, text })
    }

    /// These lines.
    pub fn of(text: &str) -> Self {
        Self { path: String::new(), text: text.into() }
    }

    /// The value after `name:`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    /// All lines.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.text.lines()
    }

    /// The value after `name:` as numbers in this base.
    pub fn numbers(&self, name: &str, radix: u32) -> Result<Vec<u64>, Error> {
        let bad = |line: &str| Error::Format { path: self.path.clone(), line: line.to_owned() };
        let value = self.get(name).ok_or_else(|| bad(name))?;
        value
            .split_ascii_whitespace()
            .map(|number| u64::from_str_radix(number, radix).map_err(|_| bad(value)))
            .collect()
    }

    /// `(1, 500)` after `name:` as two numbers; 0 for one that is not there.
    pub fn pair(&self, name: &str) -> (u64, u64) {
        let text = self.get(name).unwrap_or("");
        let mut numbers = text.trim_matches(['(', ')']).split(',').map(|number| number.trim().parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }

    /// The effective one of the ids after `Uid` or `Gid` of `status`, which has the real one first; no id of a process if there is none.
    pub fn effective(&self, name: &str) -> Result<u64, Error> {
        Ok(self.numbers(name, 10)?.get(1).copied().unwrap_or(u64::MAX))
    }

    /// The size after `name:`, which the kernel shows in KiB, in bytes.
    pub fn bytes(&self, name: &str) -> Result<u64, Error> {
        Ok(self.number(name, 10)? << 10)
    }

    /// The first number after `name:` in this base; a unit may follow.
    pub fn number(&self, name: &str, radix: u32) -> Result<u64, Error> {
        let first = self.get(name).and_then(|value| value.split_ascii_whitespace().next());
        let number = first.and_then(|first| u64::from_str_radix(first, radix).ok());
        number.ok_or_else(|| Error::Format {
            path: self.path.clone(),
            line: format!("{name}: {}", self.get(name).unwrap_or_default()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_names() {
        let fields = Fields::of("Name:\tx y\nGid:\t7\t8\nRss:\t  12 kB\nmask:\tff\nit_value: (1, 500)\n");
        assert_eq!((fields.get("Name"), fields.get("Nam")), (Some("x y"), None));
        assert_eq!(fields.numbers("Gid", 10).unwrap(), [7, 8]);
        assert_eq!((fields.bytes("Rss").unwrap(), fields.number("mask", 16).unwrap()), (12 << 10, 0xff));
        assert_eq!((fields.pair("it_value"), fields.pair("none")), ((1, 500), (0, 0)));
        assert!(fields.number("none", 10).is_err() && fields.numbers("Name", 10).is_err());
    }
}
