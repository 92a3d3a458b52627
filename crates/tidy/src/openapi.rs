//! OpenAPI documents: what a client of an older one would stumble over in a newer one.
//!
//! | where | what breaks a client |
//! |---|---|
//! | document | a path, a method, a parameter, a body, a content type or an answer is gone |
//! | request | a parameter or a property is required that was not; a type, an enum or a bound is narrower |
//! | answer | a property is gone, or no longer always there; a type or an enum is wider |
//!
//! Everything else may change: more paths, more optional parameters, more properties of answers, texts.

mod schema;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

use crate::Finding;
use schema::{Comparison, Direction};

/// The document of this source tree.
pub const DOCUMENT: &str = "docs/openapi.json";
/// The document that clients rely on.
pub const RELEASED: &str = "docs/openapi.released.json";

const RULE: &str = "openapi";
const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];

/// What breaks clients of the old document.
pub fn check(old: &Value, new: &Value) -> Vec<Finding> {
    breaks(old, new).into_iter().map(|message| Finding::of(DOCUMENT, RULE, message)).collect()
}

fn breaks(old: &Value, new: &Value) -> Vec<String> {
    let mut compared = Comparison::new(old, new);
    for (path, item) in entries(old.get("paths")) {
        let Some(now) = new.get("paths").and_then(|paths| paths.get(path)) else {
            compared.breaks(path, "the path is gone");
            continue;
        };
        for method in METHODS {
            let place = format!("{} {path}", method.to_uppercase());
            match (item.get(method), now.get(method)) {
                (Some(old), Some(new)) => operation(&mut compared, &place, old, new),
                (Some(_), None) => compared.breaks(&place, "the method is gone"),
                (None, _) => {}
            }
        }
    }
    compared.found()
}

fn operation(compared: &mut Comparison<'_>, place: &str, old: &Value, new: &Value) {
    parameters(compared, place, list(old, "parameters"), list(new, "parameters"));
    let place_of_body = format!("{place}: the body");
    match (old.get("requestBody"), new.get("requestBody")) {
        (Some(old), Some(new)) => {
            if is_required(new) && !is_required(old) {
                compared.breaks(&place_of_body, "is required now");
            }
            content(compared, &place_of_body, Direction::Request, old, new);
        }
        (Some(_), None) => compared.breaks(&place_of_body, "is gone"),
        (None, Some(new)) if is_required(new) => compared.breaks(&place_of_body, "is required now"),
        (None, _) => {}
    }
    for (status, answer) in entries(old.get("responses")) {
        let place = format!("{place}: answer {status}");
        match new.get("responses").and_then(|answers| answers.get(status)) {
            Some(now) => content(compared, &place, Direction::Answer, answer, now),
            None => compared.breaks(&place, "is gone"),
        }
    }
}

fn parameters(compared: &mut Comparison<'_>, place: &str, old: &[Value], new: &[Value]) {
    let same = |one: &Value, other: &Value| one.get("name") == other.get("name") && one.get("in") == other.get("in");
    let named = |parameter: &Value| {
        let text = |key| parameter.get(key).and_then(Value::as_str).unwrap_or_default();
        format!("{place}: {} parameter {}", text("in"), text("name"))
    };
    for parameter in old {
        match new.iter().find(|now| same(now, parameter)) {
            Some(now) => {
                if is_required(now) && !is_required(parameter) {
                    compared.breaks(&named(now), "is required now");
                }
                let schema = |of: &'_ Value| of.get("schema").cloned().unwrap_or_default();
                compared.schemas(&named(now), Direction::Request, &schema(parameter), &schema(now));
            }
            None => compared.breaks(&named(parameter), "is gone"),
        }
    }
    for parameter in new.iter().filter(|now| is_required(now) && !old.iter().any(|old| same(now, old))) {
        compared.breaks(&named(parameter), "is new and required");
    }
}

/// Compares what a body may be, by content type.
fn content(compared: &mut Comparison<'_>, place: &str, direction: Direction, old: &Value, new: &Value) {
    for (kind, media) in entries(old.get("content")) {
        match new.get("content").and_then(|content| content.get(kind)) {
            Some(now) => {
                let schema = |of: &Value| of.get("schema").cloned().unwrap_or_default();
                compared.schemas(place, direction, &schema(media), &schema(now));
            }
            None => compared.breaks(place, format!("is {kind} no more")),
        }
    }
}

fn is_required(of: &Value) -> bool {
    of.get("required") == Some(&Value::Bool(true))
}

fn list<'a>(of: &'a Value, key: &str) -> &'a [Value] {
    of.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn entries(of: Option<&Value>) -> impl Iterator<Item = (&str, &Value)> {
    of.and_then(Value::as_object).into_iter().flat_map(Map::iter).map(|(key, value)| (key.as_str(), value))
}
