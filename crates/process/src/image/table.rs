//! Numbers that name the descriptors of several processes at once: in the lower bits the descriptor, above them the place of its process. Those
//! of the first process are its descriptors themselves.

use base::limits;

/// No descriptor has more (`fs.nr_open` is 2^20 unless it was raised).
const FD_BITS: u32 = 20;

const _: () = assert!(limits::PROCESSES_MAX <= 1 << (i32::BITS - 1 - FD_BITS));

/// The number of descriptor `fd` of the process at place `process`.
pub(crate) fn number(process: usize, fd: i32) -> i32 {
    (process as i32) << FD_BITS | fd
}

/// The place of the process that the number is of.
pub(crate) fn process_of(number: i32) -> usize {
    (number >> FD_BITS) as usize
}

/// The descriptor in its process.
pub(crate) fn fd_of(number: i32) -> i32 {
    number & ((1 << FD_BITS) - 1)
}

/// Whether a descriptor can have a number here.
pub(crate) fn has_number(fd: i32) -> bool {
    (0..1 << FD_BITS).contains(&fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_names_process_and_descriptor() {
        for (process, fd) in [(0, 0), (0, 7), (1, 0), (limits::PROCESSES_MAX - 1, (1 << FD_BITS) - 1)] {
            let named = number(process, fd);
            assert_eq!((process_of(named), fd_of(named)), (process, fd));
        }
        assert_eq!(number(0, 12), 12);
        assert!(has_number(1_000_000) && !has_number(1 << FD_BITS));
    }
}
