//! The programs that are measured. They travel as `python3 -c SOURCE`, so that nothing has to be visible inside a sandbox.

/// The interpreter, by a path that every sandbox has.
const PYTHON: &str = "/usr/bin/python3";
const GEO: &str = include_str!("../../../examples/geo.py");
const THREADS: &str = include_str!("threads.py");

/// The port that all listen on inside a sandbox.
pub(super) const PORT: u16 = 8080;

/// The hotel search with this much extra memory, listening on `port`.
pub(super) fn geo(extra_mib: u32, port: u16) -> Vec<String> {
    python(GEO, &["--port", &port.to_string(), "--mb", &extra_mib.to_string()])
}

/// A server with this many idle threads.
pub(super) fn threads(count: u32) -> Vec<String> {
    python(THREADS, &[&PORT.to_string(), &count.to_string()])
}

/// Runs `source`.
pub(super) fn python(source: &str, args: &[&str]) -> Vec<String> {
    [PYTHON, "-c", source].iter().chain(args).map(|arg| (*arg).to_owned()).collect()
}
