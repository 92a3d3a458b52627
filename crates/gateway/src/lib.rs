//! Between the wire and the routers of `pando serve`: one TCP port for the API and for all sandboxes.
//!
//! - [`listen`]: takes the port, and says who has it if it is taken.
//! - [`mod@serve`]: connections, TLS or plain, HTTP/1.1 or HTTP/2; bounds; orderly end.
//! - [`mod@route`]: where a request goes, by host or by headers. Pure.
//! - [`proxy`]: forwards a request to a port in a sandbox, tunnels included.
//! - [`errors`]: the answers of the edge itself, as E2B's clients expect them.
//! - [`tls`]: the local certificate authority, own certificates, bundles for clients.
//! - [`mod@env`]: the variables with which SDKs find all of this.
//!
//! The crate knows neither nodes nor the control plane: sandboxes are behind [`proxy::Dial`].

pub mod domain;
pub mod env;
pub mod errors;
pub mod listen;
pub mod proxy;
pub mod route;
pub mod serve;
pub mod tls;
pub mod token;
