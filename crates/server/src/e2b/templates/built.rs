//! What the operator builds on the node belongs to the system's team and is public: teams find it by its name on the
//! node.

use std::{collections::HashSet, sync::Arc, time::Duration};

use base::id::TemplateName;
use control::{BuildUpdate, ControlError, TemplateRef};

use super::{size, snapshots};
use crate::e2b::{failed::Result, platform::Platform, sandboxes::finish};

/// Templates that clients know by another name as well.
const ALIASES: [(&str, &str); 1] = [("code-interpreter-v1", "code-interpreter")];

/// Between two looks at the node's templates.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// Before what could not be noted is tried again.
const FAILURE_PAUSE: Duration = Duration::from_secs(5);

impl Platform {
    /// Notes what is built on the node, as soon as it is ready. Never ends.
    pub(crate) async fn note_built(&self) {
        let (mut changes, mut noted) = (self.node.template_changes(), HashSet::new());
        loop {
            changes.borrow_and_update();
            if self.note_built_now(&mut noted).await {
                tokio::time::sleep(LOOK_PAUSE).await;
                // The node outlives this.
                let _ = changes.changed().await;
            } else {
                tokio::time::sleep(FAILURE_PAUSE).await;
            }
        }
    }

    /// Notes what is built on the node by now, unless it is among `noted`. Whether all of it is noted.
    pub(crate) async fn note_built_now(&self, noted: &mut HashSet<TemplateName>) -> bool {
        let built = self.node.built_templates();
        noted.retain(|name| built.iter().any(|template| template.name == *name));
        let mut is_all = true;
        for template in built {
            if noted.contains(&template.name) {
                continue;
            }
            match self.note_template(&template).await {
                Ok(_) => drop(noted.insert(template.name)),
                Err(failed) => {
                    is_all = false;
                    let error = failed.body().message;
                    tracing::warn!(template = %template.name, error, "clients do not find a template of the node yet");
                }
            }
        }
        is_all
    }

    /// Notes the template that this names, if it was built on the node. Whether clients find it now.
    pub(super) async fn note_named(self: &Arc<Self>, wanted: &TemplateRef) -> Result<bool> {
        // A team's own name, or another tag of a template that is noted already, is not one of the node.
        if wanted.slug().is_some() || wanted.explicit_tag().is_some() {
            return Ok(false);
        }
        let built = self.node.built_templates();
        let of = |name: &str| built.iter().find(|template| template.name.as_str() == name).cloned();
        let aliased = ALIASES.iter().find(|(_, alias)| *alias == wanted.name());
        let Some(template) = of(wanted.name()).or_else(|| of(aliased?.0)) else { return Ok(false) };
        let platform = Arc::clone(self);
        finish(async move { platform.note_template(&template).await }).await
    }

    /// Whether it is noted: not every name of the node is one of the control plane.
    async fn note_template(&self, template: &model::Template) -> Result<bool> {
        // What looks as if it were a team's.
        if template.name.as_str().starts_with(snapshots::PREFIX) {
            return Ok(false);
        }
        let Ok(named) = template.name.as_str().parse::<TemplateRef>() else { return Ok(false) };
        let _alone = self.noting.lock().await;
        let built = self.node.built_templates();
        for (_, alias) in ALIASES.iter().filter(|(name, _)| *name == template.name.as_str()) {
            // A template that has that name itself comes first.
            let is_taken = built.iter().any(|template| template.name.as_str() == *alias);
            if let (false, Ok(alias)) = (is_taken, alias.parse()) {
                self.note_as(&alias, template).await?;
            }
        }
        self.note_as(&named, template).await?;
        Ok(true)
    }

    /// Has teams find a template of the node by this name, unless they do already.
    async fn note_as(&self, named: &TemplateRef, template: &model::Template) -> Result<()> {
        let (templates, system) = (self.control.templates(), self.control.teams().system().await?);
        match templates.resolve(&system.id, named).await {
            Err(ControlError::NotFound { .. }) => {}
            found => return Ok(found.map(drop)?),
        }
        let request = templates.request_build(&system.id, named, &[], size(&template.spec.limits)).await?;
        templates.set_public(&system.id, named, true).await?;
        // At last: what is cut off here is not ready, and is noted again.
        let ready = BuildUpdate::Ready { source: template.name.to_string() };
        Ok(templates.update_build(&system.id, &request.build, &ready).await.map(drop)?)
    }
}
