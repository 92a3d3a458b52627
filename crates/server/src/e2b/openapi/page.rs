//! The document as a page to read: HTML without scripts, made from the JSON.

mod shape;

use std::fmt::Write;

use serde_json::{Map, Value};

use shape::{code, escaped, prose, shape};

/// Methods in the order in which a path shows them.
const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// One operation and where it is.
struct Operation<'a> {
    method: &'a str,
    path: &'a str,
    item: &'a Value,
}

impl Operation<'_> {
    fn text(&self, key: &str) -> &str {
        text(self.item, key)
    }

    fn has_tag(&self, tag: &str) -> bool {
        list(self.item, "tags").iter().any(|own| own == tag)
    }
}

/// Makes the page.
pub(super) fn render(document: &Value) -> String {
    let operations = operations(document);
    let tags = list(document, "tags");
    let info = document.get("info").unwrap_or(&Value::Null);
    let (title, version) = (escaped(text(info, "title")), escaped(text(info, "version")));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title} API</title>\n\
         <link rel=\"stylesheet\" href=\"/docs/style.css\">\n</head>\n<body>\n<header>\n<h1>{title} API {version}</h1>\n"
    );
    for paragraph in text(info, "description").split("\n\n") {
        put(&mut page, format_args!("<p>{}</p>\n", prose(paragraph)));
    }
    page.push_str("<p>For programs: <a href=\"/openapi.json\">openapi.json</a></p>\n</header>\n");
    contents(&mut page, tags, &operations);
    page.push_str("<main>\n");
    for tag in tags {
        let name = text(tag, "name");
        put(
            &mut page,
            format_args!("<h2 id=\"tag-{0}\">{0}</h2>\n<p>{1}</p>\n", escaped(name), prose(text(tag, "description"))),
        );
        operations.iter().filter(|operation| operation.has_tag(name)).for_each(|one| describe(&mut page, one));
    }
    page.push_str("<h2 id=\"schemas\">Schemas</h2>\n");
    for (name, schema) in entries(document.pointer("/components/schemas")) {
        define(&mut page, name, schema);
    }
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

/// Writing to a string does not fail.
fn put(page: &mut String, arguments: std::fmt::Arguments<'_>) {
    let _ = page.write_fmt(arguments);
}

fn operations(document: &Value) -> Vec<Operation<'_>> {
    let of_path = |(path, item)| METHODS.into_iter().filter_map(move |method| of(path, item, method));
    entries(document.get("paths")).flat_map(of_path).collect()
}

fn of<'a>(path: &'a str, item: &'a Value, method: &'a str) -> Option<Operation<'a>> {
    item.get(method).map(|item| Operation { method, path, item })
}

fn contents(page: &mut String, tags: &[Value], operations: &[Operation<'_>]) {
    page.push_str("<nav>\n<ul>\n");
    for tag in tags {
        let name = text(tag, "name");
        put(page, format_args!("<li><a href=\"#tag-{0}\">{0}</a>\n<ul>\n", escaped(name)));
        for operation in operations.iter().filter(|operation| operation.has_tag(name)) {
            let (id, method, path) =
                (escaped(operation.text("operationId")), operation.method, escaped(operation.path));
            put(page, format_args!("<li><a href=\"#{id}\"><b class=\"{method}\">{method}</b> {path}</a></li>\n"));
        }
        page.push_str("</ul></li>\n");
    }
    page.push_str("<li><a href=\"#schemas\">schemas</a></li>\n</ul>\n</nav>\n");
}

fn describe(page: &mut String, operation: &Operation<'_>) {
    let (method, path) = (operation.method, escaped(operation.path));
    let old = operation.item.get("deprecated") == Some(&Value::Bool(true));
    let old = if old { " <i>deprecated</i>" } else { "" };
    put(page, format_args!("<details>\n<summary><b class=\"{method}\">{method}</b> <code>{path}</code>{old} "));
    put(page, format_args!("{}</summary>\n", prose(operation.text("summary"))));
    put(page, format_args!("<div id=\"{}\">\n", escaped(operation.text("operationId"))));
    if !operation.text("description").is_empty() {
        put(page, format_args!("<p>{}</p>\n", prose(operation.text("description"))));
    }
    parameters(page, list(operation.item, "parameters"));
    if let Some(body) = operation.item.get("requestBody") {
        let needed = if body.get("required") == Some(&Value::Bool(true)) { "" } else { " (may be absent)" };
        put(page, format_args!("<h3>Body{needed}</h3>\n<p>{}</p>\n", prose(text(body, "description"))));
        page.push_str(&content(body));
    }
    page.push_str("<h3>Answers</h3>\n<table>\n<tr><th>Status</th><th>When</th><th>Body</th></tr>\n");
    for (status, answer) in entries(operation.item.get("responses")) {
        let (when, body) = (prose(text(answer, "description")), content(answer));
        put(page, format_args!("<tr><td>{}</td><td>{when}</td><td>{body}</td></tr>\n", escaped(status)));
    }
    put(
        page,
        format_args!("</table>\n<h3>Try it</h3>\n<pre>{}</pre>\n</div>\n</details>\n", escaped(&example(operation))),
    );
}

fn parameters(page: &mut String, parameters: &[Value]) {
    if parameters.is_empty() {
        return;
    }
    page.push_str("<h3>Parameters</h3>\n<table>\n<tr><th>Name</th><th>In</th><th>Type</th><th>Meaning</th></tr>\n");
    for parameter in parameters {
        let needed = if parameter.get("required") == Some(&Value::Bool(true)) { ", required" } else { "" };
        put(
            page,
            format_args!(
                "<tr><td>{}</td><td>{}{needed}</td><td>{}</td><td>{}</td></tr>\n",
                code(text(parameter, "name")),
                escaped(text(parameter, "in")),
                shape(parameter.get("schema").unwrap_or(&Value::Null)),
                prose(text(parameter, "description")),
            ),
        );
    }
    page.push_str("</table>\n");
}

/// The content types of a body and what is in each.
fn content(of: &Value) -> String {
    let row = |(kind, media): (&str, &Value)| {
        let schema = shape(media.get("schema").unwrap_or(&Value::Null));
        if kind == "application/json" { schema } else { format!("{}: {schema}", code(kind)) }
    };
    entries(of.get("content")).map(row).collect::<Vec<_>>().join("<br>")
}

/// A request for a shell.
fn example(operation: &Operation<'_>) -> String {
    let api = "https://api.$E2B_DOMAIN";
    let (host, header) = if operation.has_tag(super::ENVD) {
        ("https://49983-$SANDBOX.$E2B_DOMAIN", "X-Access-Token: $TOKEN")
    } else if operation.has_tag(super::CONTENT) {
        (api, "Authorization: Bearer $TOKEN")
    } else {
        (api, "X-API-KEY: $E2B_API_KEY")
    };
    let path = operation.path.replace("{id}", "$ID").replace("{alias}", "$NAME").replace("{name}", "$NAME");
    let mut line = format!("curl --cacert \"$SSL_CERT_FILE\" -X {} \"{host}{path}\"", operation.method.to_uppercase());
    if operation.item.get("security").and_then(Value::as_array).is_none_or(|needed| !needed.is_empty()) {
        put(&mut line, format_args!(" -H \"{header}\""));
    }
    if operation.item.pointer("/requestBody/content/application~1json").is_some() {
        line.push_str(" --json @body.json");
    }
    line
}

fn define(page: &mut String, name: &str, schema: &Value) {
    put(page, format_args!("<details>\n<summary><code>{0}</code></summary>\n<div id=\"schema-{0}\">\n", escaped(name)));
    put(page, format_args!("<p>{}</p>\n", prose(text(schema, "description"))));
    let parts = list(schema, "allOf");
    for part in if parts.is_empty() { std::slice::from_ref(schema) } else { parts } {
        let required = list(part, "required");
        let fields: Vec<_> = entries(part.get("properties")).collect();
        if fields.is_empty() {
            put(page, format_args!("<p>{}</p>\n", shape(part)));
            continue;
        }
        page.push_str("<table>\n<tr><th>Field</th><th>Type</th><th>Meaning</th></tr>\n");
        for (field, schema) in fields {
            let needed = if required.iter().any(|one| one == field) { ", required" } else { "" };
            let (field, meaning) = (code(field), prose(text(schema, "description")));
            put(page, format_args!("<tr><td>{field}</td><td>{}{needed}</td><td>{meaning}</td></tr>\n", shape(schema)));
        }
        page.push_str("</table>\n");
    }
    page.push_str("</div>\n</details>\n");
}

fn text<'a>(of: &'a Value, key: &str) -> &'a str {
    of.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(of: &'a Value, key: &str) -> &'a [Value] {
    of.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn entries(of: Option<&Value>) -> impl Iterator<Item = (&str, &Value)> {
    of.and_then(Value::as_object).into_iter().flat_map(Map::iter).map(|(key, value)| (key.as_str(), value))
}
