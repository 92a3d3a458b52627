//! What the operator gives to all sandboxes of a node: what they need to reach package registries, for one.

use std::{fs::File, io::Read, path::PathBuf};

use sandbox::GivenFile;

use crate::error::{Context, Error, Result};

/// Most files, and most variables.
pub const GIVEN_MAX: usize = 64;
/// Most bytes of a file: 4 MiB. The authorities that a system trusts take 200 KiB.
pub const GIVEN_BYTES_MAX: u64 = 4 << 20;

/// Files and variables. Sandboxes see them: they are no place for secrets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Given {
    /// Of all programs and commands, below those of templates and requests.
    pub env: Vec<(String, String)>,
    /// Files of the host, and where they are inside, absolute. Sandboxes of the image `host` do not get them.
    pub files: Vec<(PathBuf, PathBuf)>,
}

impl Given {
    /// Reads the files as they are now.
    pub(crate) fn read(&self) -> Result<Vec<GivenFile>> {
        let read = |(from, inside): &(PathBuf, PathBuf)| {
            let mut content = Vec::new();
            let opened = File::open(from).at("open the file for sandboxes", from)?;
            opened.take(GIVEN_BYTES_MAX + 1).read_to_end(&mut content).at("read the file for sandboxes", from)?;
            if content.len() as u64 > GIVEN_BYTES_MAX {
                let message = format!("{} has more than {} MiB", from.display(), GIVEN_BYTES_MAX >> 20);
                return Err(Error::Invalid { message, hint: None });
            }
            Ok(GivenFile { inside: inside.clone(), content })
        };
        self.files.iter().map(read).collect()
    }

    /// Fails if there are too many, or one cannot be read.
    pub(crate) fn check(&self) -> Result<()> {
        if self.files.len() > GIVEN_MAX || self.env.len() > GIVEN_MAX {
            let message = format!("sandboxes are given more than {GIVEN_MAX} files, or variables");
            return Err(Error::Invalid { message, hint: None });
        }
        let is_below = |(_, inside): &(PathBuf, PathBuf), other: &(PathBuf, PathBuf)| {
            inside != &other.1 && inside.starts_with(&other.1)
        };
        if let Some((_, inside)) = self.files.iter().find(|file| self.files.iter().any(|other| is_below(file, other))) {
            let message = format!("{} lies below another file for sandboxes", inside.display());
            return Err(Error::Invalid { message, hint: None });
        }
        self.read().map(drop)
    }
}
