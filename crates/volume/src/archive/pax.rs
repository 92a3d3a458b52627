//! Records of an extended header: `LENGTH KEY=VALUE\n`, where LENGTH counts itself.

use crate::inode::Time;

/// Appends one record.
pub(super) fn push(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
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
pub(super) fn parse(mut bytes: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
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

/// A moment as seconds with nine digits behind the point.
pub(super) fn from_time(time: Time) -> String {
    match (time.seconds, time.nanos) {
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
pub(super) fn to_time(text: &[u8]) -> Option<Time> {
    let text = std::str::from_utf8(text).ok()?;
    let (negative, text) = text.strip_prefix('-').map_or((false, text), |text| (true, text));
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) || !whole.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let seconds: i64 = whole.parse().ok()?;
    let nanos: u32 = format!("{:0<9}", fraction.get(..9).unwrap_or(fraction)).parse().ok()?;
    Some(match (negative, nanos) {
        (false, nanos) => Time { seconds, nanos },
        (true, 0) => Time { seconds: -seconds, nanos: 0 },
        (true, nanos) => Time { seconds: -seconds - 1, nanos: 1_000_000_000 - nanos },
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
    fn moments_read_back_on_both_sides_of_1970() {
        for (seconds, nanos) in [(0, 0), (0, 1), (1_700_000_000, 123_456_789), (-1, 0), (-1, 999_999_999), (-5, 1)] {
            let time = Time { seconds, nanos };
            assert_eq!(to_time(from_time(time).as_bytes()), Some(time), "{}", from_time(time));
        }
        assert_eq!(from_time(Time { seconds: -1, nanos: 750_000_000 }), "-0.250000000");
        assert_eq!(to_time(b"1.5000000009"), Some(Time { seconds: 1, nanos: 500_000_000 }));
        for bad in [&b""[..], b"x", b"1.-5", b"--1", b"+1"] {
            assert_eq!(to_time(bad), None, "{bad:?}");
        }
    }
}
