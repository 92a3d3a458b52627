//! What the program may do beyond its ids, in the user namespace of its sandbox.

use base::limits::ROOT_CAPABILITIES;
use serde::{Deserialize, Serialize};

/// Of all threads alike. The default is that of a program of before sandboxes had user namespaces: nothing, and nothing to gain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Privileges {
    /// Whether a program that it executes may gain privileges: it has not set `no_new_privs`.
    pub(crate) may_gain: bool,
    /// Sets of capabilities, by their bits (capabilities(7)).
    pub(crate) bounding: u64,
    pub(crate) permitted: u64,
    pub(crate) effective: u64,
    pub(crate) inheritable: u64,
    pub(crate) ambient: u64,
}

impl Privileges {
    /// What root of a sandbox never has.
    pub(crate) fn beyond(&self) -> u64 {
        (self.permitted | self.effective | self.inheritable | self.ambient) & !ROOT_CAPABILITIES
    }

    /// Whether a kernel could have given these to a program of a sandbox.
    pub(crate) fn is_sound(&self) -> bool {
        self.beyond() == 0
            && self.effective & !self.permitted == 0
            && self.ambient & !(self.permitted & self.inheritable) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_that_no_kernel_gives_are_not_sound() {
        const CHOWN: u64 = 1;
        const SYS_ADMIN: u64 = 1 << 21;
        let nothing = Privileges::default();
        let root = Privileges { permitted: ROOT_CAPABILITIES, effective: CHOWN, ..nothing };
        assert!(nothing.is_sound() && root.is_sound());
        for odd in [
            Privileges { effective: CHOWN, ..nothing },
            Privileges { permitted: SYS_ADMIN, ..nothing },
            Privileges { inheritable: SYS_ADMIN, ..nothing },
            Privileges { permitted: CHOWN, ambient: CHOWN, ..nothing },
        ] {
            assert!(!odd.is_sound(), "{odd:?}");
        }
        // More than it has: that is only what it could gain.
        assert!(Privileges { bounding: u64::MAX, ..nothing }.is_sound());
    }
}
