//! Schemas: whether a value that the old one describes still fits, in the direction in which it travels.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{entries, list};

/// Who makes the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Direction {
    /// Clients: what they send must still be taken.
    Request,
    /// The server: what it sends must still be understood.
    Answer,
}

/// Bounds, and whether a larger number is narrower.
const BOUNDS: [(&str, bool); 8] = [
    ("minimum", true),
    ("maximum", false),
    ("minLength", true),
    ("maxLength", false),
    ("minItems", true),
    ("maxItems", false),
    ("exclusiveMinimum", true),
    ("exclusiveMaximum", false),
];

/// Two documents, and what was found so far.
pub(super) struct Comparison<'a> {
    old: &'a Value,
    new: &'a Value,
    found: Vec<String>,
    /// Pairs of named schemas that were compared: schemas may name themselves, and one finding for each is enough.
    done: BTreeSet<(Direction, String, String)>,
}

/// One form that a value may have, without references.
type Forms = BTreeMap<String, Value>;

impl<'a> Comparison<'a> {
    pub(super) fn new(old: &'a Value, new: &'a Value) -> Self {
        Self { old, new, found: Vec::new(), done: BTreeSet::new() }
    }

    pub(super) fn breaks(&mut self, place: &str, what: impl AsRef<str>) {
        self.found.push(format!("{place}: {}", what.as_ref()));
    }

    pub(super) fn found(self) -> Vec<String> {
        self.found
    }

    pub(super) fn schemas(&mut self, place: &str, direction: Direction, old: &Value, new: &Value) {
        if let (Some(one), Some(other)) = (name(old), name(new))
            && !self.done.insert((direction, one.to_owned(), other.to_owned()))
        {
            return;
        }
        let (old, new) = (forms(self.old, old), forms(self.new, new));
        self.types(place, direction, &old, &new);
        for (kind, old) in &old {
            let Some(new) = new.get(kind).or_else(|| new.get("number").filter(|_| kind == "integer")) else { continue };
            self.values(place, direction, old, new);
            self.properties(place, direction, old, new);
            for (key, what) in [("items", "each item"), ("additionalProperties", "each value")] {
                if let (Some(old @ Value::Object(_)), Some(new @ Value::Object(_))) = (old.get(key), new.get(key)) {
                    self.schemas(&format!("{place}: {what}"), direction, old, new);
                }
            }
        }
    }

    /// No form at all means any value.
    fn types(&mut self, place: &str, direction: Direction, old: &Forms, new: &Forms) {
        let (narrow, wide) = match direction {
            Direction::Request => (old, new),
            Direction::Answer => (new, old),
        };
        let fits = |kind: &String| wide.contains_key(kind) || (kind == "integer" && wide.contains_key("number"));
        let any_is_lost = narrow.is_empty() && !wide.is_empty();
        let lost: Vec<&str> =
            narrow.keys().filter(|kind| !wide.is_empty() && !fits(kind)).map(String::as_str).collect();
        match direction {
            Direction::Request if any_is_lost => self.breaks(place, "no longer takes any value"),
            Direction::Answer if any_is_lost => self.breaks(place, "may be any value now"),
            Direction::Request if !lost.is_empty() => {
                self.breaks(place, format!("no longer takes the type {}", lost.join(", ")));
            }
            Direction::Answer if !lost.is_empty() => {
                self.breaks(place, format!("may have the type {} now", lost.join(", ")));
            }
            Direction::Request | Direction::Answer => {}
        }
    }

    fn values(&mut self, place: &str, direction: Direction, old: &Value, new: &Value) {
        let (narrow, wide, word) = match direction {
            Direction::Request => (old, new, "no longer takes"),
            Direction::Answer => (new, old, "may also be"),
        };
        match (narrow.get("enum").and_then(Value::as_array), wide.get("enum").and_then(Value::as_array)) {
            (None, Some(_)) => self.breaks(place, format!("{word} values outside of the enum")),
            (Some(narrow), Some(wide)) => {
                for value in narrow.iter().filter(|value| !wide.contains(value)) {
                    self.breaks(place, format!("{word} {value}"));
                }
            }
            (_, None) => {}
        }
        if old.get("format") != new.get("format") {
            self.breaks(place, "has another format");
        }
        if direction == Direction::Answer {
            return;
        }
        if new.get("pattern").is_some() && old.get("pattern") != new.get("pattern") {
            self.breaks(place, "has another pattern");
        }
        for (bound, larger_is_narrower) in BOUNDS {
            let number = |of: &Value| of.get(bound).and_then(Value::as_f64);
            let narrower = match (number(old), number(new)) {
                (_, None) => false,
                (None, Some(_)) => true,
                (Some(old), Some(new)) => {
                    if larger_is_narrower {
                        new > old
                    } else {
                        new < old
                    }
                }
            };
            if narrower {
                self.breaks(place, format!("has a narrower {bound}"));
            }
        }
    }

    fn properties(&mut self, place: &str, direction: Direction, old: &Value, new: &Value) {
        for (property, schema) in entries(old.get("properties")) {
            let place = format!("{place}: {property}");
            match new.get("properties").and_then(|properties| properties.get(property)) {
                Some(now) => self.schemas(&place, direction, schema, now),
                None => self.breaks(&place, "the property is gone"),
            }
        }
        let (fewer, more, what) = match direction {
            Direction::Request => (old, new, "is required now"),
            Direction::Answer => (new, old, "is no longer always there"),
        };
        for property in list(more, "required").iter().filter(|name| !list(fewer, "required").contains(name)) {
            let property = property.as_str().unwrap_or_default();
            // One that is gone was named above.
            if new.get("properties").is_some_and(|properties| properties.get(property).is_some()) {
                self.breaks(&format!("{place}: {property}"), what);
            }
        }
    }
}

fn name(schema: &Value) -> Option<&str> {
    schema.get("$ref")?.as_str()
}

/// The forms of a schema by their type. Alternatives are looked through; the parts of `allOf` are joined.
fn forms(document: &Value, schema: &Value) -> Forms {
    if let Some(target) = name(schema).and_then(|name| document.pointer(name.strip_prefix('#')?)) {
        return forms(document, target);
    }
    for key in ["oneOf", "anyOf"] {
        if schema.get(key).is_some() {
            return list(schema, key).iter().flat_map(|one| forms(document, one)).collect();
        }
    }
    let parts = list(schema, "allOf");
    if !parts.is_empty() {
        return parts.iter().map(|part| forms(document, part)).reduce(joined).unwrap_or_default();
    }
    match schema.get("type") {
        Some(Value::String(kind)) => [(kind.clone(), schema.clone())].into(),
        Some(Value::Array(kinds)) => {
            kinds.iter().filter_map(Value::as_str).map(|kind| (kind.to_owned(), schema.clone())).collect()
        }
        _ => Forms::new(),
    }
}

/// What fits both: for objects the properties of both.
fn joined(mut one: Forms, other: Forms) -> Forms {
    for (kind, form) in other {
        let Some(into) = one.get_mut(&kind) else {
            one.insert(kind, form);
            continue;
        };
        for (property, schema) in entries(form.get("properties")) {
            into["properties"][property] = schema.clone();
        }
        let mut required = list(into, "required").to_vec();
        required.extend_from_slice(list(&form, "required"));
        into["required"] = required.into();
    }
    one
}
