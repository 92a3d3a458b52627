//! The user that a client names: the name in HTTP's basic authentication, without a password.

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderMap, header::AUTHORIZATION};

use crate::{Code, Failure, Outcome};

/// The user that a request names, if it names one.
pub fn user_of(headers: &HeaderMap) -> Outcome<Option<String>> {
    let Some(value) = headers.get(AUTHORIZATION) else { return Ok(None) };
    let wrong = || Failure::new(Code::InvalidArgument, "the Authorization header names no user: `Basic base64(user:)`");
    let text = value.to_str().map_err(|_| wrong())?;
    // Proxies may use others.
    let Some(encoded) = text.strip_prefix("Basic ") else { return Ok(None) };
    let decoded = BASE64_STANDARD.decode(encoded.trim()).map_err(|_| wrong())?;
    let decoded = String::from_utf8(decoded).map_err(|_| wrong())?;
    let name = decoded.split_once(':').map_or(decoded.as_str(), |(name, _)| name);
    Ok((!name.is_empty()).then(|| name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(value: &str) -> Outcome<Option<String>> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, value.parse().unwrap());
        user_of(&headers)
    }

    #[test]
    fn the_user_is_the_name_of_basic_authentication() {
        assert_eq!(user_of(&HeaderMap::new()).unwrap(), None);
        assert_eq!(named("Basic dXNlcjo=").unwrap(), Some("user".into()));
        assert_eq!(named("Basic Og==").unwrap(), None);
        assert_eq!(named("Bearer x").unwrap(), None);
        assert!(named("Basic !").is_err());
    }
}
