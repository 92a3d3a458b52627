//! Where templates and checkpoints come from.

use base::id::TemplateName;
use tokio::sync::watch;

use super::Node;
use crate::{
    config::RECORD,
    error::{Error, Result, Storing},
    records::{self, Durability, TemplateRecord},
};

impl Node {
    /// Templates that were built here from their specifications.
    pub fn built_templates(&self) -> Vec<model::Template> {
        self.templates_where(|record| {
            (record.checkpoint.is_none() || record.is_built) && !super::is_of_a_build(&record.spec.name)
        })
    }

    /// Templates that were restored here from checkpoints.
    pub fn restored_templates(&self) -> Vec<model::Template> {
        self.templates_where(|record| record.checkpoint.is_some())
    }

    fn templates_where(&self, is_wanted: impl Fn(&TemplateRecord) -> bool) -> Vec<model::Template> {
        let state = self.state();
        let is_wanted = |found: &model::Template| state.template_record(&found.name).is_some_and(&is_wanted);
        state.templates().into_iter().filter(is_wanted).collect()
    }

    /// A restored template is what a build on this node has come to.
    pub(super) fn mark_built(&self, name: &TemplateName) -> Result<()> {
        let record = self.state().mark_built(name).ok_or_else(|| Error::NoTemplate(name.clone()))?;
        records::write(&self.host.config.template_dir(name).join(RECORD), &record, Durability::Process)
    }

    /// Tells when templates may have come, gone or changed.
    pub fn template_changes(&self) -> watch::Receiver<u64> {
        self.ledger.changes.subscribe()
    }

    /// The names of all checkpoints that begin with `prefix`, on any node. None of them is read.
    pub async fn checkpoints_named(&self, prefix: &str) -> Result<Vec<TemplateName>> {
        let (below, realm) = (checkpoint::heads_of(prefix), self.durable.store.realm());
        let (mut names, mut after) = (Vec::new(), None);
        loop {
            let heads = self.durable.heads.list(realm, &below, after.as_ref()).await.storing("list the checkpoints")?;
            let Some(last) = heads.last() else { return Ok(names) };
            after = Some(last.name.clone());
            names.extend(heads.iter().filter_map(|head| checkpoint::name_in(&head.name)));
        }
    }
}
