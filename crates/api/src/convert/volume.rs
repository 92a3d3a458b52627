//! See [`super`].

use crate::volume::KeptState;

impl From<KeptState> for model::KeptState {
    fn from(KeptState { by, manifest }: KeptState) -> Self {
        Self { by, manifest }
    }
}

impl From<model::KeptState> for KeptState {
    fn from(model::KeptState { by, manifest }: model::KeptState) -> Self {
        Self { by, manifest }
    }
}
