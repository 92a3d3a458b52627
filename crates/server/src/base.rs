//! The templates that come with the server: `base`, and its warmed variants `python` and `node`.

use std::{path::Path, sync::Arc};

use model::{Image, Limits, Ready, TemplateSpec};
use node::{Context, Error, Node, Progress, Result, chain};

/// The warmed variants, without their image.
const VARIANTS: [&str; 2] = [include_str!("../../../images/python.json"), include_str!("../../../images/node.json")];

/// In the image.
const LIBRARY: &str = "usr/local/lib/pando";

/// Has `base` ready when it returns, and the variants some seconds later.
pub(crate) async fn offer(node: &Arc<Node>, image: &Path) -> Result<()> {
    let image = std::path::absolute(image).at("find the base image", image)?;
    std::fs::metadata(&image).at("open the base image", &image)?;
    let base = TemplateSpec {
        name: "base".parse().map_err(|error| internal(&error))?,
        image: Image::Path(image.clone()),
        command: Vec::new(),
        env: on_fork_env(&image),
        cwd: "/home/user".to_owned(),
        ready: Ready::Listening,
        ready_timeout_ms: 1000,
        limits: Limits::default(),
        mount_points: Vec::new(),
        user: None,
        startup: Vec::new(),
        on_fork: on_fork(&image),
    };
    build(node, base).await?;
    let variants: Vec<TemplateSpec> = VARIANTS.iter().map(|text| variant(text, &image)).collect::<Result<_>>()?;
    let node = Arc::clone(node);
    tokio::spawn(async move {
        for spec in variants {
            let name = spec.name.clone();
            if let Err(error) = build(&node, spec).await {
                tracing::warn!(template = %name, error = chain(&error), "a template that comes with the server is missing");
            }
        }
    });
    Ok(())
}

fn internal(error: &dyn std::fmt::Display) -> Error {
    Error::Invalid { message: format!("a template that comes with the server is wrong: {error}"), hint: None }
}

fn variant(text: &str, image: &Path) -> Result<TemplateSpec> {
    let mut value: serde_json::Value = serde_json::from_str(text).map_err(|error| internal(&error))?;
    value["image"] = image.to_string_lossy().into();
    let spec: api::TemplateSpec = serde_json::from_value(value).map_err(|error| internal(&error))?;
    let mut spec: TemplateSpec = spec.into();
    spec.env.extend(on_fork_env(image));
    spec.on_fork = on_fork(image);
    Ok(spec)
}

/// What has copies draw random numbers of their own: of the image that scripts/base.sh builds, and of none that lacks it.
fn on_fork(image: &Path) -> Vec<String> {
    if has_on_fork(image) { vec![format!("/{LIBRARY}/on-fork")] } else { Vec::new() }
}

/// How Node.js and Ruby load their part of it; Python and OpenSSL do by themselves.
fn on_fork_env(image: &Path) -> Vec<(String, String)> {
    let variable = |name: &str, option: &str, file: &str| (name.to_owned(), format!("{option}/{LIBRARY}/{file}"));
    match has_on_fork(image) {
        true => vec![variable("NODE_OPTIONS", "--require=", "on_fork.js"), variable("RUBYOPT", "-r", "on_fork.rb")],
        false => Vec::new(),
    }
}

fn has_on_fork(image: &Path) -> bool {
    image.join(LIBRARY).join("on-fork").is_file()
}

/// Builds a template unless it is there as it should be.
async fn build(node: &Arc<Node>, spec: TemplateSpec) -> Result<()> {
    if node.template(&spec.name).is_ok_and(|found| found.spec == spec) {
        return Ok(());
    }
    node::check_spec(&spec)?;
    let name = spec.name.clone();
    node.build(spec, &Progress::unheard()).await?;
    tracing::info!(template = %name, "a template that comes with the server is ready");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variants_are_sound() {
        for text in VARIANTS {
            node::check_spec(&variant(text, Path::new("/base")).unwrap()).unwrap();
        }
    }
}
