//! What a sandbox reaches, and who reaches it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Of a new sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SandboxNetworkConfig)]
pub struct Network {
    /// Whether its ports answer without the traffic access token; true if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_public_traffic: Option<bool>,
    /// Addresses, networks and domains that it may reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_out: Option<Vec<String>>,
    /// Addresses and networks that it may not reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deny_out: Option<Vec<String>>,
    /// Servers for names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns_servers: Option<Vec<String>>,
    /// Through which it reaches others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_proxy: Option<EgressProxy>,
    /// The Host header that its ports see; `${PORT}` stands for the port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask_request_host: Option<String>,
    /// Ports that speak TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub https_ports: Option<Vec<u16>>,
    /// Headers of its HTTPS requests, by domain: a name, or `*.` and one. They allow nothing. In answers the values are `***`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<BTreeMap<String, Vec<Rule>>>,
}

/// Of a sandbox that runs: it replaces what there was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SandboxNetworkUpdateConfig)]
pub struct NetworkUpdate {
    /// Addresses, networks and domains that it may reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_out: Option<Vec<String>>,
    /// Addresses and networks that it may not reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deny_out: Option<Vec<String>>,
    /// Servers for names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns_servers: Option<Vec<String>>,
    /// Through which it reaches others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_proxy: Option<EgressProxy>,
    /// Headers of its HTTPS requests, by domain: a name, or `*.` and one. They allow nothing. In answers the values are `***`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<BTreeMap<String, Vec<Rule>>>,
    /// Whether it reaches the internet.
    #[serde(rename = "allow_internet_access", skip_serializing_if = "Option::is_none")]
    pub allow_internet_access: Option<bool>,
}

/// A SOCKS5 proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SandboxEgressProxyConfig)]
pub struct EgressProxy {
    /// `HOST:PORT`.
    pub address: String,
    /// As whom.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// With which password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// Whether it speaks TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<EgressTls>,
}

/// TLS to a proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SandboxEgressProxyTLSConfig)]
pub struct EgressTls {
    /// Whether it is used.
    pub enabled: bool,
    /// The name in its certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
    /// Who signs its certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_cert: Option<String>,
}

/// A change to requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = SandboxNetworkRule)]
pub struct Rule {
    /// What is changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transform: Option<Transform>,
}

/// What is changed in a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = SandboxNetworkTransform)]
pub struct Transform {
    /// Headers that are set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<BTreeMap<String, String>>,
}
