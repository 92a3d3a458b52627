//! A program that changes files at random, knows what each must be, and believes nothing else: any error that it has not caused, and any
//! byte that it has not written, ends it. It runs while servers are killed under it.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{Read, Seek, SeekFrom, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, RenameFlags, XattrFlags, renameat_with};

const NAMES: u32 = 24;
const FILE_BYTES_MAX: usize = 96 << 10;

struct Storm {
    directory: PathBuf,
    random: fastrand::Rng,
    /// Which content a name has: hard links share it.
    names: BTreeMap<String, u64>,
    contents: BTreeMap<u64, Vec<u8>>,
    next: u64,
    /// Open, and without a name.
    nameless: Vec<(File, Vec<u8>)>,
    directories: BTreeMap<String, ()>,
    attributes: BTreeMap<u64, Vec<u8>>,
}

/// Works until its standard input ends, then verifies all.
pub(crate) fn run(directory: &Path, seed: u64) {
    fs::create_dir(directory).unwrap();
    let mut storm = Storm {
        directory: directory.to_owned(),
        random: fastrand::Rng::with_seed(seed),
        names: BTreeMap::new(),
        contents: BTreeMap::new(),
        next: 0,
        nameless: Vec::new(),
        directories: BTreeMap::new(),
        attributes: BTreeMap::new(),
    };
    let end = std::thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new()).map(drop));
    let mut steps = 0;
    while !end.is_finished() {
        storm.step();
        steps += 1;
        if steps % 64 == 0 {
            storm.verify();
        }
    }
    storm.verify();
    println!("{steps}");
    storm.print();
}

impl Storm {
    fn step(&mut self) {
        match self.random.u32(0..20) {
            0..=3 => self.make(),
            4..=5 => self.write(),
            6 => self.append(),
            7 => self.truncate(),
            8..=9 => self.rename(),
            10 => self.exchange(),
            11..=12 => self.unlink(),
            13 => self.unlink_open(),
            14 => self.use_nameless(),
            15 => self.link(),
            16 => self.directory(),
            17 => self.attribute(),
            18 => self.read(),
            _ => self.sync(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn fresh(&mut self) -> String {
        format!("f{}", self.random.u32(0..NAMES))
    }

    fn any(&mut self) -> Option<String> {
        let names: Vec<&String> = self.names.keys().collect();
        (!names.is_empty()).then(|| names[self.random.usize(0..names.len())].clone())
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = self.random.usize(0..self.random.clone().usize(1..FILE_BYTES_MAX));
        (0..length).map(|_| self.random.u8(..)).collect()
    }

    fn content(&mut self, name: &str) -> &mut Vec<u8> {
        self.contents.get_mut(&self.names[name]).unwrap()
    }

    fn make(&mut self) {
        let name = self.fresh();
        if self.names.contains_key(&name) {
            return;
        }
        let bytes = self.bytes();
        File::create_new(self.path(&name)).unwrap().write_all(&bytes).unwrap();
        self.next += 1;
        self.contents.insert(self.next, bytes);
        self.names.insert(name, self.next);
    }

    fn write(&mut self) {
        let Some(name) = self.any() else { return };
        let bytes = self.bytes();
        let at = self.random.usize(0..FILE_BYTES_MAX);
        OpenOptions::new().write(true).open(self.path(&name)).unwrap().write_all_at(&bytes, at as u64).unwrap();
        put(self.content(&name), at, &bytes);
    }

    fn append(&mut self) {
        let Some(name) = self.any() else { return };
        let bytes = self.bytes();
        OpenOptions::new().append(true).open(self.path(&name)).unwrap().write_all(&bytes).unwrap();
        self.content(&name).extend(bytes);
    }

    fn truncate(&mut self) {
        let Some(name) = self.any() else { return };
        let size = self.random.usize(0..FILE_BYTES_MAX);
        OpenOptions::new().write(true).open(self.path(&name)).unwrap().set_len(size as u64).unwrap();
        self.content(&name).resize(size, 0);
    }

    fn rename(&mut self) {
        let (Some(name), to) = (self.any(), self.fresh()) else { return };
        fs::rename(self.path(&name), self.path(&to)).unwrap();
        let content = self.names[&name];
        // Of two names for one file both stay.
        if self.names.insert(to.clone(), content) != Some(content) {
            self.names.remove(&name);
        }
    }

    fn exchange(&mut self) {
        let (Some(one), Some(other)) = (self.any(), self.any()) else { return };
        renameat_with(CWD, self.path(&one), CWD, self.path(&other), RenameFlags::EXCHANGE).unwrap();
        let (a, b) = (self.names[&one], self.names[&other]);
        self.names.insert(one, b);
        self.names.insert(other, a);
    }

    fn unlink(&mut self) {
        let Some(name) = self.any() else { return };
        fs::remove_file(self.path(&name)).unwrap();
        self.names.remove(&name);
    }

    fn unlink_open(&mut self) {
        let Some(name) = self.any() else { return };
        let file = OpenOptions::new().read(true).write(true).open(self.path(&name)).unwrap();
        fs::remove_file(self.path(&name)).unwrap();
        let content = self.names.remove(&name).unwrap();
        let has_other_names = self.names.values().any(|other| *other == content);
        if !has_other_names && self.nameless.len() < 8 {
            self.nameless.push((file, self.contents[&content].clone()));
        }
    }

    fn use_nameless(&mut self) {
        let bytes = self.bytes();
        let Some((mut file, mut content)) = self.nameless.pop() else { return };
        file.write_all_at(&bytes, 0).unwrap();
        put(&mut content, 0, &bytes);
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut found = Vec::new();
        file.read_to_end(&mut found).unwrap();
        assert!(found == content, "a file without a name has other bytes");
        if self.random.bool() {
            self.nameless.insert(0, (file, content));
        }
    }

    fn link(&mut self) {
        let (Some(name), to) = (self.any(), self.fresh()) else { return };
        let linked = fs::hard_link(self.path(&name), self.path(&to));
        match self.names.contains_key(&to) {
            true => assert_eq!(linked.unwrap_err().kind(), std::io::ErrorKind::AlreadyExists),
            false => {
                linked.unwrap();
                let content = self.names[&name];
                self.names.insert(to, content);
            }
        }
    }

    fn directory(&mut self) {
        let name = format!("d{}", self.random.u32(0..4));
        match self.directories.remove(&name) {
            Some(()) => fs::remove_dir(self.path(&name)).unwrap(),
            None => {
                fs::create_dir(self.path(&name)).unwrap();
                self.directories.insert(name, ());
            }
        }
    }

    fn attribute(&mut self) {
        let Some(name) = self.any() else { return };
        let (path, content, value) = (self.path(&name), self.names[&name], self.random.u64(..).to_le_bytes());
        match self.attributes.remove(&content) {
            Some(_) => rustix::fs::removexattr(path, c"user.storm").unwrap(),
            None => {
                rustix::fs::setxattr(path, c"user.storm", &value, XattrFlags::CREATE).unwrap();
                self.attributes.insert(content, value.to_vec());
            }
        }
    }

    fn read(&mut self) {
        let Some(name) = self.any() else { return };
        let found = fs::read(self.path(&name)).unwrap();
        assert!(found == *self.content(&name), "{name} has other bytes");
    }

    fn sync(&mut self) {
        let Some(name) = self.any() else { return };
        File::open(self.path(&name)).unwrap().sync_all().unwrap();
    }

    fn verify(&mut self) {
        let listed =
            fs::read_dir(&self.directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut listed: Vec<String> = listed.collect();
        listed.sort();
        let mut expected: Vec<String> = self.names.keys().chain(self.directories.keys()).cloned().collect();
        expected.sort();
        assert_eq!(listed, expected);
        for (name, content) in &self.names {
            assert!(fs::read(self.path(name)).unwrap() == self.contents[content], "{name} has other bytes");
            let mut value = [0; 64];
            match (rustix::fs::getxattr(self.path(name), c"user.storm", &mut value[..]), self.attributes.get(content)) {
                (Ok(length), Some(expected)) => assert_eq!(value[..length], expected[..]),
                (found, expected) => assert!(found.is_err() && expected.is_none(), "{found:?} {expected:?}"),
            }
        }
    }

    /// What must be there, for whoever looks without this program's caches.
    fn print(&self) {
        for (name, content) in &self.names {
            println!("{name} {}", digest(&self.contents[content]));
        }
    }
}

fn put(content: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    content.resize(content.len().max(at + bytes.len()), 0);
    content[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Enough to tell two files apart (FNV-1a).
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}
