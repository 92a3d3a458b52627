//! See [`super`].

use crate::{BuildStage, BuildTimings, Image, Limits, Ready, Template, TemplateFacts, TemplateSpec, TemplateState};

impl From<Image> for model::Image {
    fn from(from: Image) -> Self {
        match from {
            Image::Host => Self::Host,
            Image::Path(it) => Self::Path(it),
            Image::Named(it) => Self::Named(it),
        }
    }
}

impl From<model::Image> for Image {
    fn from(from: model::Image) -> Self {
        match from {
            model::Image::Host => Self::Host,
            model::Image::Path(it) => Self::Path(it),
            model::Image::Named(it) => Self::Named(it),
        }
    }
}

impl From<Ready> for model::Ready {
    fn from(from: Ready) -> Self {
        match from {
            Ready::Listening => Self::Listening,
            Ready::Port(it) => Self::Port(it),
            Ready::File(it) => Self::File(it),
            Ready::Command(it) => Self::Command(it),
        }
    }
}

impl From<model::Ready> for Ready {
    fn from(from: model::Ready) -> Self {
        match from {
            model::Ready::Listening => Self::Listening,
            model::Ready::Port(it) => Self::Port(it),
            model::Ready::File(it) => Self::File(it),
            model::Ready::Command(it) => Self::Command(it),
        }
    }
}

impl From<Limits> for model::Limits {
    fn from(Limits { memory_bytes, pids, cpu_millis, disk_bytes }: Limits) -> Self {
        Self { memory_bytes, pids, cpu_millis, disk_bytes }
    }
}

impl From<model::Limits> for Limits {
    fn from(model::Limits { memory_bytes, pids, cpu_millis, disk_bytes }: model::Limits) -> Self {
        Self { memory_bytes, pids, cpu_millis, disk_bytes }
    }
}

impl From<TemplateSpec> for model::TemplateSpec {
    fn from(
        TemplateSpec {
            name,
            image,
            command,
            env,
            cwd,
            ready,
            ready_timeout_ms,
            limits,
            mount_points,
            user,
            startup,
            on_fork,
        }: TemplateSpec,
    ) -> Self {
        Self {
            name,
            image: image.into(),
            command,
            env,
            cwd,
            ready: ready.into(),
            ready_timeout_ms,
            limits: limits.into(),
            mount_points,
            user,
            startup,
            on_fork,
        }
    }
}

impl From<model::TemplateSpec> for TemplateSpec {
    fn from(
        model::TemplateSpec {
            name,
            image,
            command,
            env,
            cwd,
            ready,
            ready_timeout_ms,
            limits,
            mount_points,
            user,
            startup,
            on_fork,
        }: model::TemplateSpec,
    ) -> Self {
        Self {
            name,
            image: image.into(),
            command,
            env,
            cwd,
            ready: ready.into(),
            ready_timeout_ms,
            limits: limits.into(),
            mount_points,
            user,
            startup,
            on_fork,
        }
    }
}

impl From<model::TemplateState> for TemplateState {
    fn from(from: model::TemplateState) -> Self {
        match from {
            model::TemplateState::Building => Self::Building,
            model::TemplateState::Ready => Self::Ready,
            model::TemplateState::Lost => Self::Lost,
        }
    }
}

impl From<model::BuildTimings> for BuildTimings {
    fn from(model::BuildTimings { ready_us, pause_us, capture_us, build_us, total_us }: model::BuildTimings) -> Self {
        Self { ready_us, pause_us, capture_us, build_us, total_us }
    }
}

impl From<model::TemplateFacts> for TemplateFacts {
    fn from(
        model::TemplateFacts { zygote_pid, threads, mappings, descriptors, memory_bytes, huge_bytes, timings }: model::TemplateFacts,
    ) -> Self {
        Self { zygote_pid, threads, mappings, descriptors, memory_bytes, huge_bytes, timings: timings.into() }
    }
}

impl From<model::Template> for Template {
    fn from(model::Template { name, state, spec, created_ms, facts, sandboxes }: model::Template) -> Self {
        Self { name, state: state.into(), spec: spec.into(), created_ms, facts: facts.map(Into::into), sandboxes }
    }
}

impl From<BuildStage> for model::BuildStage {
    fn from(from: BuildStage) -> Self {
        match from {
            BuildStage::PreparingImage => Self::PreparingImage,
            BuildStage::StartingProgram => Self::StartingProgram,
            BuildStage::WaitingUntilReady => Self::WaitingUntilReady,
            BuildStage::BuildingZygote => Self::BuildingZygote,
            BuildStage::RemovingSource => Self::RemovingSource,
        }
    }
}

impl From<model::BuildStage> for BuildStage {
    fn from(from: model::BuildStage) -> Self {
        match from {
            model::BuildStage::PreparingImage => Self::PreparingImage,
            model::BuildStage::StartingProgram => Self::StartingProgram,
            model::BuildStage::WaitingUntilReady => Self::WaitingUntilReady,
            model::BuildStage::BuildingZygote => Self::BuildingZygote,
            model::BuildStage::RemovingSource => Self::RemovingSource,
        }
    }
}
