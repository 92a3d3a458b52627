//! Inputs made of several pieces.

/// Cuts an input into pieces: each has its length (u16, little-endian) before it; one that is too short ends the last piece.
pub(crate) fn pieces(mut input: &[u8]) -> Vec<&[u8]> {
    let mut pieces = Vec::new();
    while let Some((length, rest)) = input.split_first_chunk() {
        let (piece, rest) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes(*length))));
        pieces.push(piece);
        input = rest;
    }
    pieces
}

/// A frame of version 1.
pub(crate) fn framed(kind: u16, payload: &[u8]) -> Vec<u8> {
    base::frame::encode(kind, 1, payload).expect("inputs are short")
}

/// As compressed parts are stored.
pub(crate) fn packed(kind: u16, plain: &[u8]) -> Vec<u8> {
    framed(kind, &zstd::bulk::compress(plain, 1).expect("it is in memory"))
}
