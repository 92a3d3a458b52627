//! Templates of the node under the names that teams know.

use base::id::{BuildId, TemplateId, TemplateName};
use control::Size;

use super::{
    failed::{Failed, Result},
    platform::Platform,
};

/// What a sandbox is started from.
pub(crate) struct Resolved {
    pub(crate) template: TemplateId,
    pub(crate) build: BuildId,
    pub(crate) alias: Option<String>,
    pub(crate) size: Size,
    /// On the node.
    pub(crate) name: TemplateName,
}

impl Platform {
    /// The template that a request for a sandbox names.
    pub(crate) async fn resolve(&self, name: &str) -> Result<Resolved> {
        let shown: String = name.chars().take(80).collect();
        let missing = || Failed::new(axum::http::StatusCode::NOT_FOUND, format!("template '{shown}' not found"));
        let on_node: TemplateName = name.parse().map_err(|_| missing())?;
        let template = self.node.template(&on_node).map_err(|_| missing())?;
        let padded: String =
            name.chars().filter(char::is_ascii_alphanumeric).chain("0".repeat(20).chars()).take(20).collect();
        Ok(Resolved {
            template: padded.parse().map_err(|_| missing())?,
            build: "00000000-0000-4000-8000-000000000000".parse::<BuildId>().map_err(|_| missing())?,
            alias: Some(name.to_owned()),
            size: size(&template.spec.limits),
            name: on_node,
        })
    }
}

/// What a sandbox may use, in the units of the control plane.
fn size(limits: &model::Limits) -> Size {
    let all = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    Size {
        cpus: limits.cpu_millis.map_or(all, |millis| u64::from(millis).div_ceil(1000)),
        memory_mb: limits.memory_bytes >> 20,
        disk_mb: 0,
    }
}
