//! Frames, messages and requests: small things.

use api::frame::Decoder;
use gateway::{
    domain::Domain,
    route::{Asked, ENVD_PORT, Route, SandboxLabel},
};
use keeper::protocol::{FromKeeper, Parcel, Request};

/// Whatever begins like a frame.
pub(crate) fn frame(data: &[u8]) {
    let kind = data.get(4..6).map_or(0, |kind| u16::from_le_bytes([kind[0], kind[1]]));
    if let Ok((version, payload)) = base::frame::decode(data, kind, 1) {
        assert_eq!(base::frame::encode(kind, version, payload).expect("it was one"), data);
    }
}

pub(crate) fn references_and_keys(data: &[u8]) {
    store::fuzzing::references_and_keys(data);
    store::fuzzing::references_and_keys(&base::frame::encode(16, 1, data).expect("inputs are short"));
    let _ = store::seal::key_id(data);
}

/// A stream, cut into reads as its first byte says.
pub(crate) fn exec_stream(data: &[u8]) {
    let Some((step, stream)) = data.split_first() else { return };
    let (mut decoder, mut read) = (Decoder::default(), Vec::new());
    for bytes in stream.chunks(usize::from(*step) + 1) {
        decoder.push(bytes);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => frame.encode(&mut read),
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
    assert!(stream.starts_with(&read), "frames have one encoding");
}

/// Messages between server and keeper, and parcels.
pub(crate) fn keeper(data: &[u8]) {
    drop(serde_json::from_slice::<Request>(data));
    drop(serde_json::from_slice::<FromKeeper>(data));
    drop(postcard::from_bytes::<Parcel>(data));
}

/// Bodies of the API's requests, and of answers that the command reads.
pub(crate) fn requests(data: &[u8]) {
    drop(serde_json::from_slice::<api::TemplateSpec>(data));
    drop(serde_json::from_slice::<api::RunRequest>(data));
    drop(serde_json::from_slice::<api::ForkRequest>(data));
    drop(serde_json::from_slice::<api::ExecRequest>(data));
    drop(serde_json::from_slice::<api::CheckpointRequest>(data));
    drop(serde_json::from_slice::<api::GcRequest>(data));
    drop(serde_json::from_slice::<api::RunResponse>(data));
    drop(serde_json::from_slice::<api::CheckpointEvent>(data));
    drop(serde_json::from_slice::<api::BuildEvent>(data));
    drop(serde_json::from_slice::<api::ErrorBody>(data));
}

/// Host, sandbox and port of a request, one in each line. The domain is the default one.
pub(crate) fn route(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.splitn(3, '\n');
    let asked = Asked { host: lines.next(), sandbox_id: lines.next(), sandbox_port: lines.next() };
    let domain: Domain = gateway::domain::DOMAIN_DEFAULT.parse().expect("it is one");
    if let Ok(Route::Envd { id } | Route::Port { id, .. }) = gateway::route::route(asked, &domain) {
        assert_eq!(SandboxLabel::new(id.as_str()), Some(id), "a label is in lower case and stays so");
    }
    if let Ok(Route::Port { port, .. }) = gateway::route::route(asked, &domain) {
        assert!(port != 0 && port != ENVD_PORT);
    }
    if let Ok(domain) = text.parse::<Domain>() {
        assert_eq!(domain.to_string().parse(), Ok(domain), "a domain has one form");
    }
}
