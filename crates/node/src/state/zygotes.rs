//! Zygotes of templates outlive their template's need of them by what still uses them: starts, forks and checkpoints that are under way.

use base::id::ZygoteId;

use super::State;

impl State {
    /// A zygote that its template has in this moment is used from now on, until [`Self::end_zygote_use`].
    pub(crate) fn use_zygote(&mut self, number: ZygoteId) {
        *self.zygotes_in_use.entry(number).or_default() += 1;
    }

    /// Undoes [`Self::use_zygote`]. True if it was retired meanwhile and is to be dropped now.
    pub(crate) fn end_zygote_use(&mut self, number: ZygoteId) -> bool {
        let Some(uses) = self.zygotes_in_use.get_mut(&number) else { return false };
        *uses -= 1;
        if *uses > 0 {
            return false;
        }
        self.zygotes_in_use.remove(&number);
        self.retired.remove(&number)
    }

    /// No template has it any more. True if nothing uses it either, and it is to be dropped now.
    pub(crate) fn retire_zygote(&mut self, number: ZygoteId) -> bool {
        if !self.zygotes_in_use.contains_key(&number) {
            return true;
        }
        self.retired.insert(number);
        false
    }
}
