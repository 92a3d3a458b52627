use super::*;

fn meta() -> Meta {
    Meta {
        key: "exec-1".into(),
        sandbox: "s0123456789ab".into(),
        argv: vec!["a".into()],
        env: vec![("A".into(), "1".into())],
        cwd: "/".into(),
        tag: None,
        user: "user".into(),
        terminal: false,
        stdin: true,
        foreground: false,
        started_ms: 5,
        deadline_ns: None,
        timeout_ms: None,
        streams: Vec::new(),
        terminal_number: None,
    }
}

fn pipe(bytes: &[u8]) -> OwnedFd {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    rustix::io::write(&writer, bytes).unwrap();
    reader
}

#[test]
fn the_header_is_as_documented() {
    let file = create_with(&meta(), &[], 4096).unwrap();
    let record = Record::open(file.try_clone().unwrap()).unwrap();
    record.set_process(Process { inside: 7, outside: 1007, start_ticks: 99 });
    let span = record.room(1, None, 100).unwrap();
    assert_eq!(record.read_from(1, pipe(b"words").as_fd(), span).unwrap(), 5);
    record.close_input();
    record.set_reason(Reason::TimedOut);
    record.set_reason(Reason::ClientLeft);
    record.set_end(Status::Signal(15), 6);
    record.settle();
    let mut header = [0; WORDS * 8];
    read_at(file.as_fd(), &mut header, 0).unwrap();
    let words: Vec<u64> = header.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    let json = serde_json::to_vec(&meta()).unwrap().len() as u64;
    let golden = [0x014d_434f_444e_4150, json, 4096, 2, 7, 1007, 99, 1, 1, 2 << 32 | 15, 6, 1, 1, 0, 0, 0, 0, 5, 0, 5];
    assert_eq!(words, golden);
}

#[test]
fn an_entry_says_what_the_holder_wrote() {
    let file = create_with(&meta(), &[], 4096).unwrap();
    let record = Record::open(file.try_clone().unwrap()).unwrap();
    let process = Process { inside: 7, outside: 1007, start_ticks: 99 };
    record.set_process(process);
    record.close_input();
    let entry = Entry { meta: meta(), process, end: None, settled: false, totals: vec![0, 0], input_closed: true };
    assert_eq!(Entry::read(&file).unwrap(), entry);
    record.set_end(Status::Code(3), 6);
    let end = Some(End { status: Status::Code(3), reason: None, ended_ms: 6 });
    assert_eq!(Entry::read(&file).unwrap(), Entry { end, ..entry });
    assert_eq!(record.end(), end);
}

#[test]
fn negative_codes_and_unknown_statuses_survive() {
    for status in [Status::Code(-1), Status::Code(255), Status::Signal(9), Status::Unknown] {
        assert_eq!(Status::of_word(status.word()), status);
    }
    assert_eq!(Status::of_word(0), Status::Unknown);
    assert_eq!([Status::of_wait(7 << 8), Status::of_wait(0x8b)], [Status::Code(7), Status::Signal(11)]);
}

#[test]
fn a_damaged_file_is_refused() {
    let good = create_with(&meta(), &[], 4096).unwrap();
    for (word, value) in [(0, 1), (1, 1 << 40), (1, 0), (2, 0), (2, u64::MAX), (2, 8192), (3, 0), (3, 3), (3, 1)] {
        let file = create_with(&meta(), &[], 4096).unwrap();
        write_at(&file, &u64::to_le_bytes(value), word * 8).unwrap();
        assert!(Entry::read(&file).is_err(), "word {word} is {value}");
    }
    write_at(&good, b"?", HEADER_BYTES).unwrap();
    assert!(Entry::read(&good).is_err());
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    assert!(Record::open(reader).is_err());
}

#[test]
fn output_wraps_around_and_is_read_in_order() {
    let record = Record::open(create_with(&meta(), &[], 4096).unwrap()).unwrap();
    let mut written = Vec::new();
    for k in 0..7u8 {
        let bytes = vec![k; 1000];
        let pipe = pipe(&bytes);
        let mut left = bytes.len();
        while left > 0 {
            let span = record.room(0, None, left as u64).unwrap();
            left -= record.read_from(0, pipe.as_fd(), span).unwrap();
        }
        written.extend(bytes);
    }
    let (mut position, mut seen) = (0, Vec::new());
    loop {
        let next = record.next(0, position, 900);
        position += next.missed;
        let Some(span) = next.span else { break };
        seen.extend(record.copy_out(0, span).unwrap());
        position += span.length;
    }
    assert_eq!((seen.as_slice(), record.kept()), (&written[7000 - 4096..], 4096));
}

#[test]
fn a_command_that_goes_on_has_the_end_of_its_output() {
    let before = [vec![b'x'; 5000], b"of errors".to_vec()];
    let file = create_with(&meta(), &before, 4096).unwrap();
    assert_eq!(Entry::read(&file).unwrap().totals, [4096, 9]);
    assert_eq!(last_output(&file, 10).unwrap(), [vec![b'x'; 10], b"of errors".to_vec()]);
    let (from, to) = rustix::pipe::pipe().unwrap();
    let record = Record::open(file).unwrap();
    rustix::io::write(&to, b"yz").unwrap();
    let room = record.room(0, None, 100).unwrap();
    assert_eq!(record.read_from(0, from.as_fd(), room).unwrap(), 2);
    let kept = last_output(record.file(), 1 << 20).unwrap();
    assert!(kept[0].len() == 4096 && kept[0].ends_with(b"xyz") && kept[1] == b"of errors");
}
