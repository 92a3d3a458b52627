//! Where an object store is, as one line of text that fits a command line or a file of settings.

use std::{fmt, path::PathBuf, str::FromStr};

/// Where the objects are. As text: a path, or
/// `s3://BUCKET[/PREFIX][?endpoint=URL&region=REGION&path_style=true]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A local directory, on a filesystem that knows `O_TMPFILE` (ext4, xfs, btrfs, tmpfs).
    Directory(PathBuf),
    /// A bucket.
    S3(S3Location),
}

/// A bucket of an S3-compatible service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Location {
    /// The bucket's name.
    pub bucket: String,
    /// What all keys begin with; may be empty.
    pub prefix: String,
    /// The service's address; AWS if it is absent. `http://` is allowed: chunks are sealed anyway.
    pub endpoint: Option<String>,
    /// The region; `AWS_REGION` if it is absent, or `us-east-1`.
    pub region: Option<String>,
    /// The bucket is part of the path, not of the host name: most services but AWS.
    pub path_style: bool,
}

/// Why a text is not a location.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not the location of an object store: {rule}")]
pub struct InvalidLocation {
    text: String,
    rule: &'static str,
}

impl FromStr for Location {
    type Err = InvalidLocation;

    fn from_str(text: &str) -> Result<Self, InvalidLocation> {
        let refuse = |rule| Err(InvalidLocation { text: text.to_owned(), rule });
        let Some(rest) = text.strip_prefix("s3://") else {
            if text.contains("://") || text.is_empty() {
                return refuse("give a directory or s3://BUCKET/PREFIX");
            }
            return Ok(Self::Directory(text.into()));
        };
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        if bucket.is_empty() {
            return refuse("the bucket is missing");
        }
        let (bucket, prefix) = (bucket.to_owned(), prefix.trim_matches('/').to_owned());
        let mut s3 = S3Location { bucket, prefix, endpoint: None, region: None, path_style: false };
        for setting in query.split('&').filter(|setting| !setting.is_empty()) {
            match setting.split_once('=') {
                Some(("endpoint", url)) if url.starts_with("http://") || url.starts_with("https://") => {
                    s3.endpoint = Some(url.trim_end_matches('/').to_owned());
                }
                Some(("region", region)) if !region.is_empty() => s3.region = Some(region.to_owned()),
                Some(("path_style", "true")) => s3.path_style = true,
                Some(("path_style", "false")) => s3.path_style = false,
                _ => return refuse("settings are endpoint=http(s)://..., region=... and path_style=true or false"),
            }
        }
        Ok(Self::S3(s3))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s3 = match self {
            Self::Directory(path) => return path.display().fmt(f),
            Self::S3(s3) => s3,
        };
        write!(f, "s3://{}", s3.bucket)?;
        if !s3.prefix.is_empty() {
            write!(f, "/{}", s3.prefix)?;
        }
        let endpoint = s3.endpoint.as_ref().map(|url| format!("endpoint={url}"));
        let region = s3.region.as_ref().map(|region| format!("region={region}"));
        let path_style = s3.path_style.then(|| "path_style=true".to_owned());
        for (number, setting) in [endpoint, region, path_style].into_iter().flatten().enumerate() {
            write!(f, "{}{setting}", if number == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_reads_back_from_its_text() {
        for text in [
            "/var/lib/pando/store",
            "s3://bucket",
            "s3://bucket/some/prefix?endpoint=http://127.0.0.1:7070&region=eu-west-1&path_style=true",
        ] {
            assert_eq!(text.parse::<Location>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn an_unknown_scheme_or_setting_is_refused() {
        for bad in
            ["", "gs://bucket", "s3://", "s3:///x", "s3://b?endpoint=x", "s3://b?secret=1", "s3://b?path_style=yes"]
        {
            assert!(bad.parse::<Location>().is_err(), "{bad}");
        }
    }
}
