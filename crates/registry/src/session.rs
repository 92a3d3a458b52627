//! Requests to the repository of one image: with a token, if the registry wants one.

use std::sync::{Mutex, PoisonError};

use base64::{Engine, prelude::BASE64_STANDARD};
use http_auth::{ChallengeRef, parser::ChallengeParser};
use reqwest::{
    StatusCode, Url,
    header::{HeaderMap, HeaderValue, WWW_AUTHENTICATE},
};
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::{
    error::{Error, Result},
    http::{Answer, Ask, Http},
    limits::TOKEN_BYTES_MAX,
    reference::Reference,
};

/// Who asks. Neither kept nor logged.
pub enum Credentials {
    /// A user and a password, or a token in its place.
    Password {
        /// The user.
        user: String,
        /// The password.
        password: Zeroizing<String>,
    },
    /// What a token service has given to another client, in exchange for tokens.
    IdentityToken(Zeroizing<String>),
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials")
    }
}

impl Credentials {
    /// A user and a password.
    pub fn password(user: String, password: String) -> Self {
        Self::Password { user, password: Zeroizing::new(password) }
    }

    /// What a token service has given to another client.
    pub fn identity_token(token: String) -> Self {
        Self::IdentityToken(Zeroizing::new(token))
    }

    fn basic(&self) -> Option<HeaderValue> {
        let Self::Password { user, password } = self else { return None };
        let both = Zeroizing::new(format!("{user}:{}", password.as_str()));
        secret(&format!("Basic {}", BASE64_STANDARD.encode(both.as_bytes())))
    }
}

/// A header that no log shows.
fn secret(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// What a token service answers. Both names are in use.
#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

/// How a registry wants to be asked.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    Basic,
    /// With a token from `realm`.
    Bearer {
        realm: String,
        service: Option<String>,
        scope: Option<String>,
    },
}

/// See the module.
pub(crate) struct Session<'a> {
    http: &'a Http,
    reference: &'a Reference,
    credentials: Option<&'a Credentials>,
    authorization: Mutex<Option<HeaderValue>>,
}

impl<'a> Session<'a> {
    pub(crate) fn new(http: &'a Http, reference: &'a Reference, credentials: Option<&'a Credentials>) -> Self {
        Self { http, reference, credentials, authorization: Mutex::default() }
    }

    /// What is at `path` of the repository, from byte `from` on. `what`: the same for people.
    pub(crate) async fn get(&self, path: &str, what: &str, accept: &'static str, from: u64) -> Result<Answer> {
        let answer = self.ask(path, what, accept, from).await;
        answer.map_err(|error| match error {
            // Users have credentials for the registry, whatever host has refused them.
            Error::Unauthorized { what, message, .. } => {
                Error::Unauthorized { registry: self.reference.registry().name().to_owned(), what, message }
            }
            error => error,
        })
    }

    async fn ask(&self, path: &str, what: &str, accept: &'static str, from: u64) -> Result<Answer> {
        let repository = self.reference.repository();
        let url = self.http.url(self.reference.registry().authority(), &format!("/v2/{repository}/{path}"))?;
        let mut ask = Ask { accept, from, authorization: self.authorization(), ..Ask::of(url, what) };
        let answer = self.http.ask(ask.clone()).await?;
        if answer.status() != StatusCode::UNAUTHORIZED || !answer.is_own {
            return answer.checked().await;
        }
        // None yet, or one that has expired.
        let Some(wanted) = wanted(answer.headers()) else { return answer.checked().await };
        let Some(authorization) = self.authorize(wanted).await? else { return answer.checked().await };
        self.set_authorization(&authorization);
        ask.authorization = Some(authorization);
        self.http.ask(ask).await?.checked().await
    }

    fn authorization(&self) -> Option<HeaderValue> {
        self.authorization.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_authorization(&self, value: &HeaderValue) {
        *self.authorization.lock().unwrap_or_else(PoisonError::into_inner) = Some(value.clone());
    }

    /// None: there are no credentials for that.
    async fn authorize(&self, wanted: Wanted) -> Result<Option<HeaderValue>> {
        match wanted {
            Wanted::Basic => Ok(self.credentials.and_then(Credentials::basic)),
            Wanted::Bearer { realm, service, scope } => {
                let scope = scope.unwrap_or_else(|| format!("repository:{}:pull", self.reference.repository()));
                let fields = [("service", service), ("scope", Some(scope))];
                let fields: Vec<_> = fields.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
                self.token(&realm, &fields).await.map(Some)
            }
        }
    }

    async fn token(&self, realm: &str, fields: &[(&str, String)]) -> Result<HeaderValue> {
        let registry = self.reference.registry().authority();
        let refused = |host: &str, why: &str| Error::Token { host: host.to_owned(), why: why.to_owned() };
        let url = Url::parse(realm).map_err(|_| refused(registry, "the registry names it by no URL"))?;
        let what = format!("a token for {}", self.reference.name());
        let mut ask = Ask::of(url, &what);
        match self.credentials {
            Some(Credentials::IdentityToken(token)) => {
                // The encoder is that of URLs.
                let mut form = ask.url.clone();
                form.set_query(None);
                form.query_pairs_mut()
                    .append_pair("grant_type", "refresh_token")
                    .append_pair("client_id", "pando")
                    .append_pair("refresh_token", token)
                    .extend_pairs(fields);
                ask.form = form.query().map(str::to_owned);
            }
            credentials => {
                ask.url.query_pairs_mut().extend_pairs(fields);
                ask.authorization = credentials.and_then(Credentials::basic);
            }
        }
        let mut answer = self.http.ask(ask).await?.checked().await?;
        let body = Zeroizing::new(answer.bytes(TOKEN_BYTES_MAX).await?);
        let token: Option<Token> = serde_json::from_slice(&body).ok();
        let token = token.and_then(|found| found.token.or(found.access_token)).map(Zeroizing::new);
        let header = token.and_then(|token| secret(&format!("Bearer {}", token.as_str())));
        header.ok_or_else(|| refused(&answer.host, "it answers something else"))
    }
}

/// What a registry wants. A token, if it takes both.
fn wanted(headers: &HeaderMap) -> Option<Wanted> {
    let mut found = None;
    for value in headers.get_all(WWW_AUTHENTICATE) {
        let Ok(text) = value.to_str() else { continue };
        for challenge in ChallengeParser::new(text).map_while(Result::ok) {
            if challenge.scheme.eq_ignore_ascii_case("basic") {
                found = Some(Wanted::Basic);
            } else if challenge.scheme.eq_ignore_ascii_case("bearer")
                && let Some(realm) = parameter(&challenge, "realm")
            {
                let (service, scope) = (parameter(&challenge, "service"), parameter(&challenge, "scope"));
                return Some(Wanted::Bearer { realm, service, scope });
            }
        }
    }
    found
}

fn parameter(challenge: &ChallengeRef<'_>, name: &str) -> Option<String> {
    let found = challenge.params.iter().find(|(found, _)| found.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.to_unescaped())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&str]) -> Option<Wanted> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(WWW_AUTHENTICATE, value.parse().unwrap());
        }
        wanted(&headers)
    }

    #[test]
    fn challenges_say_how_to_ask() {
        let hub =
            r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull""#;
        let bearer = Wanted::Bearer {
            realm: "https://auth.docker.io/token".to_owned(),
            service: Some("registry.docker.io".to_owned()),
            scope: Some("repository:a/b:pull".to_owned()),
        };
        assert_eq!(read(&["Basic realm=\"x\"", hub]), Some(bearer));
        assert_eq!(read(&["basic realm=\"Registry Realm\""]), Some(Wanted::Basic));
        assert_eq!(read(&["Bearer service=\"x\""]), None);
        assert_eq!(read(&["Digest realm=\"x\""]), None);
        assert_eq!(read(&[]), None);
    }

    #[test]
    fn credentials_are_never_shown() {
        let credentials =
            Credentials::Password { user: "me".to_owned(), password: Zeroizing::new("secret".to_owned()) };
        assert_eq!(format!("{credentials:?}"), "Credentials");
        assert_eq!(format!("{:?}", credentials.basic().unwrap()), "Sensitive");
    }
}
