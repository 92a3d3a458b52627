//! Clients whose SDK is too old are told so, instead of failing later for a reason that they cannot know.

use axum::{
    extract::Request,
    http::{HeaderMap, StatusCode},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::failed::Failed;

/// The oldest major version whose sandboxes have access tokens.
const MAJOR_MIN: u64 = 2;

/// Refuses what an SDK sends that is older than this server's API.
pub(crate) async fn check(request: Request, next: Next) -> Response {
    match too_old(request.headers()) {
        Some(failed) => failed.into_response(),
        None => next.run(request).await,
    }
}

/// The official SDKs name themselves by these headers. Other clients are not checked.
fn too_old(headers: &HeaderMap) -> Option<Failed> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    let (lang, version) = (text("lang")?, text("package_version")?);
    // Some versions name their publisher, some only themselves.
    let named = text("publisher") == Some("e2b") || text("user-agent").is_some_and(|agent| agent.starts_with("e2b-"));
    let official = named && ["python", "js"].contains(&lang);
    let major = version.split('.').next()?.parse::<u64>().ok()?;
    (official && major < MAJOR_MIN).then(|| {
        let shown: String = version.chars().take(40).collect();
        let update = if lang == "python" { "pip install --upgrade e2b" } else { "npm install e2b@latest" };
        let message =
            format!("version {shown} of the E2B SDK is not supported: use {MAJOR_MIN}.0 or newer, `{update}`");
        Failed::new(StatusCode::BAD_REQUEST, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn only_old_versions_of_the_official_sdks_are_refused() {
        let of = |lang, version, publisher| {
            too_old(&sent(&[("lang", lang), ("package_version", version), ("publisher", publisher)])).is_some()
        };
        assert!(of("python", "1.9.0", "e2b") && of("js", "0.16.1", "e2b"));
        assert!(!of("python", "2.45.1", "e2b") && !of("js", "10.0.0", "e2b"));
        assert!(!of("python", "1.0.0", "else") && !of("ruby", "1.0.0", "e2b") && !of("python", "dev", "e2b"));
        assert!(too_old(&HeaderMap::new()).is_none());
        let agent = [("lang", "python"), ("package_version", "0.17.1"), ("user-agent", "e2b-python-sdk/0.17.1")];
        assert!(too_old(&sent(&agent)).is_some());
    }
}
