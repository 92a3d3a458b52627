//! POSIX timers, which keep their numbers.
//!
//! Linux 6.15 and newer give a timer the number that is asked for. Before, a process gets the next number each time, from 0 on. There a copy
//! makes timers and deletes them until the wanted number is next.

use crate::{
    error::Error,
    image::{PosixTimer, ProgramImage, TimerValue, WallTimer, wall_timer},
    refusal::Refusal,
    script::{Arena, Check, Script},
};

/// Numbers that are passed over where none can be asked for: each takes two steps of the script, which is part of every copy.
const PASSED_OVER_MAX: usize = 256;

const PR_TIMER_CREATE_RESTORE_IDS: i32 = 77;
const CLOCK_MONOTONIC: i32 = 1;
const SIGEV_NONE: i32 = 1;

/// How timers get their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimerNumbers {
    Chosen,
    InOrder,
}

impl TimerNumbers {
    /// What this kernel can.
    pub(crate) fn here() -> Self {
        if sys::kernel::chooses_timer_numbers() { Self::Chosen } else { Self::InOrder }
    }
}

/// Refuses timers whose numbers they cannot get on this kernel.
pub(crate) fn check(image: &ProgramImage) -> Result<(), Error> {
    let refusal = refusal(&image.posix_timers, image.attributes.chooses_timer_ids, TimerNumbers::here());
    refusal.map_or(Ok(()), |refusal| Err(Error::Refused(vec![refusal])))
}

fn refusal(timers: &[PosixTimer], chooses: bool, numbers: TimerNumbers) -> Option<Refusal> {
    let last = timers.iter().map(|timer| timer.id).max();
    match numbers {
        TimerNumbers::Chosen => None,
        TimerNumbers::InOrder if chooses => {
            Some(Refusal::TimerNumbers { found: last.unwrap_or(0), max: PASSED_OVER_MAX })
        }
        TimerNumbers::InOrder => {
            let found = last?;
            let most = PASSED_OVER_MAX + timers.len();
            (found as usize >= most).then_some(Refusal::TimerNumbers { found, max: PASSED_OVER_MAX })
        }
    }
}

/// Makes all of them. The program may itself be about to choose numbers.
pub(super) fn make(arena: &mut Arena, script: &mut Script, image: &ProgramImage, numbers: TimerNumbers) {
    let stays = image.attributes.chooses_timer_ids;
    if image.posix_timers.is_empty() && !stays {
        return;
    }
    let wall = |timer: &PosixTimer| wall_timer(&image.wall_timers.posix, timer.id);
    if numbers == TimerNumbers::InOrder {
        in_order(arena, script, &image.posix_timers, wall);
        return;
    }
    choose(script, true);
    for timer in &image.posix_timers {
        make_one(arena, script, timer);
        arm(arena, script, timer, wall(timer));
    }
    if !stays {
        choose(script, false);
    }
}

fn choose(script: &mut Script, on: bool) {
    let args = [PR_TIMER_CREATE_RESTORE_IDS.into(), u64::from(on).into(), 0u64.into(), 0u64.into(), 0u64.into()];
    script.call(libc::SYS_prctl, args, Check::Success);
}

fn in_order<'a>(
    arena: &mut Arena,
    script: &mut Script,
    timers: &[PosixTimer],
    wall: impl Fn(&PosixTimer) -> Option<&'a WallTimer>,
) {
    let mut timers: Vec<_> = timers.iter().collect();
    timers.sort_unstable_by_key(|timer| timer.id);
    let event = arena.words(&[0, pair(0, SIGEV_NONE), 0, 0, 0, 0, 0, 0]);
    let [id, value] = [arena.words(&[0]), arena.words(&[0; 4])];
    let mut next = 0;
    for timer in timers {
        for number in next..timer.id {
            script.call(libc::SYS_timer_create, [CLOCK_MONOTONIC.into(), event.into(), id.into()], Check::Success);
            // Fails if the number is another.
            script.call(libc::SYS_timer_delete, [number.into()], Check::Success);
        }
        make_one(arena, script, timer);
        script.call(libc::SYS_timer_gettime, [timer.id.into(), value.into()], Check::Success);
        arm(arena, script, timer, wall(timer));
        next = timer.id + 1;
    }
}

fn make_one(arena: &mut Arena, script: &mut Script, timer: &PosixTimer) {
    // struct sigevent { value, signo, notify, tid, ... } of 64 bytes
    let event = arena.words(&[
        timer.sigev_value,
        pair(timer.signal, timer.notify),
        timer.notify_tid as u32 as u64,
        0,
        0,
        0,
        0,
        0,
    ]);
    let id = arena.words(&[timer.id as u32 as u64]);
    script.call(libc::SYS_timer_create, [timer.clock.into(), event.into(), id.into()], Check::Success);
}

fn arm(arena: &mut Arena, script: &mut Script, timer: &PosixTimer, wall: Option<&WallTimer>) {
    let TimerValue { interval, remaining } = timer.value;
    if remaining != (0, 0) {
        let (flags, time) = wall.map_or((0, remaining), |wall| (libc::TIMER_ABSTIME, wall.due));
        let place = arena.words(&[interval.0, interval.1, time.0, time.1]);
        let args = [timer.id.into(), flags.into(), place.into(), 0u64.into()];
        script.call(libc::SYS_timer_settime, args, Check::Success);
    }
}

fn pair(low: i32, high: i32) -> u64 {
    u64::from(low as u32) | u64::from(high as u32) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timer(id: i32) -> PosixTimer {
        let value = TimerValue { interval: (0, 0), remaining: (0, 0) };
        PosixTimer { id, clock: CLOCK_MONOTONIC, signal: 0, sigev_value: 0, notify: SIGEV_NONE, notify_tid: 0, value }
    }

    #[test]
    fn numbers_out_of_reach_are_refused_by_name() {
        let timers: Vec<_> = [0, 1, 200].map(timer).into();
        assert!(refusal(&timers, false, TimerNumbers::InOrder).is_none());
        assert!(refusal(&[], false, TimerNumbers::InOrder).is_none());
        let far = [timer(3), timer(10_000)];
        assert!(refusal(&far, true, TimerNumbers::Chosen).is_none());
        let told = refusal(&far, false, TimerNumbers::InOrder).unwrap();
        assert_eq!(told.kind(), "timer_numbers");
        assert!(told.to_string().contains("numbers up to 10000"), "{told}");
        assert!(refusal(&[], true, TimerNumbers::InOrder).is_some(), "it could not go on to choose them");
        // Many timers in a row pass over none.
        let many: Vec<_> = (0..1000).map(timer).collect();
        assert!(refusal(&many, false, TimerNumbers::InOrder).is_none());
    }
}
