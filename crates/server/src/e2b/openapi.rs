//! The OpenAPI document. Each route describes itself; what holds for all of them is added here.
//!
//! ```text
//! routes of the control plane ─┐
//! routes of envd ──────────────┴─► document ─► docs/openapi.json, /openapi.json, /docs
//! ```
//!
//! A route that is registered by `routes!` is in the document. `make openapi` writes the file anew.

mod page;
mod serve;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use api::e2b;
use gateway::route::ENVD_PORT;
use utoipa::{
    IntoResponses, OpenApi, PartialSchema, ToSchema,
    openapi::{
        self, Content, Header, HttpMethod, Ref, RefOr, Response, ResponseBuilder, Server,
        path::{Operation, PathItem},
        security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
        server::{ServerBuilder, ServerVariableBuilder},
    },
};

use super::sandboxes::wanted::Direction;
pub(crate) use serve::Served;

/// Its operations answer in a sandbox's place, on the sandbox's host.
pub(super) const ENVD: &str = "envd";
/// Its operations want the token of a volume, and have errors of another form.
pub(super) const CONTENT: &str = "volume-content";

const DESCRIPTION: &str = "\
The control plane of a Pando server, as E2B's SDKs use it, and the HTTP part of the services inside a sandbox.

Send an API key as `X-API-KEY`, or as a bearer token. `pando key create` makes one. A sandbox's own operations (tag \
`envd`) want the sandbox's access token instead, and answer on the host `49983-ID.DOMAIN`.

Every answer from 400 on has the body `Error`. If it has the header `Retry-After`, the same request may succeed after \
so many seconds.";

#[derive(OpenApi)]
#[openapi(
    info(title = "Pando", description = DESCRIPTION, license(name = "Apache-2.0", identifier = "Apache-2.0")),
    tags(
        (name = "sandboxes", description = "Create, connect, list, pause, fork and kill sandboxes"),
        (name = "snapshots", description = "Templates made from running sandboxes"),
        (name = "templates", description = "What sandboxes are created from"),
        (name = "volumes", description = "Directory trees that outlive sandboxes, with snapshots and forks"),
        (name = "volume-content", description = "Files and directories of one volume, with the volume's token"),
        (name = "secrets", description = "Values that go in and never come out"),
        (name = "server", description = "The server itself"),
        (name = "envd", description = "Files and facts of one sandbox, on the sandbox's own host"),
    ),
    components(schemas(e2b::Error, e2b::Order, e2b::LogLevel, e2b::VolumeError, Direction)),
)]
struct Base;

/// The document without any route.
pub(super) fn base() -> openapi::OpenApi {
    Base::openapi()
}

/// The whole document.
pub(super) fn document() -> openapi::OpenApi {
    let mut document = super::routes().into_openapi();
    document.merge(super::inside::routes().into_openapi());
    let components = document.components.get_or_insert_default();
    let header = |name: &str, description: &str| {
        SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::with_description(name, description)))
    };
    let bearer = |description: &str| {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(description));
        SecurityScheme::Http(scheme.build())
    };
    let signature = "Made from the path, the operation, the user and the access token; for `/files` only";
    let schemes = [
        (API_KEY, header("X-API-KEY", "The key of a team")),
        (BEARER, bearer("The same key, as a bearer token")),
        (VOLUME_TOKEN, bearer("`token` of the volume")),
        (ACCESS_TOKEN, header("X-Access-Token", "`envdAccessToken` of the sandbox")),
        (SIGNATURE, SecurityScheme::ApiKey(ApiKey::Query(ApiKeyValue::with_description("signature", signature)))),
    ];
    for (name, scheme) in schemes {
        components.add_security_scheme(name, scheme);
    }
    for item in document.paths.paths.values_mut() {
        complete(item);
    }
    document
}

const API_KEY: &str = "ApiKey";
const BEARER: &str = "Bearer";
const ACCESS_TOKEN: &str = "AccessToken";
const SIGNATURE: &str = "Signature";
const VOLUME_TOKEN: &str = "VolumeToken";

/// Adds what holds for all operations of a path.
fn complete(item: &mut PathItem) {
    let mut envd = false;
    for (method, slot) in [
        (HttpMethod::Get, &mut item.get),
        (HttpMethod::Put, &mut item.put),
        (HttpMethod::Post, &mut item.post),
        (HttpMethod::Delete, &mut item.delete),
        (HttpMethod::Patch, &mut item.patch),
    ] {
        let Some(operation) = slot else { continue };
        let has_tag = |name: &str| operation.tags.iter().flatten().any(|tag| tag == name);
        let (inside, content) = (has_tag(ENVD), has_tag(CONTENT));
        envd |= inside;
        let open = operation.security.as_ref().is_some_and(|needed| needed.is_empty());
        if content {
            complete_content(operation);
            continue;
        }
        if inside {
            complete_inside(operation);
        } else if !open {
            complete_api(operation, method != HttpMethod::Get);
        }
        add(operation, &[(400, "The request is wrong, or the SDK is too old: the message says which")]);
    }
    if envd {
        item.servers = Some(vec![sandbox_host()]);
    }
}

fn complete_api(operation: &mut Operation, writes: bool) {
    let keys = [API_KEY, BEARER].map(|name| SecurityRequirement::new(name, [""; 0]));
    operation.security.get_or_insert_with(|| keys.into());
    add(operation, &[(401, "The API key is missing or not valid")]);
    if writes {
        add(operation, &[(403, "The API key may only read, or the thing belongs to another team")]);
    }
    if operation.request_body.is_some() {
        add(operation, &[(413, "The body is larger than 256 KiB"), (415, "The body is not JSON")]);
    }
    add(operation, &[(500, "The server failed: its log says why"), (503, "The server cannot do it now: try again")]);
}

fn complete_inside(operation: &mut Operation) {
    let rows = [
        (401, "The access token or the signature is missing, wrong or expired"),
        (409, "The sandbox is paused"),
        (500, "The server failed: its log says why"),
        (502, "The sandbox does not run"),
        (503, "The server cannot do it now: try again"),
    ];
    add(operation, &rows);
}

fn complete_content(operation: &mut Operation) {
    operation.security = Some(vec![SecurityRequirement::new(VOLUME_TOKEN, [""; 0])]);
    let rows = [
        (400, "The request is wrong: the message says why"),
        (401, "The token of the volume is missing or not valid"),
        (404, "There is no such file or directory"),
        (409, "It exists already, or its state does not allow this"),
        (413, "The body is larger than 256 KiB"),
        (415, "The body is not JSON"),
        (500, "The server failed: its log says why"),
        (503, "The server cannot do it now: try again"),
        (504, "It took too long"),
        (507, "The disk or the volume is full"),
    ];
    let json = match &operation.request_body {
        Some(RefOr::T(body)) => body.content.contains_key("application/json"),
        Some(RefOr::Ref(_)) | None => false,
    };
    let rows = rows.into_iter().filter(|(status, _)| json || !matches!(status, 413 | 415)).collect::<Vec<_>>();
    for (status, response) in failures(&e2b::VolumeError::name(), &rows) {
        operation.responses.responses.entry(status).or_insert(response);
    }
}

/// Where a sandbox's own operations answer.
fn sandbox_host() -> Server {
    let variable =
        |value: &str, text: &str| ServerVariableBuilder::new().default_value(value).description(Some(text)).build();
    ServerBuilder::new()
        .url(format!("https://{ENVD_PORT}-{{sandboxID}}.{{domain}}"))
        .description(Some("The sandbox's host"))
        .parameter("sandboxID", variable("sandbox", "The sandbox"))
        .parameter("domain", variable("pando.localhost", "`domain` of the sandbox"))
        .build()
}

/// Adds answers that the operation has not described itself.
fn add(operation: &mut Operation, rows: &[(u16, &str)]) {
    for (status, response) in failures(&e2b::Error::name(), rows) {
        operation.responses.responses.entry(status).or_insert(response);
    }
}

/// Answers from 400 on.
fn failures(schema: &str, rows: &[(u16, &str)]) -> BTreeMap<String, RefOr<Response>> {
    let body = || Content::builder().schema(Some(Ref::from_schema_name(schema))).build();
    let row = |(status, description): &(u16, &str)| {
        let mut response = ResponseBuilder::new().description(*description).content("application/json", body());
        if matches!(status, 429 | 503) {
            let mut after = Header::new(u64::schema());
            after.description = Some("After how many seconds another attempt may succeed".to_owned());
            response = response.header("Retry-After", after);
        }
        (status.to_string(), RefOr::T(response.build()))
    };
    rows.iter().map(row).collect()
}

/// Answers that several operations have.
macro_rules! answers {
    ($($(#[$doc:meta])* $name:ident: [$(($status:literal, $description:literal)),+ $(,)?];)+) => {
        $(
            $(#[$doc])*
            pub(super) struct $name;

            impl IntoResponses for $name {
                fn responses() -> BTreeMap<String, RefOr<Response>> {
                    failures(&e2b::Error::name(), &[$(($status, $description)),+])
                }
            }
        )+
    };
}

answers! {
    /// The operation names a sandbox.
    NoSandbox: [(404, "The team has no such sandbox")];
    /// The operation names a volume.
    NoVolume: [(404, "The team has no such volume, or the volume no such snapshot")];
    /// The operation names a secret.
    NoSecret: [(404, "The team has no such secret")];
    /// The operation changes a volume.
    Stored: [
        (409, "Its state does not allow this: the message says why"),
        (504, "It took too long"),
        (507, "The disk or the volume is full"),
    ];
    /// The operation names a template.
    NoTemplate: [
        (403, "The template belongs to another team, or the API key may only read"),
        (404, "The team has no such template"),
    ];
    /// The state of the thing may not allow the operation.
    Conflict: [(409, "Its state does not allow this: the message says why")];
    /// The team may have too many.
    OverQuota: [(429, "The team may have no more")];
    /// The operation starts a sandbox, or captures one.
    Started: [
        (409, "Its state does not allow this: the message says why"),
        (429, "The team may have no more sandboxes, CPUs or memory"),
        (504, "It took too long"),
        (507, "The disk is full"),
    ];
    /// The operation is about a file of a sandbox.
    NoFile: [
        (403, "The user of the sandbox may not do that"),
        (404, "There is no such file"),
        (429, "Too many requests about files at once"),
        (504, "It took too long"),
        (507, "The disk is full"),
    ];
}
