use serde_json::json;

use super::*;

fn document() -> Value {
    json!({
        "paths": { "/things/{id}": {
            "get": {
                "parameters": [
                    {"name": "id", "in": "path", "required": true, "schema": {"type": "string"}},
                    {"name": "limit", "in": "query", "schema": {"type": ["integer", "null"], "maximum": 100}}
                ],
                "responses": {
                    "200": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}},
                    "404": {}
                }
            },
            "post": {
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/New"}}}},
                "responses": {"201": {}}
            }
        } },
        "components": { "schemas": {
            "Thing": {
                "type": "object",
                "required": ["name", "state"],
                "properties": {
                    "name": {"type": "string"},
                    "size": {"type": "integer", "format": "int64"},
                    "state": {"$ref": "#/components/schemas/State"},
                    "parts": {"type": "array", "items": {"$ref": "#/components/schemas/Thing"}}
                }
            },
            "State": {"type": "string", "enum": ["on", "off"]},
            "New": { "allOf": [
                {"$ref": "#/components/schemas/Named"},
                {"type": "object", "properties": {
                    "order": {"type": "string", "enum": ["asc", "desc"]},
                    "labels": {"type": "object", "additionalProperties": {"type": ["string", "integer"]}},
                    "of": {"oneOf": [{"type": "null"}, {"$ref": "#/components/schemas/Named"}]}
                }}
            ] },
            "Named": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
        } }
    })
}

/// Each change, and what is said about it.
fn found(change: impl FnOnce(&mut Value)) -> Vec<String> {
    let mut new = document();
    change(&mut new);
    breaks(&document(), &new)
}

/// Sets what is at a pointer whose last part may not exist yet.
fn set(document: &mut Value, pointer: &str, value: Value) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    document.pointer_mut(parent).unwrap()[key] = value;
}

fn remove(document: &mut Value, pointer: &str) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    document.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(key).unwrap();
}

const GET: &str = "/paths/~1things~1{id}/get";
const POST: &str = "/paths/~1things~1{id}/post";
const THING: &str = "/components/schemas/Thing";
const NEW: &str = "/components/schemas/New/allOf/1/properties";

#[test]
fn the_same_document_breaks_nothing() {
    assert!(found(|_| {}).is_empty());
}

#[test]
fn what_is_gone_breaks_clients() {
    let rows = [
        ("/paths/~1things~1{id}".to_owned(), "/things/{id}: the path is gone"),
        (POST.to_owned(), "POST /things/{id}: the method is gone"),
        (format!("{POST}/requestBody"), "POST /things/{id}: the body: is gone"),
        (
            format!("{POST}/requestBody/content/application~1json"),
            "POST /things/{id}: the body: is application/json no more",
        ),
        (format!("{GET}/responses/404"), "GET /things/{id}: answer 404: is gone"),
        (format!("{THING}/properties/size"), "GET /things/{id}: answer 200: size: the property is gone"),
        (format!("{NEW}/order"), "POST /things/{id}: the body: order: the property is gone"),
    ];
    for (pointer, said) in rows {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let key = key.replace("~1", "/");
        let found = found(|document| {
            document.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(&key).unwrap();
        });
        assert_eq!(found, [said], "{pointer}");
    }
    let found = found(|document| {
        document.pointer_mut(&format!("{GET}/parameters")).unwrap().as_array_mut().unwrap().remove(1);
    });
    assert_eq!(found, ["GET /things/{id}: query parameter limit: is gone"]);
}

#[test]
fn what_is_required_of_clients_breaks_them() {
    let rows = [
        (
            format!("{GET}/parameters/1/required"),
            json!(true),
            "GET /things/{id}: query parameter limit: is required now",
        ),
        (format!("{POST}/requestBody/required"), json!(true), "POST /things/{id}: the body: is required now"),
        (format!("{GET}/requestBody"), json!({"required": true}), "GET /things/{id}: the body: is required now"),
        (
            "/components/schemas/New/allOf/1/required".to_owned(),
            json!(["order"]),
            "POST /things/{id}: the body: order: is required now",
        ),
    ];
    for (pointer, value, said) in rows {
        assert_eq!(found(|document| set(document, &pointer, value)), [said], "{pointer}");
    }
    let parameter = json!({"name": "a", "in": "query", "required": true, "schema": {"type": "string"}});
    let found = found(|document| {
        document.pointer_mut(&format!("{GET}/parameters")).unwrap().as_array_mut().unwrap().push(parameter);
    });
    assert_eq!(found, ["GET /things/{id}: query parameter a: is new and required"]);
}

#[test]
fn what_takes_less_breaks_clients() {
    let limit = format!("{GET}/parameters/1/schema");
    let rows = [
        (format!("{limit}/type"), json!("integer"), "query parameter limit: no longer takes the type null"),
        (format!("{limit}/maximum"), json!(50), "query parameter limit: has a narrower maximum"),
        (format!("{limit}/minimum"), json!(1), "query parameter limit: has a narrower minimum"),
        (format!("{GET}/parameters/0/schema/pattern"), json!("^a$"), "path parameter id: has another pattern"),
        (
            format!("{GET}/parameters/0/schema/enum"),
            json!(["a"]),
            "path parameter id: no longer takes values outside of the enum",
        ),
        (format!("{NEW}/order/enum"), json!(["asc"]), "the body: order: no longer takes \"desc\""),
        (
            format!("{NEW}/labels/additionalProperties/type"),
            json!("string"),
            "the body: labels: each value: no longer takes the type integer",
        ),
        (format!("{NEW}/of/oneOf"), json!([{"type": "null"}]), "the body: of: no longer takes the type object"),
        (
            "/components/schemas/Named/properties/name/type".to_owned(),
            json!("integer"),
            "the body: name: no longer takes the type string",
        ),
    ];
    for (pointer, value, said) in rows {
        let found = found(|document| set(document, &pointer, value));
        assert!(found.iter().any(|found| found.ends_with(said)), "{pointer}: {found:?}");
    }
}

#[test]
fn what_may_say_more_breaks_clients() {
    let rows = [
        (format!("{THING}/required"), json!(["state"]), "answer 200: name: is no longer always there"),
        (
            format!("{THING}/properties/name/type"),
            json!(["string", "null"]),
            "answer 200: name: may have the type null now",
        ),
        (format!("{THING}/properties/name"), json!({}), "answer 200: name: may be any value now"),
        (format!("{THING}/properties/size/format"), json!("int32"), "answer 200: size: has another format"),
        (
            "/components/schemas/State/enum".to_owned(),
            json!(["on", "off", "half"]),
            "answer 200: state: may also be \"half\"",
        ),
    ];
    for (pointer, value, said) in rows {
        let found = found(|document| set(document, &pointer, value));
        assert_eq!(found.len(), 1, "{pointer}: {found:?}");
        assert!(found[0].ends_with(said), "{pointer}: {found:?}");
    }
    assert_eq!(found(|document| remove(document, "/components/schemas/State/enum")).len(), 1);
}

#[test]
fn what_only_adds_breaks_nothing() {
    let rows = [
        ("/paths/~1more".to_owned(), json!({"get": {}})),
        (format!("{GET}/responses/410"), json!({})),
        (format!("{GET}/parameters/1/schema/maximum"), json!(1000)),
        (format!("{GET}/parameters/1/schema/type"), json!(["integer", "null", "string"])),
        (format!("{THING}/properties/more"), json!({"type": "string"})),
        (format!("{NEW}/more"), json!({"type": "string"})),
        (format!("{NEW}/order/enum"), json!(["asc", "desc", "none"])),
        ("/components/schemas/State/enum".to_owned(), json!(["on"])),
        (format!("{THING}/required"), json!(["name", "state", "size"])),
        (format!("{GET}/summary"), json!("other words")),
    ];
    for (pointer, value) in rows {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let key = key.replace("~1", "/");
        let found = found(|document| document.pointer_mut(parent).unwrap()[&key] = value);
        assert!(found.is_empty(), "{pointer}: {found:?}");
    }
}
