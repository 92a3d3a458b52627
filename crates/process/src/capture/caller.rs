//! What the caller does in a capture, and what it says about the source and the rest of the sandbox.

use crate::error::Error;

/// An error of what the caller does while the source is stopped.
pub type PauseError = Box<dyn std::error::Error + Send + Sync>;

/// What the caller does at some point of a capture.
pub(super) type Callback<'a> = &'a mut dyn FnMut() -> Result<(), PauseError>;

/// Other processes in the sandbox of a source: commands that were started in it. They are not captured, but they write files.
pub trait Others {
    /// Has all processes of the sandbox stand still; those that are stopped by their tracer do.
    fn freeze(&mut self) -> Result<(), PauseError>;
    /// Lets all go on.
    fn thaw(&mut self);
}

/// What becomes of a source that was captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Afterwards {
    /// It goes on.
    GoesOn,
    /// It stands still with all that is in its sandbox, from the captured instant on.
    StandsStill,
}

/// What the caller does in a capture.
pub(super) struct Steps<'a> {
    pub(super) during_pause: Callback<'a>,
    pub(super) others: Option<&'a mut dyn Others>,
    pub(super) hold: Option<Callback<'a>>,
    pub(super) afterwards: Afterwards,
}

impl Steps<'_> {
    /// The same for one more attempt.
    pub(super) fn again(&mut self) -> Steps<'_> {
        let Self { during_pause, others, hold, afterwards } = self;
        Steps {
            during_pause: &mut **during_pause,
            others: match others {
                Some(others) => Some(&mut **others),
                None => None,
            },
            hold: match hold {
                Some(hold) => Some(&mut **hold),
                None => None,
            },
            afterwards: *afterwards,
        }
    }
}

/// All processes of a sandbox, which stand still until this is dropped.
pub(super) struct Frozen<'a>(Option<&'a mut dyn Others>);

impl<'a> Frozen<'a> {
    pub(super) fn freeze(others: &'a mut dyn Others) -> Result<Self, Error> {
        // Dropped also after a failure: some may stand still already.
        let mut frozen = Self(Some(others));
        frozen.0.as_mut().map_or(Ok(()), |others| others.freeze()).map_err(Error::DuringPause)?;
        Ok(frozen)
    }

    /// They stand still until the caller thaws them.
    pub(super) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if let Some(others) = &mut self.0 {
            others.thaw();
        }
    }
}
