//! Work that others should not wait for.

/// Works with a tenth of the weight of everything else (`nice` 10; setpriority(2)): this thread alone, and only meanwhile. Hold no lock that somebody
/// else waits for. Who may not raise its priority again, as privileged processes may, stays slow.
pub fn at_low_priority<T>(work: impl FnOnce() -> T) -> T {
    const NICE: i32 = 10;
    let _ = rustix::process::setpriority_process(None, NICE);
    let done = work();
    let _ = rustix::process::setpriority_process(None, 0);
    done
}
