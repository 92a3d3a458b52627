use std::{fs::File, os::fd::AsRawFd};

use super::*;

/// Descriptors belong to the whole process, and so to all tests that run at the same time.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn own(objects: &mut Objects) -> Files {
    let watched = Watched::new();
    let holders = Holder::all(std::iter::once((std::process::id() as i32, &watched))).unwrap();
    read(&holders, &[], &Terminals::default(), objects).unwrap()
}

#[test]
fn a_pipe_with_bytes_in_it_is_read_and_left_alone() {
    let _alone = ALONE.lock().unwrap();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    rustix::io::write(&writer, b"hello").unwrap();
    let files = own(&mut Objects::default());
    let file = files.files.iter().find(|file| file.numbers[0].0 == reader.as_raw_fd()).unwrap();
    let FileKind::Pipe { pipe, .. } = file.kind else { panic!("{file:?}") };
    assert_eq!(files.pipes[pipe].content, [b"hello"]);
    let mut bytes = [0; 5];
    assert_eq!(rustix::io::read(&reader, &mut bytes).unwrap(), 5);
}

#[test]
fn files_that_come_with_messages_are_found() {
    use rustix::net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
        socketpair,
    };
    let _alone = ALONE.lock().unwrap();
    let none = SocketFlags::empty();
    let (sender, receiver) = socketpair(AddressFamily::UNIX, SocketType::STREAM, none, None).unwrap();
    let (null, zero) = (File::open("/dev/null").unwrap(), File::open("/dev/zero").unwrap());
    let send = |bytes: &[u8], files: &[&File]| {
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let mut room = [std::mem::MaybeUninit::uninit(); 64];
        let mut control = SendAncillaryBuffer::new(&mut room);
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
        }
        sendmsg(&sender, &[std::io::IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
    };
    send(b"abc", &[]);
    send(b"two", &[&null, &zero]);
    send(b"d", &[]);
    send(b"ef", &[]);
    send(b"file", &[&zero]);
    let null_fd = null.as_raw_fd();
    drop(zero);
    let files = own(&mut Objects::default());
    let file = files.files.iter().find(|file| file.numbers.iter().any(|(n, _)| *n == receiver.as_raw_fd())).unwrap();
    let FileKind::UnixPair { pair, end } = file.kind else { panic!("{file:?}") };
    let queue = &files.pairs[pair].queues[end as usize];
    assert_eq!(queue, &[&b"abc"[..], b"two", b"def", b"file"]);
    let passed: Vec<_> = files.added.passed.iter().map(|passed| (passed.message, passed.files.len())).collect();
    assert_eq!(passed, [(1, 2), (3, 1)]);
    let [first, second] = files.added.passed[0].files[..] else { panic!() };
    assert!(files.files[first].numbers.iter().any(|(number, _)| *number == null_fd));
    assert!(files.files[second].numbers.is_empty(), "no descriptor is left");
    assert_eq!(files.added.passed[1].files, [second], "the same open file");
    assert_eq!(rustix::io::ioctl_fionread(&receiver).unwrap(), 13, "nothing is taken");
}

#[test]
fn duplicates_of_a_descriptor_are_one_open_file() {
    let _alone = ALONE.lock().unwrap();
    let file = File::open("/dev/null").unwrap();
    let again = file.try_clone().unwrap();
    let other = File::open("/dev/null").unwrap();
    let files = own(&mut Objects::default());
    let find =
        |fd: i32| files.files.iter().position(|file| file.numbers.iter().any(|(number, _)| *number == fd)).unwrap();
    assert_eq!(find(file.as_raw_fd()), find(again.as_raw_fd()));
    assert_ne!(find(file.as_raw_fd()), find(other.as_raw_fd()));
}
