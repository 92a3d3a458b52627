//! What comes as files from other machines.

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, OnceLock, PoisonError},
};

use checkpoint::fuzzing::Importer;
use process::ProgramState;

use crate::parts::{framed, packed, pieces};

/// A directory of this process, in memory.
fn folder(name: &str) -> PathBuf {
    let path = Path::new("/dev/shm").join(format!("pando-fuzz-{}", std::process::id())).join(name);
    std::fs::create_dir_all(&path).expect("it can be made");
    path
}

/// The encoded state; one that is decoded can be used.
pub(crate) fn program_state(data: &[u8]) {
    let Ok(state) = ProgramState::decode(&packed(0x5001, data)) else { return };
    let ranges = state.memory_ranges();
    assert!(ranges.iter().all(|(start, end)| start < end && start.is_multiple_of(4096) && end.is_multiple_of(4096)));
    assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "mappings that overlap");
    assert_eq!(state.by_fault(&ranges), ranges);
    let again = state.encode().expect("it was decoded");
    ProgramState::decode(&again).expect("it was encoded");
}

/// The payloads of an archive's records. The last 32 bytes of a trailer become the digest.
pub(crate) fn layer_archive(data: &[u8]) {
    let archive = archive(data);
    let folder = folder("layer");
    let into = folder.join("into");
    let unpacked = sandbox::unpack_layer(&mut &archive[..], &into);
    let left: Vec<_> =
        std::fs::read_dir(&folder).expect("it is there").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, if unpacked.is_ok() { vec!["into"] } else { vec![] }, "{unpacked:?}");
    if unpacked.is_ok() {
        let mut again = Vec::new();
        sandbox::pack_layer(&into, &mut again).expect("what was unpacked can be packed");
        std::fs::remove_dir_all(&into).expect("it was made here");
    }
}

fn archive(data: &[u8]) -> Vec<u8> {
    const TRAILER: u8 = 5;
    let mut archive = Vec::new();
    for payload in pieces(data) {
        let mut payload = payload.to_vec();
        let digest = blake3::hash(&archive);
        if let (Some(&TRAILER), Some(place)) = (payload.first().copied().as_ref(), payload.last_chunk_mut()) {
            *place = *digest.as_bytes();
        }
        archive.extend(framed(0x4c01, &payload));
    }
    archive
}

/// Records of a checkpoint file, each behind a byte that says which it is; the digest is added. Memory, state and layers have their own
/// checksums, which are made right.
pub(crate) fn checkpoint_file(data: &[u8]) {
    static IMPORTER: OnceLock<Mutex<Importer>> = OnceLock::new();
    let importer = || Mutex::new(Importer::new(folder("import")).expect("a runtime"));
    let mut file = Vec::new();
    for piece in pieces(data) {
        let Some((kind, payload)) = piece.split_first() else { continue };
        file.extend(match kind % 8 {
            0 => framed(0x4e10, payload),
            1 => framed(0x4e11, payload),
            2 => framed(0x4e12, &framed(0x4d03, payload)),
            3 => framed(0x4e13, &packed(0x4d02, payload)),
            4 => framed(0x4e14, &framed(0x4d01, payload)),
            5 => framed(0x4e11, &archive(payload)),
            6 => framed(0x4e11, &packed(0x5001, payload)),
            _ => payload.to_vec(),
        });
    }
    let digest = blake3::hash(&file);
    file.extend(framed(0x4e15, digest.as_bytes()));
    let mut importer = IMPORTER.get_or_init(importer).lock().unwrap_or_else(PoisonError::into_inner);
    drop(importer.import(&file));
}
