//! Finds the timers that wait for a time of day: those of `CLOCK_REALTIME` that were set to an absolute time.
//!
//! The kernel shows how a timer descriptor was set. Of a POSIX timer it shows only the time that remains. It keeps absolute timers among those
//! of the wall clock, and relative timers among those of the monotonic clock, which a change of the time of day does not move
//! (`common_hrtimer_arm` in kernel/time/posix-timers.c). `/proc/timer_list` lists both with the nanosecond at which they expire, so a timer that
//! expires at exactly that time is the one. A POSIX timer that is in no list counts as relative, as most are: there is no such file, or the
//! timer has `SIGEV_NONE`, or a signal of it is pending.

use std::{fs, os::fd::AsFd, time::Duration};

use procfs::Fields;
use sys::remote;

use crate::{
    error::{Context, Error},
    image::{FileKind, OpenFile, WallTimer},
    observe::descriptors::{Holder, place_of, refused},
    refusal::Refusal,
};

const TIMER_LIST: &str = "/proc/timer_list";

/// The timer descriptors among `files` that were set to a time of day. A periodic one that has expired and was not read is asked when it
/// expires next. The kernel arms it again for that, as it does when the program reads it.
pub(crate) fn of_descriptors(
    holders: &[Holder<'_>],
    files: &mut [OpenFile],
    refusals: &mut Vec<Refusal>,
) -> Result<Vec<WallTimer>, Error> {
    let mut timers = Vec::new();
    for file in files {
        let (FileKind::Timerfd { clock, ticks, value }, Some((number, _))) = (&mut file.kind, file.numbers.first())
        else {
            continue;
        };
        let (pid, fd) = place_of(holders, *number);
        let path = format!("/proc/{pid}/fdinfo/{fd}");
        let is_due = value.remaining == (0, 0) && value.interval != (0, 0);
        if !is_due && *clock != libc::CLOCK_REALTIME {
            continue;
        }
        let mut info = Fields::read(path.clone())?;
        if was_cancelled(&info)? {
            refusals.extend(refused(holders, *number, |fd| Refusal::CancelledTimer { fd }));
        }
        if is_due {
            ask(pid, fd)?;
            info = Fields::read(path)?;
            (*ticks, value.remaining) = (info.number("ticks", 10)?, info.pair("it_value"));
        }
        if *clock == libc::CLOCK_REALTIME {
            timers.extend(of_descriptor(*number, &info, now())?);
        }
    }
    Ok(timers)
}

/// Asks a timer descriptor what remains.
fn ask(pid: i32, fd: i32) -> Result<(), Error> {
    let process =
        rustix::process::Pid::from_raw(pid).ok_or(Error::Unexpected { pid, what: "is no process id".into() })?;
    let process = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty()).of("open", pid)?;
    let timer = remote::take_descriptor(process.as_fd(), fd).of("duplicate a descriptor", pid)?;
    rustix::time::timerfd_gettime(&timer).of("read a timer", pid)?;
    Ok(())
}

/// One that is due has ticks and no time left. One with ticks that has not come to its time was cancelled, and the program has not read that.
fn was_cancelled(info: &Fields) -> Result<bool, Error> {
    let flags = info.number("settime flags", 8)? as i32;
    let has_come = info.pair("it_value") == (0, 0);
    Ok(flags & libc::TFD_TIMER_CANCEL_ON_SET != 0 && !has_come && info.number("ticks", 10)? != 0)
}

/// One of them, as its `fdinfo` shows it at the time `now`.
fn of_descriptor(fd: i32, info: &Fields, now: Duration) -> Result<Option<WallTimer>, Error> {
    let flags = info.number("settime flags", 8)? as i32;
    let due = match info.pair("it_value") {
        (0, 0) => (0, 0),
        (seconds, nanoseconds) => parts(now + Duration::new(seconds, nanoseconds as u32)),
    };
    let cancels = flags & libc::TFD_TIMER_CANCEL_ON_SET != 0;
    Ok((flags & libc::TFD_TIMER_ABSTIME != 0).then_some(WallTimer { which: fd, due, cancels }))
}

fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn parts(time: Duration) -> (u64, u64) {
    (time.as_secs(), time.subsec_nanos().into())
}

/// A POSIX timer of `CLOCK_REALTIME` that is armed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Armed {
    pub(crate) id: i32,
    /// If it waits for a time of day, for one from this to the next: what remained was read between two looks at the clock.
    pub(crate) earliest: Duration,
    pub(crate) latest: Duration,
    pub(crate) interval: Duration,
}

/// Those of `armed` that wait for a time of day.
pub(crate) fn of_timers(armed: &[Armed]) -> Result<Vec<WallTimer>, Error> {
    if armed.is_empty() {
        return Ok(Vec::new());
    }
    match fs::read_to_string(TIMER_LIST) {
        Ok(list) => Ok(among(armed, &due_times(&list))),
        // Some containers hide it.
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::PermissionDenied) => {
            tracing::debug!(%error, "{TIMER_LIST} cannot be read: POSIX timers go on with what remains of them");
            Ok(Vec::new())
        }
        Err(error) => Err(error).on("read", TIMER_LIST),
    }
}

fn among(armed: &[Armed], due: &[Duration]) -> Vec<WallTimer> {
    let found = armed.iter().filter_map(|timer| {
        let due = due.iter().find(|due| timer.is_due_at(**due))?;
        Some(WallTimer { which: timer.id, due: parts(*due), cancels: false })
    });
    found.collect()
}

impl Armed {
    /// Also where it has been due once more since, in a program whose other threads were still being stopped.
    fn is_due_at(&self, due: Duration) -> bool {
        let Some(later) = due.checked_sub(self.earliest) else { return false };
        let periods = match self.interval.as_nanos() {
            0 => 0,
            interval => later.as_nanos() / interval,
        };
        let late = later.as_nanos() - periods * self.interval.as_nanos();
        late <= (self.latest - self.earliest).as_nanos()
    }
}

/// When the POSIX timers of the wall clock are due.
fn due_times(list: &str) -> Vec<Duration> {
    /// `enum hrtimer_base_type`: CLOCK_REALTIME, and the same for softirq context.
    const WALL: [&str; 2] = ["1", "5"];
    let (mut is_wall, mut is_posix, mut due) = (false, false, Vec::new());
    for line in list.lines().map(str::trim) {
        if let Some(index) = line.strip_prefix(".index:") {
            is_wall = WALL.contains(&index.trim());
        } else if let Some(times) = line.strip_prefix("# expires at ") {
            let first = times.split('-').next().and_then(|time| time.parse().ok());
            due.extend(first.filter(|_| is_wall && is_posix).map(Duration::from_nanos));
        } else if line.starts_with('#') {
            is_posix = line.contains("posix_timer_fn");
        }
    }
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn info(flags: &str, ticks: u32, value: &str) -> Fields {
        Fields::of(&format!(
            "clockid: 0\nticks: {ticks}\nsettime flags: {flags}\nit_value: {value}\nit_interval: (0, 0)\n"
        ))
    }

    #[test]
    fn a_descriptor_waits_for_a_time_of_day_if_it_was_set_to_one() {
        let of = |flags: &str, value: &str| of_descriptor(7, &info(flags, 0, value), seconds(100)).unwrap();
        let timer = |due, cancels| Some(WallTimer { which: 7, due, cancels });
        assert_eq!([of("00", "(5, 9)"), of("01", "(5, 9)")], [None, timer((105, 9), false)]);
        assert_eq!([of("03", "(5, 9)"), of("01", "(0, 0)")], [timer((105, 9), true), timer((0, 0), false)]);
    }

    #[test]
    fn a_timer_that_was_cancelled_and_not_read_is_told_from_one_that_is_due() {
        let of = |flags: &str, ticks, value: &str| was_cancelled(&info(flags, ticks, value)).unwrap();
        assert!(of("03", 1, "(5, 0)"));
        assert!(!of("01", 1, "(5, 0)") && !of("03", 1, "(0, 0)") && !of("03", 0, "(5, 0)"));
    }

    const LIST: &str = "cpu: 0\n clock 0:\n  .base:       00000000ddb8504d\n  .index:      0\n  .resolution: 1 nsecs\n\
active timers:\n #0: <0000000056ea3e59>, posix_timer_fn, S:01\n # expires at 4000000000-4000000000 nsecs [in 1 to 1 nsecs]\n\
 clock 1:\n  .index:      1\nactive timers:\n #0: <0000000056ea3e59>, hrtimer_wakeup, S:01\n # expires at 5000000000-5000050000 nsecs [in 1 to 1 nsecs]\n\
 #1: <0000000056ea3e59>, posix_timer_fn, S:01\n # expires at 6000000000-6000000000 nsecs [in 1 to 1 nsecs]\n clock 2:\n  .index:      2\n";

    #[test]
    fn only_posix_timers_of_the_wall_clock_are_looked_at() {
        assert_eq!(due_times(LIST), [seconds(6)]);
    }

    #[test]
    fn a_timer_is_the_one_that_is_due_at_its_very_time() {
        let armed = |id, earliest_ns, latest_ns, interval| Armed {
            id,
            earliest: Duration::from_nanos(earliest_ns),
            latest: Duration::from_nanos(latest_ns),
            interval,
        };
        let all = [
            armed(1, 5_999_999_000, 6_000_000_500, Duration::ZERO),
            armed(2, 5_999_998_000, 5_999_999_999, Duration::ZERO),
            armed(3, 6_000_000_001, 6_000_000_500, Duration::ZERO),
            armed(4, 2_999_999_900, 3_000_000_100, seconds(1)),
            armed(5, 2_500_000_000, 2_500_000_100, seconds(1)),
        ];
        let found: Vec<i32> = among(&all, &[seconds(6)]).iter().map(|timer| timer.which).collect();
        assert_eq!(found, [1, 4]);
    }
}
