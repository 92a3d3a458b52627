//! What sandboxes are given by the operator.

use std::path::{Component, Path, PathBuf};

use node::Given;

/// What all sandboxes of the node have: proxies, authorities and clients' settings, for one.
#[derive(Debug, clap::Args)]
pub(crate) struct GivenArgs {
    /// A variable of all programs and commands in sandboxes, unless their template or request has another one. Without a value: that of the
    /// node. Sandboxes see it: it is no place for a secret. May be repeated.
    #[arg(long = "sandbox-env", value_name = "NAME[=VALUE]", value_parser = parse_env)]
    env: Vec<(String, String)>,
    /// A file of this host that templates get when they are built or restored, at the same path or at another one: /etc/pip.conf, ca.pem:/etc/ca.pem.
    /// 4 MiB at most. Sandboxes of the image `host` do not get it. May be repeated.
    #[arg(long = "sandbox-file", value_name = "PATH[:INSIDE]", value_parser = parse_file)]
    files: Vec<(PathBuf, PathBuf)>,
}

impl GivenArgs {
    pub(crate) fn given(self) -> Given {
        Given { env: self.env, files: self.files }
    }
}

fn parse_env(text: &str) -> Result<(String, String), String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, value.to_owned()),
        None => (text, std::env::var(text).map_err(|_| "the node has no such variable: give it a value".to_owned())?),
    };
    if name.is_empty() || value.contains('\0') {
        return Err("give it as NAME=VALUE, or as NAME".to_owned());
    }
    Ok((name.to_owned(), value))
}

fn parse_file(text: &str) -> Result<(PathBuf, PathBuf), String> {
    let (from, inside) = match text.rsplit_once(':') {
        Some((from, inside)) => (from, PathBuf::from(inside)),
        None => (text, std::path::absolute(text).map_err(|error| error.to_string())?),
    };
    if !is_file_path(&inside) {
        return Err(format!("{} is no absolute path of a file", inside.display()));
    }
    Ok((std::path::absolute(from).map_err(|error| error.to_string())?, inside))
}

fn is_file_path(path: &Path) -> bool {
    let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    path.is_absolute() && path.file_name().is_some() && path.components().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_a_place_inside() {
        assert_eq!(parse_file("/a/b"), Ok(("/a/b".into(), "/a/b".into())));
        assert_eq!(parse_file("/a:/b/c"), Ok(("/a".into(), "/b/c".into())));
        for wrong in ["/a:b", "/a:/", "/a:/b/../c", "/a:"] {
            assert!(parse_file(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn variables_have_a_name() {
        assert_eq!(parse_env("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert_eq!(parse_env("A="), Ok(("A".into(), String::new())));
        assert!(parse_env("=b").is_err() && parse_env("PANDO_NO_SUCH_VARIABLE").is_err());
    }
}
