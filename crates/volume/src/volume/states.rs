//! Looking at states as a whole: what two differ in, and whether one is sound.

use store::heads::Lease;

use super::{Origin, Volumes, head_name};
use crate::{
    VolumeError,
    diff::{self, Tell},
    layouts::Layouts,
    loader::Loader,
    materialise::Layout,
    names::Names,
    verify::{self, Verified},
};

impl Volumes {
    /// Tells what makes `to` out of `from`, which may be of different volumes, as paths, in an order of its own. Costs what differs, but for hard
    /// links whose newest name is gone. What is not committed is not seen.
    pub fn diff<'a>(&self, from: &Origin, to: &Origin, tell: &'a mut Tell<'a>) -> Result<(), VolumeError> {
        let (before, after) = (self.state(from)?, self.state(to)?);
        let loader = Loader::new(self.store.clone(), self.runtime.clone());
        let names = |(layout, _): &(Layout, Lease)| Names::new(&loader, layout);
        let told = self.runtime.block_on(diff::diff(names(&before), names(&after), tell));
        for (_, lease) in [before, after] {
            self.runtime
                .block_on(self.heads.release(lease))
                .map_err(VolumeError::store("end the lease of a comparison"))?;
        }
        told
    }

    /// Reads and checks all of a state, from the store and not from a cache. Fails only if there is no manifest to begin with.
    pub fn verify(&self, origin: &Origin) -> Result<Verified, VolumeError> {
        let (layout, lease) = Self { layouts: Layouts::none_yet(), ..self.clone() }.state(origin)?;
        let loader = Loader::new(self.store.uncached(), self.runtime.clone());
        let verified = self.runtime.block_on(verify::verify(&loader, &layout));
        self.runtime
            .block_on(self.heads.release(lease))
            .map_err(VolumeError::store("end the lease of a verification"))?;
        Ok(verified)
    }

    /// A state, and what keeps it.
    fn state(&self, origin: &Origin) -> Result<(Layout, Lease), VolumeError> {
        let name = head_name(origin)?;
        let (committed, lease) = self.runtime.block_on(self.open_under_lease(&name))?;
        Ok((committed.layout, lease))
    }
}
