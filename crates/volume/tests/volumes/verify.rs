//! Damage is named by path, what is out of reach is not called damaged, and the rest can be read.

use std::{collections::BTreeSet, fs, path::PathBuf};

use volume::{Kind, Origin, ROOT, Verified};

use crate::place::{Place, file, new, read_file, write_file};

fn verify(place: &Place) -> Verified {
    place.node("one").verify(&Origin::Volume("ws".to_owned())).unwrap()
}

fn segments(place: &Place) -> BTreeSet<PathBuf> {
    let folder = place.directory.path().join("objects/realms/test/segments");
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn noise(bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    let mut state = 1u64;
    noise.fill_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    });
    noise
}

#[test]
fn a_sound_state_has_nothing_wrong_whatever_is_in_it() {
    let place = Place::new();
    let volume = place.volume("ws");
    let engine = volume.engine();
    for kind in [Kind::Directory, Kind::Fifo, Kind::CharDevice] {
        engine.make(ROOT, format!("{kind:?}").as_bytes(), new(kind)).unwrap();
    }
    let ino = write_file(engine, "a", &noise(300_000));
    engine.link(ino, ROOT, b"b").unwrap();
    engine.copy((ino, 0), (write_file(engine, "copy", b""), 100), 200_000).unwrap();
    let open = write_file(engine, "open", b"unnamed");
    engine.pin(open).unwrap();
    engine.unlink(ROOT, b"open").unwrap();
    volume.commit().unwrap();
    let verified = verify(&place);
    assert_eq!(verified.findings, []);
    assert_eq!((verified.inodes, verified.bytes), (7, 500_007));
}

#[test]
fn a_flipped_bit_in_data_is_told_by_the_paths_it_harms_and_no_others() {
    let place = Place::new();
    let volume = place.volume("ws");
    let directory = volume.engine().make(ROOT, b"d", new(Kind::Directory)).unwrap().ino;
    for name in ["first", "second"] {
        let ino = volume.engine().make(directory, name.as_bytes(), file()).unwrap().ino;
        volume.engine().write(ino, 0, &noise(131_072), false).unwrap();
    }
    let before = segments(&place);
    volume.commit().unwrap();
    let data =
        segments(&place).difference(&before).max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap().clone();
    let mut bytes = fs::read(&data).unwrap();
    bytes[60_000] ^= 1;
    fs::write(&data, bytes).unwrap();
    let verified = verify(&place);
    assert_eq!(verified.findings.len(), 1, "{verified:?}");
    assert_eq!(
        (verified.findings[0].path.as_deref(), verified.findings[0].out_of_reach),
        (Some(&b"d/first"[..]), false)
    );
    let other = place.node("two").open("ws").unwrap();
    let read = |name: &[u8]| {
        let ino = other.engine().lookup(directory, name).unwrap().ino;
        other.engine().read(ino, 0, 200_000)
    };
    assert_eq!(read(b"second").unwrap(), noise(131_072));
    assert!(read(b"first").is_err());
}

#[test]
fn a_lost_part_of_the_tree_is_told_and_the_rest_is_read() {
    let place = Place::new();
    let volume = place.volume("ws");
    for number in 0..2000 {
        write_file(volume.engine(), &format!("f{number}"), b"x");
    }
    volume.commit().unwrap();
    let before = segments(&place);
    // The leaf of the last files is written anew, and then damaged.
    let last = write_file(volume.engine(), "last", &noise(10));
    volume.commit().unwrap();
    drop(volume);
    assert_eq!(verify(&place).findings, []);
    let mut harmed = 0;
    for path in segments(&place).difference(&before) {
        let sound = fs::read(path).unwrap();
        for at in (0..sound.len()).step_by(397) {
            let mut flipped = sound.clone();
            flipped[at] ^= 0x10;
            fs::write(path, flipped).unwrap();
            let verified = verify(&place);
            harmed += usize::from(!verified.findings.is_empty());
            assert!(verified.findings.iter().all(|finding| !finding.out_of_reach), "{verified:?}");
        }
        fs::write(path, sound).unwrap();
    }
    assert!(harmed > 10);
    let volume = place.node("one").open("ws").unwrap();
    assert!(read_file(volume.engine(), "f7").is_some() && volume.engine().attributes(last).is_ok());
}

#[test]
fn a_store_that_is_away_is_not_called_damaged() {
    let place = Place::new();
    let volume = place.volume("ws");
    write_file(volume.engine(), "a", &noise(1000));
    volume.commit().unwrap();
    let node = place.node("one");
    node.verify(&Origin::Volume("ws".to_owned())).unwrap();
    place.set_errors(0.5);
    let tries = (0..200).filter_map(|_| node.verify(&Origin::Volume("ws".to_owned())).ok());
    let verified = tries.into_iter().find(|verified| !verified.findings.is_empty()).unwrap();
    assert!(verified.findings.iter().all(|finding| finding.out_of_reach), "{verified:?}");
    place.set_errors(0.0);
    assert_eq!(verify(&place).findings, []);
}
