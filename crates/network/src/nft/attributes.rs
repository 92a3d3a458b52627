//! Attributes of netlink messages: length, type, value, to four bytes (netlink(7)). Numbers in nf_tables have the order of the network.

/// Several, as bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Attributes(Vec<u8>);

const HEADER: usize = 4;
const NESTED: u16 = 1 << 15;
/// The bits of a type that are no flags.
const KIND: u16 = (1 << 14) - 1;

impl Attributes {
    pub(super) fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.extend(((HEADER + value.len()) as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub(super) fn text(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes)
    }

    pub(super) fn number(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub(super) fn long(self, kind: u16, value: u64) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub(super) fn nested(self, kind: u16, value: &Self) -> Self {
        self.bytes(kind | NESTED, &value.0)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The value of the attribute of a kind, if it is there.
pub(super) fn value_of(mut bytes: &[u8], kind: u16) -> Option<&[u8]> {
    while let Some(header) = bytes.get(..HEADER) {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let value = bytes.get(HEADER..length)?;
        if u16::from_ne_bytes([header[2], header[3]]) & KIND == kind {
            return Some(value);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
    None
}

pub(super) fn text_of(bytes: &[u8], kind: u16) -> Option<String> {
    let value = value_of(bytes, kind)?;
    Some(String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)).into_owned())
}

pub(super) fn number_of(bytes: &[u8], kind: u16) -> Option<u32> {
    value_of(bytes, kind)?.try_into().ok().map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_found_again() {
        let attributes = Attributes::default().text(1, "ab").number(2, 7).text(3, "chain");
        assert_eq!(attributes.as_bytes()[..8], [7, 0, 1, 0, b'a', b'b', 0, 0]);
        assert_eq!(attributes.as_bytes()[8..16], [8, 0, 2, 0, 0, 0, 0, 7]);
        assert_eq!(text_of(attributes.as_bytes(), 3).as_deref(), Some("chain"));
        assert_eq!((text_of(attributes.as_bytes(), 4), number_of(attributes.as_bytes(), 2)), (None, Some(7)));
        for end in 0..attributes.as_bytes().len() {
            let _ = text_of(&attributes.as_bytes()[..end], 9);
        }
        assert_eq!(text_of(&[0, 0, 1, 0], 9), None);
    }
}
