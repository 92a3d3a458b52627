//! Who a process of a sandbox becomes, and what it may do in the sandbox's namespaces.
//!
//! A capability counts for what the sandbox's user namespace owns: files with its ids, its network, its host name. Outside it is none.

use base::limits::ROOT_CAPABILITIES;
use rustix::{
    process::{Gid, Uid},
    thread::{
        CapabilitySet, CapabilitySets, set_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
    },
};

use crate::{
    report::{Failure, Step},
    spec::User,
};

/// All that root of a sandbox has, and all that a program with the set-user-id bit can gain.
pub(crate) const OF_ROOT: CapabilitySet = CapabilitySet::from_bits_retain(ROOT_CAPABILITIES);

/// What a hand needs that acts for root.
pub(crate) const OF_ROOTS_HAND: CapabilitySet = CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::FOWNER);

/// Becomes `user` with the capabilities `of_root` if that is root, and without any if it is not. The caller has all of them, in the sandbox's
/// user namespace.
pub(crate) fn become_user(user: &User, of_root: CapabilitySet) -> Result<(), Failure> {
    let groups: Vec<Gid> = user.groups.iter().map(|group| Gid::from_raw(*group)).collect();
    set_thread_groups(&groups).step("set its groups")?;
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    set_thread_res_gid(gid, gid, gid).step("set its group")?;
    // Takes the capabilities with it unless it is root.
    set_thread_res_uid(uid, uid, uid).step("set its user")?;
    let kept = if uid.is_root() { of_root } else { CapabilitySet::empty() };
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).step("drop capabilities")
}
