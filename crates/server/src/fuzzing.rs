//! Parsers that are private, for the fuzz targets in `fuzz/`. A failed assertion is a finding.

/// A form of files (`multipart/form-data`). The first byte is the length of the pieces in which it comes.
pub fn form(bytes: &[u8]) {
    crate::e2b::inside::fuzz_form(bytes);
}

/// Headers of requests for files: a range, or the content type of a form.
pub fn headers(text: &str) {
    crate::e2b::inside::fuzz_headers(text);
}

/// Queries of lists, and of requests for files, signed or not. A filter by metadata has the pairs that an SDK would have encoded.
pub fn queries(text: &str) {
    crate::e2b::sandboxes::list::fuzz(text);
    crate::e2b::inside::fuzz_query(text);
}
