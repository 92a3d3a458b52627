use std::{fs, path::PathBuf};

use serde_json::Value;

use super::*;

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json")
}

fn made() -> Value {
    serde_json::to_value(document()).unwrap()
}

#[test]
fn the_file_is_what_the_code_says() {
    let text = format!("{}\n", serde_json::to_string_pretty(&made()).unwrap());
    if std::env::var_os("PANDO_BLESS").is_some() {
        fs::write(file(), &text).unwrap();
    }
    let kept = fs::read_to_string(file()).unwrap_or_default();
    assert!(kept == text, "docs/openapi.json differs from the code: write it anew with `make openapi`");
}

#[test]
fn every_operation_is_named_and_says_how_it_fails() {
    let document = made();
    let mut names = std::collections::HashSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap().iter().filter(|(key, _)| *key != "servers") {
            let place = format!("{method} {path}");
            assert!(names.insert(operation["operationId"].as_str().unwrap().to_owned()), "{place}: the id is taken");
            assert!(!operation["summary"].as_str().unwrap_or_default().is_empty(), "{place} has no summary");
            for (status, answer) in operation["responses"].as_object().unwrap() {
                let body = &answer["content"]["application/json"]["schema"]["$ref"];
                let schema = if path.starts_with("/volumecontent") { "VolumeError" } else { "Error" };
                let wanted = format!("#/components/schemas/{schema}");
                assert!(status.as_str() < "400" || *body == wanted, "{place}: {status} has no error body");
            }
            let open = operation["security"].as_array().is_some_and(Vec::is_empty);
            assert_eq!(operation["responses"].get("401").is_none(), open, "{place}: 401");
        }
    }
}

#[test]
fn bounds_are_those_of_the_server() {
    use base::limits::{PAGE_MAX, SANDBOX_TIMEOUT_S_MAX};
    let document = made();
    let at = |pointer: &str| document.pointer(pointer).and_then(Value::as_u64).unwrap_or_default();
    for name in
        ["NewSandboxV2", "Connect", "ConnectV2", "ResumedSandbox", "SandboxForkRequest", "SandboxTimeoutRequest"]
    {
        let pointer = format!("/components/schemas/{name}/properties/timeout/maximum");
        assert_eq!(at(&pointer), SANDBOX_TIMEOUT_S_MAX, "{name}");
    }
    for (path, name) in [("~1v2~1sandboxes", "limit"), ("~1secrets", "limit"), ("~1snapshots", "limit")] {
        let parameters = document.pointer(&format!("/paths/{path}/get/parameters")).unwrap().as_array().unwrap();
        let found = parameters.iter().find(|one| one["name"] == name).unwrap();
        assert_eq!(found["schema"]["maximum"], PAGE_MAX, "{path}");
    }
}

#[test]
fn every_reference_leads_to_a_schema() {
    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(map) => {
                found.extend(map.get("$ref").and_then(Value::as_str));
                map.values().for_each(|value| references(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    let document = made();
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 50);
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
    }
}

#[test]
fn the_page_shows_every_operation_and_runs_no_script() {
    let document = made();
    let page = page::render(&document);
    for path in document["paths"].as_object().unwrap().keys() {
        assert!(page.contains(&format!("<code>{path}</code>")), "{path}");
    }
    for anchor in page.split("href=\"#").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(page.contains(&format!("id=\"{anchor}\"")), "#{anchor} leads nowhere");
    }
    assert!(!page.contains("<script") && !page.contains("style=") && !page.contains("//cdn"));
}

mod served {
    use axum::{body::Body, http::Request};
    use tower::ServiceExt;

    use crate::e2b::openapi::Served;

    #[tokio::test]
    async fn document_and_page_are_served_under_a_strict_policy() {
        let router = Served::new().unwrap().router::<()>();
        for (path, kind) in
            [("/openapi.json", "application/json"), ("/docs", "text/html"), ("/docs/style.css", "text/css")]
        {
            let request = Request::get(path).body(Body::empty()).unwrap();
            let response = router.clone().oneshot(request).await.unwrap();
            assert_eq!(response.status(), 200, "{path}");
            let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
            assert!(header("content-type").starts_with(kind), "{path}");
            assert!(header("content-security-policy").starts_with("default-src 'none'"), "{path}");
        }
    }
}
