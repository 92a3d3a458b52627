//! Threads of a program: registers, signals, scheduling.

use serde::{Deserialize, Serialize};
use sys::{
    ptrace::{Registers, Rseq, SignalInfo},
    remote::{Affinity, RobustList},
};

use super::ThreadAttributes;

/// An alternate signal stack, as in `stack_t`.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct AlternateStack {
    pub(crate) address: u64,
    pub(crate) flags: u32,
    pub(crate) size: u64,
}

/// What a thread is besides its memory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Thread {
    /// Its id inside the sandbox.
    pub(crate) tid: i32,
    /// As it was stopped, not yet fit to go on (see `script::sigframe`).
    #[serde(with = "registers")]
    pub(crate) registers: Registers,
    /// Its extended registers ([`carried`](super::xstate::carried)).
    pub(crate) xsave: Vec<u8>,
    pub(crate) mask: u64,
    pub(crate) alternate: AlternateStack,
    /// Where the kernel clears and wakes when it ends (`set_tid_address`).
    pub(crate) tid_address: u64,
    pub(crate) robust: RobustList,
    pub(crate) rseq: Rseq,
    pub(crate) name: Vec<u8>,
    pub(crate) scheduling: Scheduling,
    #[serde(with = "signals")]
    pub(crate) pending: Vec<SignalInfo>,
    /// `state::sections` has it.
    #[serde(skip)]
    pub(crate) attributes: ThreadAttributes,
}

/// How a thread is scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Scheduling {
    pub(crate) nice: i32,
    pub(crate) policy: u32,
    /// `ioprio_get`; 0: none set.
    pub(crate) io_priority: u32,
    pub(crate) timer_slack_ns: u64,
    pub(crate) affinity: Affinity,
}

/// Registers as words.
mod registers {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use sys::ptrace::{self, REGISTER_WORDS, Registers};

    pub(super) fn serialize<S: Serializer>(registers: &Registers, serializer: S) -> Result<S::Ok, S::Error> {
        ptrace::register_words(registers).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Registers, D::Error> {
        <[u64; REGISTER_WORDS]>::deserialize(deserializer).map(ptrace::registers_of_words)
    }
}

/// Signals as bytes: serde knows no arrays of this length.
pub(super) mod signals {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
    use sys::ptrace::SignalInfo;

    pub(crate) fn serialize<S: Serializer>(signals: &[SignalInfo], serializer: S) -> Result<S::Ok, S::Error> {
        signals.concat().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SignalInfo>, D::Error> {
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        match bytes.as_chunks() {
            (signals, []) => Ok(signals.to_vec()),
            (_, rest) => Err(D::Error::invalid_length(rest.len(), &"whole signals")),
        }
    }
}

/// Registers that are all zero.
#[cfg(test)]
pub(crate) fn no_registers() -> Registers {
    sys::ptrace::zero_registers()
}
