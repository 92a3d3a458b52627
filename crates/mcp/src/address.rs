//! Which server, and with which key.

use crate::Error;

/// A server and a key. The variables are those of Pando's command line, then those of E2B's SDKs.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// Of the REST API, without a slash at the end.
    pub(crate) api: String,
    /// Where headers route requests to sandboxes. Empty: below the domain that the server tells.
    pub(crate) sandboxes: Option<String>,
    pub(crate) key: String,
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Address").field("api", &self.api).field("sandboxes", &self.sandboxes).finish_non_exhaustive()
    }
}

impl Address {
    /// The URL and the key of flags count first, then `PANDO_URL` with `PANDO_KEY`, then `E2B_API_URL` or `E2B_DOMAIN`
    /// with `E2B_API_KEY`.
    ///
    /// # Errors
    ///
    /// If none of them name a server, or they cannot be used.
    pub fn find(url: Option<String>, key: Option<String>) -> Result<Self, Error> {
        Self::of(|name| {
            let flag = match name {
                "PANDO_URL" => url.clone(),
                "PANDO_KEY" | "E2B_API_KEY" => key.clone(),
                _ => None,
            };
            flag.or_else(|| std::env::var(name).ok()).filter(|value| !value.is_empty())
        })
    }

    fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        if let Some(url) = variable("PANDO_URL") {
            let key = variable("PANDO_KEY").ok_or(missing("PANDO_KEY"))?;
            return Self::new("PANDO_URL", &url, None, key);
        }
        let key = variable("E2B_API_KEY");
        if let Some(url) = variable("E2B_API_URL") {
            let key = key.ok_or(missing("E2B_API_KEY"))?;
            return Self::new("E2B_API_URL", &url, variable("E2B_SANDBOX_URL"), key);
        }
        let domain = variable("E2B_DOMAIN").ok_or(Error::NoServer)?;
        let key = key.ok_or(missing("E2B_API_KEY"))?;
        Self::new("E2B_DOMAIN", &format!("https://api.{domain}"), None, key)
    }

    fn new(name: &'static str, url: &str, sandboxes: Option<String>, key: String) -> Result<Self, Error> {
        let unusable = |reason: String| Error::Variable { variable: name, reason };
        let parsed = reqwest::Url::parse(url).map_err(|error| unusable(error.to_string()))?;
        if !matches!(parsed.scheme(), "http" | "https") || !parsed.has_host() {
            return Err(unusable("it has to be https://HOST:PORT or http://HOST:PORT".to_owned()));
        }
        let api = url.trim_end_matches('/').to_owned();
        // Headers name the sandbox only if the host says nothing.
        let host = parsed.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let is_plain = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok();
        let sandboxes = sandboxes.map(|url| url.trim_end_matches('/').to_owned()).or(is_plain.then(|| api.clone()));
        Ok(Self { api, sandboxes, key })
    }

    /// Where requests to a sandbox go.
    pub(crate) fn of_sandboxes(&self, domain: Option<&str>) -> String {
        match (&self.sandboxes, domain) {
            (Some(url), _) => url.clone(),
            (None, Some(domain)) => {
                let scheme = self.api.split("://").next().unwrap_or("https");
                format!("{scheme}://sandbox.{domain}")
            }
            (None, None) => self.api.replacen("://api.", "://sandbox.", 1),
        }
    }
}

fn missing(variable: &'static str) -> Error {
    Error::Variable { variable, reason: "it is not set: `pando key create` makes a key".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Address, Error> {
        Address::of(|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn a_domain_has_the_api_and_the_sandboxes_below_it() {
        let address = of(&[("E2B_DOMAIN", "pando.localhost:7443"), ("E2B_API_KEY", "k")]).unwrap();
        assert_eq!(address.api, "https://api.pando.localhost:7443");
        assert_eq!(address.of_sandboxes(None), "https://sandbox.pando.localhost:7443");
        assert_eq!(address.of_sandboxes(Some("other:1")), "https://sandbox.other:1");
    }

    #[test]
    fn an_address_without_a_name_routes_by_headers() {
        let address = of(&[("PANDO_URL", "http://127.0.0.1:7443/"), ("PANDO_KEY", "k"), ("E2B_DOMAIN", "no")]).unwrap();
        assert_eq!(address.of_sandboxes(Some("pando.localhost")), "http://127.0.0.1:7443");
    }

    #[test]
    fn what_is_missing_is_named() {
        assert!(matches!(of(&[]), Err(Error::NoServer)));
        assert!(matches!(of(&[("E2B_API_KEY", "k")]), Err(Error::NoServer)));
        for (variables, wrong) in [
            (vec![("PANDO_URL", "http://localhost")], "PANDO_KEY"),
            (vec![("E2B_DOMAIN", "a")], "E2B_API_KEY"),
            (vec![("PANDO_URL", "ftp://a"), ("PANDO_KEY", "k")], "PANDO_URL"),
            (vec![("E2B_API_URL", "nothing"), ("E2B_API_KEY", "k")], "E2B_API_URL"),
        ] {
            assert!(matches!(of(&variables), Err(Error::Variable { variable, .. }) if variable == wrong), "{wrong}");
        }
    }

    #[test]
    fn flags_count_first() {
        let address = Address::find(Some("http://[::1]:1".to_owned()), Some("flag".to_owned())).unwrap();
        assert_eq!((address.api.as_str(), address.key.as_str()), ("http://[::1]:1", "flag"));
    }

    #[test]
    fn a_key_is_not_printed() {
        let address = of(&[("E2B_DOMAIN", "a"), ("E2B_API_KEY", "e2b_secret")]).unwrap();
        assert!(!format!("{address:?}").contains("e2b_secret"));
    }
}
