//! The bounded part of an output.

use base::limits::MCP_OUTPUT_BYTES_MAX;

const HALF: usize = MCP_OUTPUT_BYTES_MAX / 2;

/// The start and the end of an output of any length.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    start: Vec<u8>,
    end: std::collections::VecDeque<u8>,
    left_out: usize,
}

impl Kept {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let (start, rest) = bytes.split_at(bytes.len().min(HALF - self.start.len()));
        self.start.extend_from_slice(start);
        self.end.extend(rest);
        let excess = self.end.len().saturating_sub(HALF);
        self.end.drain(..excess);
        self.left_out += excess;
    }

    /// As text, with a line about what is missing.
    pub(crate) fn text(self) -> String {
        let end = Vec::from(self.end);
        if self.left_out == 0 {
            return String::from_utf8_lossy(&[self.start, end].concat()).into_owned();
        }
        let (start, end) = (String::from_utf8_lossy(&self.start), String::from_utf8_lossy(&end));
        format!("{start}\n[... {} bytes are left out ...]\n{end}", self.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_output_is_whole() {
        let mut kept = Kept::default();
        "größer".bytes().for_each(|byte| kept.push(&[byte]));
        assert_eq!(kept.text(), "größer");
    }

    #[test]
    fn of_a_long_output_start_and_end_are_kept() {
        let mut kept = Kept::default();
        for number in 0..100_000 {
            kept.push(format!("{number}\n").as_bytes());
        }
        let text = kept.text();
        assert!(text.starts_with("0\n1\n") && text.ends_with("99998\n99999\n"));
        assert!(text.contains("bytes are left out") && text.len() < MCP_OUTPUT_BYTES_MAX + 100);
    }
}
