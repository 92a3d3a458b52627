//! Templates that come back by themselves after their zygotes were lost, before a start needs them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use base::id::TemplateName;
use model::TemplateState;
use tokio::time::Instant;

use super::Node;
use crate::error::{Error, chain};

/// Between the first failure and the next try. Each further failure doubles it.
const REST_MIN: Duration = Duration::from_secs(1);
/// The longest rest: what keeps a program from starting may be mended meanwhile.
const REST_MAX: Duration = Duration::from_secs(300);

/// Templates that could not be built again, and when each is tried next.
#[derive(Debug, Default)]
struct Failures(HashMap<TemplateName, (Duration, Instant)>);

impl Failures {
    /// The first of these templates whose rest is over.
    fn next(&self, lost: &[TemplateName], now: Instant) -> Option<TemplateName> {
        lost.iter().find(|name| self.0.get(*name).is_none_or(|(_, due)| *due <= now)).cloned()
    }

    /// When one of these templates is due.
    fn due(&self, lost: &[TemplateName]) -> Option<Instant> {
        lost.iter().filter_map(|name| self.0.get(name)).map(|(_, due)| *due).min()
    }

    fn failed(&mut self, name: TemplateName, now: Instant) {
        let rest = self.0.get(&name).map_or(REST_MIN, |(rest, _)| (*rest * 2).min(REST_MAX));
        self.0.insert(name, (rest, now + rest));
    }
}

impl Node {
    /// Builds each lost template again, one after the other, until it is dropped. A build that was begun is finished.
    pub async fn keep_warm(self: Arc<Self>) {
        let mut changes = self.ledger.changes.subscribe();
        let mut failures = Failures::default();
        self.first_keeper().await;
        loop {
            changes.mark_unchanged();
            let lost = self.lost_templates();
            failures.0.retain(|name, _| lost.contains(name));
            if let Some(name) = failures.next(&lost, Instant::now()) {
                if !self.warm_again(&name).await {
                    failures.failed(name, Instant::now());
                }
                continue;
            }
            let due = failures.due(&lost);
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = async { tokio::time::sleep_until(due.unwrap_or_else(Instant::now)).await }, if due.is_some() => {}
            }
        }
    }

    /// Without those of checkpoints: the next start restores them, there may be many, and checkpoints go.
    fn lost_templates(&self) -> Vec<TemplateName> {
        let built = self.built_templates().into_iter();
        built.filter(|template| template.state == TemplateState::Lost).map(|template| template.name).collect()
    }

    /// Whether the template no longer needs to be built.
    async fn warm_again(self: &Arc<Self>, name: &TemplateName) -> bool {
        let (node, wanted) = (Arc::clone(self), name.clone());
        let warmed = tokio::spawn(async move { node.warm(&wanted).await });
        match warmed.await {
            Ok(Ok(_)) => {
                tracing::info!(template = %name, "a lost template is ready again");
                true
            }
            // It was removed meanwhile.
            Ok(Err(Error::NoTemplate(_) | Error::NothingToRun(_))) => true,
            Ok(Err(error)) => {
                tracing::warn!(template = %name, error = chain(&error), "a lost template cannot be built yet");
                false
            }
            Err(error) => {
                tracing::error!(template = %name, %error, "a lost template cannot be built");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_template_rests_longer_each_time_and_keeps_no_other() {
        let names: Vec<TemplateName> = ["a", "b"].map(|name| name.parse().unwrap()).into();
        let (now, mut failures) = (Instant::now(), Failures::default());
        assert_eq!(failures.next(&names, now).as_ref(), names.first());
        failures.failed(names[0].clone(), now);
        assert_eq!(failures.next(&names, now).as_ref(), names.get(1));
        assert_eq!(failures.due(&names), Some(now + REST_MIN));
        assert_eq!(failures.next(&names[..1], now + REST_MIN).as_ref(), names.first());
        failures.failed(names[0].clone(), now);
        assert_eq!(failures.due(&names), Some(now + REST_MIN * 2));
        for _ in 0..20 {
            failures.failed(names[0].clone(), now);
        }
        assert_eq!(failures.due(&names), Some(now + REST_MAX));
    }
}
