//! Bytes as text: `%XX` for what is no readable UTF-8.

/// A name as people can read it, and from which [`decode`] makes the same bytes again.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let escape = |text: &mut String, bytes: &[u8]| {
        text.extend(bytes.iter().map(|byte| format!("%{byte:02X}")));
    };
    for part in bytes.utf8_chunks() {
        for letter in part.valid().chars() {
            match letter == '%' || letter.is_control() {
                true => escape(&mut text, letter.encode_utf8(&mut [0; 4]).as_bytes()),
                false => text.push(letter),
            }
        }
        escape(&mut text, part.invalid());
    }
    text
}

/// A path as a part of an address: all but slashes and what RFC 3986 (2.3) leaves as it is becomes `%XX`.
pub(crate) fn address(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let mut text = String::with_capacity(path.len());
    for byte in path.bytes() {
        match plain(byte) {
            true => text.push(char::from(byte)),
            false => text.extend([format!("%{byte:02X}")]),
        }
    }
    text
}

/// The bytes that a text stands for; a `%` that is not followed by two digits stands for itself.
pub(crate) fn decode(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let digits = || Some(digit(*behind.first()?)? << 4 | digit(*behind.get(1)?)?);
        let escaped = if *first == b'%' { digits() } else { None };
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &behind[2..] } else { behind };
    }
    bytes
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_come_back() {
        let all: Vec<u8> = (0..=255).collect();
        for bytes in [&all[..], b"", b"%", b"100%25", "häuser/файл".as_bytes(), b"\xff\n"] {
            assert_eq!(decode(&encode(bytes)), bytes);
        }
    }

    #[test]
    fn addresses_have_no_byte_that_means_something_else() {
        assert_eq!(address("a b/ä?#%&+.txt"), "a%20b/%C3%A4%3F%23%25%26%2B.txt");
    }

    #[test]
    fn what_is_readable_stays_and_what_is_no_escape_is_taken_as_it_is() {
        assert_eq!(encode("a b/ä".as_bytes()), "a b/ä");
        assert_eq!(encode(b"\xff%\n"), "%FF%25%0A");
        assert_eq!(decode("50%, %zz, %4"), b"50%, %zz, %4");
        assert_eq!(decode("%c3%A4"), "ä".as_bytes());
    }
}
