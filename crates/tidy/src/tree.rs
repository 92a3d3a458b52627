//! The files that rules look at.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Folders that hold nothing written by people.
const SKIPPED: &[&str] = &["target", "node_modules"];

/// A text file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Relative to the root, with slashes.
    pub path: String,
    /// Its text.
    pub text: String,
}

impl File {
    /// A file of this path and text.
    pub fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { path: path.into(), text: text.into() }
    }
}

/// The root of this repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All files below `root` with this extension, in order. Hidden folders and folders of build results are left out.
///
/// # Errors
///
/// A folder or a file cannot be read.
pub fn files(root: &Path, extension: &str) -> io::Result<Vec<File>> {
    let mut found = Vec::new();
    walk(root, "", extension, &mut found)?;
    found.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(found)
}

fn walk(folder: &Path, path: &str, extension: &str, found: &mut Vec<File>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let below = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
        let kind = entry.file_type()?;
        if kind.is_dir() && !name.starts_with('.') && !SKIPPED.contains(&name.as_str()) {
            walk(&entry.path(), &below, extension, found)?;
        } else if kind.is_file() && Path::new(&name).extension().is_some_and(|found| found == extension) {
            found.push(File::new(below, fs::read_to_string(entry.path())?));
        }
    }
    Ok(())
}
