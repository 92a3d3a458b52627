//! Arrows between crates: a crate depends only on groups of crates to its left.
//!
//! Only normal and build dependencies count. Tests may use what they like.

use serde_json::Value;

use crate::Finding;

const RULE: &str = "arrows";

/// Where a new crate is given its place.
const HERE: &str = "crates/tidy/src/arrows.rs";

/// The groups, from left to right. Crates of one group do not depend on each other, but for [`INSIDE`].
///
/// Names are those of packages without `pando-`; the package `pando` is `cli`.
const GROUPS: &[&[&str]] = &[
    &["base"],
    &["sys", "procfs", "db", "model", "tarball"],
    &["store", "memory", "process", "network", "images", "sandbox", "volume", "fuse"],
    &["pager", "volumed", "peers", "hands", "holder", "registry"],
    &["keeper", "checkpoint"],
    &["api", "node", "control"],
    &["envd", "gateway", "client"],
    &["testkit"],
    &["server", "bench", "mcp"],
    &["cli", "host-tests", "tidy"],
];

/// A dependency that the groups do not allow, and why it is there.
struct Exception {
    from: &'static str,
    to: &'static str,
    why: &'static str,
}

/// Dependencies inside a group, and those that point to the right. One that is not there any more fails.
const INSIDE: &[Exception] = &[
    Exception { from: "procfs", to: "sys", why: "write_back() needs system calls that only `sys` makes" },
    Exception { from: "volume", to: "store", why: "a volume's tree and segments are in the store" },
    Exception { from: "fuse", to: "volume", why: "a mount is a volume behind the kernel's protocol" },
    Exception {
        from: "volumed",
        to: "api",
        why: "its worker answers the part of the node's HTTP API that is about volumes",
    },
];

/// Packages that speak HTTP, and the crates that may use them. All others know neither requests nor status codes.
const HTTP: &[&str] = &["axum", "http-body-util", "hyper", "hyper-util", "reqwest"];
const SPEAK_HTTP: &[&str] =
    &["store", "peers", "registry", "volumed", "envd", "gateway", "client", "testkit", "server", "bench", "mcp", "cli"];

/// Checks the answer of `cargo metadata --no-deps`.
pub fn check(metadata: &Value) -> Vec<Finding> {
    let packages: Vec<Package<'_>> = metadata["packages"].as_array().into_iter().flatten().map(Package::new).collect();
    let mut findings = Vec::new();
    let mut used = vec![false; INSIDE.len()];
    for package in &packages {
        let Some(from) = place(package.name) else {
            findings.push(package.finding(format!("{} is in no group; give it a place in {HERE}", package.name)));
            continue;
        };
        let http = package.dependencies.iter().filter(|name| HTTP.contains(name));
        for name in http.filter(|_| !SPEAK_HTTP.contains(&package.name)) {
            let message = format!(
                "{} depends on {name}, but it is not among the crates that speak HTTP; see {HERE}",
                package.name
            );
            findings.push(package.finding(message));
        }
        let ours = |name: &&str| packages.iter().any(|package| package.name == *name);
        for to in package.dependencies.iter().copied().filter(ours) {
            let exception = INSIDE.iter().position(|allowed| (allowed.from, allowed.to) == (package.name, to));
            match (place(to), exception) {
                // Said where that package is looked at.
                (None, _) => {}
                (Some(place), None) if place < from => {}
                (Some(place), Some(exception)) if place >= from => used[exception] = true,
                (Some(_), Some(exception)) => {
                    let why = INSIDE[exception].why;
                    findings.push(package.finding(format!("{to} is to the left; remove its exception ({why}) in {HERE}")));
                    used[exception] = true;
                }
                (Some(_), None) => findings.push(package.finding(format!(
                    "{} depends on {to}, which is not to its left; move what both need to the left, or give the reason in {HERE}",
                    package.name
                ))),
            }
        }
    }
    // A part of a workspace says nothing about the rest.
    for (exception, _) in INSIDE.iter().zip(used).filter(|(_, used)| !used) {
        let Exception { from, to, why } = exception;
        if packages.iter().any(|package| package.name == *from) {
            let message = format!("{from} does not depend on {to} any more; remove its exception ({why})");
            findings.push(Finding::of(HERE, RULE, message));
        }
    }
    findings
}

struct Package<'a> {
    name: &'a str,
    manifest: &'a str,
    dependencies: Vec<&'a str>,
}

impl<'a> Package<'a> {
    fn new(package: &'a Value) -> Self {
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        let counts = |dependency: &&Value| dependency["kind"].as_str() != Some("dev");
        let mut dependencies: Vec<&str> = dependencies.filter(counts).map(|found| short(&found["name"])).collect();
        dependencies.dedup();
        Self {
            name: short(&package["name"]),
            manifest: package["manifest_path"].as_str().unwrap_or_default(),
            dependencies,
        }
    }

    fn finding(&self, message: String) -> Finding {
        // `.../crates/NAME/Cargo.toml`: three parts are enough to find it.
        let parts: Vec<&str> = self.manifest.rsplit('/').take(3).collect();
        Finding::of(parts.into_iter().rev().collect::<Vec<_>>().join("/"), RULE, message)
    }
}

fn short(name: &Value) -> &str {
    match name.as_str().unwrap_or_default() {
        "pando" => "cli",
        name => name.strip_prefix("pando-").unwrap_or(name),
    }
}

fn place(name: &str) -> Option<usize> {
    GROUPS.iter().position(|group| group.contains(&name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn messages(packages: &[(&str, &[(&str, &str)])]) -> Vec<String> {
        let package = |(name, dependencies): &(&str, &[(&str, &str)])| {
            let kind = |kind: &str| if kind == "normal" { Value::Null } else { kind.into() };
            let one = |(name, of): &(&str, &str)| json!({"name": name, "kind": kind(of)});
            let dependencies: Vec<Value> = dependencies.iter().map(one).collect();
            json!({"name": name, "manifest_path": format!("/w/crates/{name}/Cargo.toml"), "dependencies": dependencies})
        };
        let packages: Vec<Value> = packages.iter().map(package).collect();
        check(&json!({ "packages": packages })).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn arrows_to_the_left_pass() {
        let base: (&str, &[(&str, &str)]) = ("pando-base", &[]);
        assert!(messages(&[base, ("pando-sys", &[("pando-base", "normal"), ("libc", "normal")])]).is_empty());
    }

    #[test]
    fn arrows_to_the_right_and_inside_a_group_fail() {
        let right = messages(&[("pando-base", &[("pando-sys", "normal")]), ("pando-sys", &[])]);
        assert_eq!(right.len(), 1);
        assert!(right[0].starts_with("crates/pando-base/Cargo.toml: arrows: base depends on sys"), "{right:?}");
        let inside = messages(&[("pando-pager", &[("pando-peers", "build")]), ("pando-peers", &[])]);
        assert!(inside[0].contains("pager depends on peers"), "{inside:?}");
    }

    #[test]
    fn tests_may_use_what_they_like() {
        assert!(messages(&[("pando-base", &[("pando-sys", "dev")]), ("pando-sys", &[])]).is_empty());
    }

    #[test]
    fn only_some_crates_speak_http() {
        assert!(messages(&[("pando-server", &[("axum", "normal")])]).is_empty());
        assert!(messages(&[("pando-node", &[("axum", "dev")])]).is_empty());
        let node = messages(&[("pando-node", &[("axum", "normal")])]);
        assert!(node[0].contains("node depends on axum"), "{node:?}");
    }

    #[test]
    fn a_crate_without_a_place_fails() {
        let unknown = messages(&[("pando-new", &[])]);
        assert!(unknown[0].contains("new is in no group; give it a place in crates/tidy/"), "{unknown:?}");
    }

    #[test]
    fn an_exception_that_is_not_used_fails() {
        assert!(messages(&[("pando-fuse", &[("pando-volume", "normal")])]).len() == 1);
        let unused = messages(&[("pando-fuse", &[]), ("pando-base", &[])]);
        assert!(unused[0].contains("fuse does not depend on volume any more"), "{unused:?}");
    }
}
