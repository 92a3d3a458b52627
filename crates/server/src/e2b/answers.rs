//! What is known of a sandbox, as E2B's clients expect it.

use api::e2b;
use control::{OnTimeout, PauseMode, Sandbox, State};

use super::platform::Platform;

/// E2B's clients expect one. It means nothing any more.
const CLIENT_ID: &str = "pando";

impl Platform {
    /// What a client needs to use a sandbox.
    pub(crate) fn answer(&self, sandbox: &Sandbox) -> e2b::Sandbox {
        let sandboxes = self.control.sandboxes();
        let traffic = is_closed(sandbox).then(|| sandboxes.traffic_token(sandbox).as_str().to_owned());
        e2b::Sandbox {
            template_id: sandbox.spec.template.to_string(),
            sandbox_id: sandbox.id.to_string(),
            client_id: CLIENT_ID.to_owned(),
            alias: sandbox.spec.alias.clone(),
            envd_version: envd::VERSION.to_owned(),
            envd_access_token: Some(sandboxes.envd_token(sandbox).as_str().to_owned()),
            traffic_access_token: traffic,
            domain: Some(self.domain.to_string()),
        }
    }

    /// Everything about a sandbox.
    pub(crate) fn detail(&self, sandbox: &Sandbox) -> e2b::SandboxDetail {
        let lifetime = sandbox.spec.lifetime;
        let size = sandbox.spec.size;
        e2b::SandboxDetail {
            template_id: sandbox.spec.template.to_string(),
            sandbox_id: sandbox.id.to_string(),
            client_id: CLIENT_ID.to_owned(),
            alias: sandbox.spec.alias.clone(),
            started_at: sandbox.started.to_string(),
            end_at: sandbox.end.to_string(),
            envd_version: envd::VERSION.to_owned(),
            envd_access_token: Some(self.control.sandboxes().envd_token(sandbox).as_str().to_owned()),
            allow_internet_access: Some(sandbox.spec.allow_internet),
            domain: Some(self.domain.to_string()),
            cpu_count: count(size.cpus),
            memory_mb: count(size.memory_mb),
            disk_size_mb: count(size.disk_mb),
            metadata: Some(sandbox.spec.metadata.clone()),
            state: state(sandbox.state),
            network: sandbox.spec.network.clone().and_then(|network| serde_json::from_value(network).ok()),
            lifecycle: Some(e2b::Lifecycle {
                auto_resume: lifetime.auto_resume,
                on_timeout: match lifetime.on_timeout {
                    OnTimeout::Kill => e2b::OnTimeout::Kill,
                    OnTimeout::Pause(_) => e2b::OnTimeout::Pause,
                },
            }),
            pause_mode: match sandbox.state {
                State::Running => None,
                State::Paused(PauseMode::Full) => Some(e2b::PauseMode::Full),
                State::Paused(PauseMode::Filesystem) => Some(e2b::PauseMode::Filesystem),
            },
            volume_mounts: Some(mounts(sandbox)),
        }
    }
}

/// A sandbox in a list.
pub(crate) fn listed(sandbox: &Sandbox) -> e2b::ListedSandbox {
    let size = sandbox.spec.size;
    e2b::ListedSandbox {
        template_id: sandbox.spec.template.to_string(),
        sandbox_id: sandbox.id.to_string(),
        client_id: CLIENT_ID.to_owned(),
        alias: sandbox.spec.alias.clone(),
        started_at: sandbox.started.to_string(),
        end_at: sandbox.end.to_string(),
        cpu_count: count(size.cpus),
        memory_mb: count(size.memory_mb),
        disk_size_mb: count(size.disk_mb),
        metadata: Some(sandbox.spec.metadata.clone()),
        state: state(sandbox.state),
        envd_version: envd::VERSION.to_owned(),
        volume_mounts: Some(mounts(sandbox)),
    }
}

/// Whether its ports want the traffic token.
pub(crate) fn is_closed(sandbox: &Sandbox) -> bool {
    let public = |network: &serde_json::Value| network.get("allowPublicTraffic").and_then(serde_json::Value::as_bool);
    sandbox.spec.network.as_ref().and_then(public) == Some(false)
}

/// The host that its programs see, if it is not the client's.
pub(crate) fn mask_host(sandbox: &Sandbox) -> Option<String> {
    let mask = sandbox.spec.network.as_ref()?.get("maskRequestHost")?.as_str()?;
    Some(mask.to_owned())
}

fn state(state: State) -> e2b::State {
    match state {
        State::Running => e2b::State::Running,
        State::Paused(_) => e2b::State::Paused,
    }
}

fn mounts(sandbox: &Sandbox) -> Vec<e2b::VolumeMount> {
    let mounts = sandbox.spec.volume_mounts.iter();
    mounts.map(|mount| e2b::VolumeMount { name: mount.name.clone(), path: mount.path.clone() }).collect()
}

fn count(value: u64) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}
