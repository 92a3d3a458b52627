//! Who a process of a sandbox becomes, and what it may do in the sandbox's namespaces.
//!
//! A capability counts for what the sandbox's user namespace owns: files with its ids, its network, its host name. Outside it is none.

use base::limits::ROOT_CAPABILITIES;
use rustix::{
    process::{DumpableBehavior, Gid, Uid, set_dumpable_behavior},
    thread::{
        CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid,
        set_thread_res_uid,
    },
};

use crate::{
    namespaces::Inside,
    report::{Failure, Step},
    spec::User,
};

/// All that root of a sandbox has, and all that a program with the set-user-id bit can gain.
pub(crate) const OF_ROOT: CapabilitySet = CapabilitySet::from_bits_retain(ROOT_CAPABILITIES);

/// What a hand needs that acts for root: all files are its own, and what it copies belongs to others.
pub(crate) const OF_ROOTS_HAND: CapabilitySet =
    CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::FOWNER).union(CapabilitySet::CHOWN).union(CapabilitySet::FSETID);

/// What a program there can gain.
pub(crate) fn bounding_set(sandbox: Inside<'_>) -> CapabilitySet {
    if sandbox.is_for_program_only() { CapabilitySet::empty() } else { OF_ROOT }
}

/// Becomes `user` with the capabilities `of_root` if that is root, and without any if it is not. The caller has all of them, in the sandbox's
/// user namespace. No other process may look into it until it executes a program: it has the memory of the keeper.
pub(crate) fn become_user(sandbox: Inside<'_>, user: &User, of_root: CapabilitySet) -> Result<(), Failure> {
    if sandbox.is_for_program_only() {
        if *user != User::PROGRAM {
            return Err(Failure { step: "be another user than `user` in this sandbox", errno: libc::EPERM });
        }
        set_no_new_privs(true).step("set no_new_privs")?;
    }
    let groups: Vec<Gid> = user.groups.iter().map(|group| Gid::from_raw(*group)).collect();
    set_thread_groups(&groups).step("set its groups")?;
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    set_thread_res_gid(gid, gid, gid).step("set its group")?;
    // The capabilities stay: it was no root of the sandbox before.
    set_thread_res_uid(uid, uid, uid).step("set its user")?;
    // While it has more of them than any process of the sandbox. The change of user made of it what `fs.suid_dumpable` says.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).step("become undumpable")?;
    let kept = if uid.is_root() { of_root } else { CapabilitySet::empty() };
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).step("drop capabilities")
}
