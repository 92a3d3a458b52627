use super::*;

/// A form as clients send it.
fn form(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut text = Vec::new();
    for (headers, content) in parts {
        text.extend_from_slice(format!("--XX\r\n{headers}\r\n\r\n").as_bytes());
        text.extend_from_slice(content);
        text.extend_from_slice(b"\r\n");
    }
    text.extend_from_slice(b"--XX--\r\n");
    text
}

fn file(name: &str) -> String {
    format!("Content-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\nContent-Type: a/b")
}

/// Name and content of each part, of a body that comes in pieces.
async fn read(body: &[u8], piece: usize) -> Result<Vec<(Option<String>, Vec<u8>)>, Error> {
    let pieces: Vec<_> = body.chunks(piece).map(|piece| Ok::<_, String>(Bytes::copy_from_slice(piece))).collect();
    let mut form = Form::new(futures::stream::iter(pieces), "XX");
    let mut parts = Vec::new();
    while let Some(head) = form.next_part().await? {
        let mut content = Vec::new();
        while let Some(bytes) = form.chunk().await? {
            content.extend_from_slice(&bytes);
        }
        parts.push((head.file_name, content));
    }
    Ok(parts)
}

#[tokio::test]
async fn parts_are_the_same_however_the_body_is_cut() {
    let hard: &[u8] = b"\r\n--X\r\n--\r\r\n--XY\r\n\r\n--";
    let names = [file("/home/user/a b"), file("q\\\"\\\\u\u{e4};x=1"), file("")];
    let body = form(&[(&names[0], b"hello"), (&names[1], hard), (&names[2], b"")]);
    let body = [b"a preamble\r\n--X", &body[..0], b"\r\n", &body[..], b"an epilogue"].concat();
    for piece in 1..body.len() + 1 {
        let parts = read(&body, piece).await.unwrap();
        let expected = [
            (Some("/home/user/a b".to_owned()), b"hello".to_vec()),
            (Some("q\"\\u\u{e4};x=1".to_owned()), hard.to_vec()),
            (Some(String::new()), Vec::new()),
        ];
        assert_eq!(parts, expected, "{piece}");
    }
    assert_eq!(read(b"--XX--", 1).await.unwrap(), []);
    assert_eq!(read(b"--XX\r\n\r\nno headers\r\n--XX--", 3).await.unwrap(), [(None, b"no headers".to_vec())]);
}

#[tokio::test]
async fn the_longest_headers_are_the_same_however_the_body_is_cut() {
    for length in FORM_HEAD_BYTES_MAX - 3..FORM_HEAD_BYTES_MAX + 2 {
        // The line end before the headers counts.
        let head = [&b"A: "[..], &vec![b'a'; length - "\r\nA: ".len()]].concat();
        let headers = [b"--XX\r\n", &head[..], b"\r\n\r\nhello\r\n--XX--"].concat();
        let spaces = [b"--XX", &vec![b' '; length][..], b"\r\n\r\nhello\r\n--XX--"].concat();
        for body in [headers, spaces] {
            let whole = read(&body, body.len()).await;
            assert_eq!(whole.is_ok(), length <= FORM_HEAD_BYTES_MAX, "{length}");
            // Before, in and behind the end of the headers or spaces.
            for piece in "--XX".len() + length..="--XX".len() + length + 4 {
                assert_eq!(read(&body, piece).await, whole, "{length} {piece}");
            }
        }
    }
}

#[tokio::test]
async fn a_form_without_an_end_has_broken_off() {
    let body = form(&[(&file("a"), b"hello")]);
    for length in 0..body.len() - "--\r\n".len() {
        assert!(matches!(read(&body[..length], 7).await, Err(Error::BrokenOff(_))), "{length}");
    }
    for damaged in ["--XX?", "--XX-\r", "--XX \t x"] {
        assert!(matches!(read(damaged.as_bytes(), 2).await, Err(Error::Damaged(_))), "{damaged}");
    }
    let body = form(&[("Content-Disposition: \u{0}", b"")]);
    assert_eq!(read(&body, 9).await.unwrap(), [(None, Vec::new())]);
    assert!(matches!(read(b"--XX\r\n\xff: x\r\n\r\n", 4).await, Err(Error::Damaged(_))));
}

#[test]
fn headers_without_an_end_take_no_memory() {
    for beginning in ["--XX\r\nx: ", "--XX", "--XX\r\nContent-Disposition: form-data; filename=\"", ""] {
        let mut parser = Parser::new("XX");
        let mut events = VecDeque::new();
        let mut fed = parser.feed(Bytes::from_static(beginning.as_bytes()), &mut events);
        let spaces = Bytes::from_static(&[b' '; 1 << 10]);
        let mut rounds = 0;
        while fed.is_ok() && rounds < 10_000 {
            rounds += 1;
            fed = parser.feed(spaces.clone(), &mut events);
            assert!(parser.kept_bytes() <= FORM_HEAD_BYTES_MAX + (2 << 10), "{beginning:?}");
        }
        // Bytes before the first boundary are passed over.
        assert_eq!(fed.is_ok(), beginning.is_empty(), "{beginning:?}: {fed:?}");
        assert!(events.is_empty());
    }
}

#[tokio::test]
async fn parts_are_counted() {
    let part = "--XX\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\n\r\n";
    let body = part.repeat(FORM_PARTS_MAX + 1);
    assert_eq!(read(body.as_bytes(), 100_000).await, Err(Error::TooManyParts));
}

#[test]
fn boundaries_are_those_of_the_standard() {
    for (kind, expected) in [
        ("multipart/form-data; boundary=a", Some("a")),
        ("multipart/form-data; charset=utf-8; Boundary=\"a b;c\"", Some("a b;c")),
        ("multipart/form-data", None),
        ("multipart/form-data; boundary=", None),
        ("multipart/form-data; boundary=\"a \"", None),
    ] {
        assert_eq!(boundary(kind).ok(), expected, "{kind}");
    }
    assert!(boundary(&format!("x; boundary={}", "a".repeat(71))).is_err());
}
