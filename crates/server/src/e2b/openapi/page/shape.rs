//! Schemas and texts as pieces of HTML.

use serde_json::Value;

/// Text that HTML does not take for markup.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A word of the protocol.
pub(super) fn code(text: &str) -> String {
    format!("<code>{}</code>", escaped(text))
}

/// A sentence. Backticks are around words of the protocol.
pub(super) fn prose(text: &str) -> String {
    let piece = |(at, piece): (usize, &str)| if at % 2 == 1 { code(piece) } else { escaped(piece) };
    text.split('`').enumerate().map(piece).collect()
}

/// What a value looks like, in a few words.
pub(super) fn shape(schema: &Value) -> String {
    if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
        let name = escaped(name.rsplit('/').next().unwrap_or_default());
        return format!("<a href=\"#schema-{name}\">{name}</a>");
    }
    for (key, word) in [("oneOf", " or "), ("anyOf", " or "), ("allOf", " and ")] {
        if let Some(parts) = schema.get(key).and_then(Value::as_array) {
            return parts.iter().map(shape).collect::<Vec<_>>().join(word);
        }
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return values.iter().map(|value| code(value.as_str().unwrap_or_default())).collect::<Vec<_>>().join(" or ");
    }
    let names: Vec<&str> = match schema.get("type") {
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => vec!["anything"],
    };
    names.into_iter().map(|name| named(name, schema)).collect::<Vec<_>>().join(" or ") + &bounds(schema)
}

fn named(name: &str, schema: &Value) -> String {
    match (name, schema.get("items"), schema.get("additionalProperties")) {
        ("array", Some(items), _) => format!("list of {}", shape(items)),
        ("object", _, Some(values @ Value::Object(_))) => format!("map to {}", shape(values)),
        (name, ..) => escaped(name),
    }
}

fn bounds(schema: &Value) -> String {
    match (schema.get("minimum"), schema.get("maximum")) {
        (Some(least), Some(most)) => format!(", {least} to {most}"),
        (Some(least), None) => format!(", at least {least}"),
        (None, Some(most)) => format!(", at most {most}"),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn shapes_are_said_in_a_few_words() {
        let rows = [
            (json!({"$ref": "#/components/schemas/Sandbox"}), "<a href=\"#schema-Sandbox\">Sandbox</a>"),
            (json!({"type": ["integer", "null"], "minimum": 0, "maximum": 9}), "integer or null, 0 to 9"),
            (json!({"type": "array", "items": {"type": "string"}}), "list of string"),
            (json!({"type": "object", "additionalProperties": {"type": "string"}}), "map to string"),
            (json!({"type": "string", "enum": ["a", "b"]}), "<code>a</code> or <code>b</code>"),
            (json!({}), "anything"),
        ];
        for (schema, words) in rows {
            assert_eq!(shape(&schema), words);
        }
    }

    #[test]
    fn no_text_becomes_markup() {
        assert_eq!(prose("a <b> `c&\"d` e"), "a &lt;b&gt; <code>c&amp;&quot;d</code> e");
    }
}
