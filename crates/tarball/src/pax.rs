//! Records of an extended header: `LENGTH KEY=VALUE\n`, where LENGTH counts itself.

/// Files with holes, version 1.0: these two say it, then come the name, and the size with holes.
pub const SPARSE_MAJOR: &str = "GNU.sparse.major";
/// See [`SPARSE_MAJOR`].
pub const SPARSE_MINOR: &str = "GNU.sparse.minor";
/// See [`SPARSE_MAJOR`]; version 0.1 has it, too.
pub const SPARSE_NAME: &str = "GNU.sparse.name";
/// See [`SPARSE_MAJOR`].
pub const SPARSE_REALSIZE: &str = "GNU.sparse.realsize";
/// Versions 0.0 and 0.1: the size with holes.
pub(crate) const SPARSE_SIZE: &str = "GNU.sparse.size";
/// Version 0.1: the list.
pub(crate) const SPARSE_MAP: &str = "GNU.sparse.map";
/// Version 0.0: these two again and again.
pub(crate) const SPARSE_OFFSET: &str = "GNU.sparse.offset";
/// See [`SPARSE_OFFSET`].
pub(crate) const SPARSE_NUMBYTES: &str = "GNU.sparse.numbytes";
/// Before the name of an extended attribute, as star, GNU tar and Docker write it. libarchive does so, too, beside a form of its own.
pub const XATTR: &str = "SCHILY.xattr.";

/// Appends one record.
pub fn push(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    // Blank, equals sign and line end.
    let rest = key.len() + value.len() + 3;
    let mut length = rest + digits(rest);
    if digits(length) > digits(rest) {
        length = rest + digits(length);
    }
    records.extend_from_slice(format!("{length} ").as_bytes());
    records.extend_from_slice(key);
    records.push(b'=');
    records.extend_from_slice(value);
    records.push(b'\n');
}

fn digits(number: usize) -> usize {
    number.to_string().len()
}

/// All records; `None` if they are malformed.
pub fn parse(mut bytes: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let blank = bytes.iter().position(|byte| *byte == b' ')?;
        let length: usize = std::str::from_utf8(bytes.get(..blank)?).ok()?.parse().ok()?;
        let record = bytes.get(blank + 1..length)?;
        let (b'\n', record) = record.split_last()? else { return None };
        let equals = record.iter().position(|byte| *byte == b'=')?;
        records.push((&record[..equals], &record[equals + 1..]));
        bytes = &bytes[length..];
    }
    Some(records)
}

/// A moment, in seconds since 1970 and nanoseconds behind them, as seconds with nine digits behind the point.
pub fn from_time(seconds: i64, nanos: u32) -> String {
    match (seconds, nanos) {
        (seconds, 0) => format!("{seconds}"),
        (seconds, nanos) if seconds >= 0 => format!("{seconds}.{nanos:09}"),
        // The fraction goes on in the direction of the sign.
        (seconds, nanos) => {
            let whole = (seconds + 1).unsigned_abs();
            format!("-{whole}.{:09}", 1_000_000_000 - nanos)
        }
    }
}

/// The reverse; digits beyond nanoseconds are dropped.
pub fn to_time(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (negative, text) = text.strip_prefix('-').map_or((false, text), |text| (true, text));
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) || !whole.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let seconds: i64 = whole.parse().ok()?;
    let nanos: u32 = format!("{:0<9}", fraction.get(..9).unwrap_or(fraction)).parse().ok()?;
    Some(match (negative, nanos) {
        (false, nanos) => (seconds, nanos),
        (true, 0) => (-seconds, 0),
        (true, nanos) => (-seconds - 1, 1_000_000_000 - nanos),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back_at_every_length_of_their_length() {
        let mut records = Vec::new();
        let lengths = [0, 1, 2, 3, 85, 86, 87, 88, 985, 986, 987, 988, 9990];
        for length in lengths {
            push(&mut records, b"key", &vec![b'='; length]);
        }
        let parsed = parse(&records).unwrap();
        assert_eq!(parsed.iter().map(|(_, value)| value.len()).collect::<Vec<_>>(), lengths);
        for bad in [&b"5 a=b"[..], b"x a=b\n", b"99 a=b\n", b"4 ab\n", b"0 a=b\n", b"6a=b\n"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn values_may_have_line_ends_and_any_bytes() {
        let found = parse(b"18 path=some\nname\n12 a=b=\x00\xff\n\n\n6 e=\n\n").unwrap();
        let expected = [(&b"path"[..], &b"some\nname"[..]), (b"a", b"b=\x00\xff\n\n"), (b"e", b"\n")];
        assert_eq!(found, expected);
        for bad in [&b"9 a=b\n"[..], b"6 abcd\n", b"0 \n", b"999999999999999999999 a=b\n"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn moments_read_back_on_both_sides_of_1970() {
        for (seconds, nanos) in [(0, 0), (0, 1), (1_700_000_000, 123_456_789), (-1, 0), (-1, 999_999_999), (-5, 1)] {
            let text = from_time(seconds, nanos);
            assert_eq!(to_time(text.as_bytes()), Some((seconds, nanos)), "{text}");
        }
        assert_eq!(from_time(-1, 750_000_000), "-0.250000000");
        assert_eq!(to_time(b"1.5000000009"), Some((1, 500_000_000)));
        for bad in [&b""[..], b"x", b"1.-5", b"--1", b"+1"] {
            assert_eq!(to_time(bad), None, "{bad:?}");
        }
    }
}
