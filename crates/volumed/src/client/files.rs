//! Files of volumes.

use api::volume::FileInfo;
use base::id::{SnapshotName, VolumeName};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    HeaderMap, Method, Request, Response,
    body::{Body, Incoming},
};

use super::{Begun, Client, VERSION_PREFIX, not_json};
use crate::{BoxError, Error, percent};

const ASK: &str = "ask the process of volumes";

/// A path in a volume.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Which volume.
    pub volume: &'a VolumeName,
    /// A state of it; none: the present one.
    pub snapshot: Option<&'a SnapshotName>,
    /// Below its top directory. It never leads out of the volume.
    pub path: &'a str,
}

impl Place<'_> {
    /// Its address, with these parameters.
    fn address(&self, parameters: &[(&str, String)]) -> String {
        let path = percent::address(self.path.trim_start_matches('/'));
        let mut address = format!("{VERSION_PREFIX}/volumes/{}/files/{path}", self.volume);
        let snapshot = self.snapshot.map(|snapshot| ("snapshot", snapshot.to_string()));
        for (at, (key, value)) in parameters.iter().chain(snapshot.as_ref()).enumerate() {
            address.push_str(if at == 0 { "?" } else { "&" });
            address.push_str(&format!("{key}={value}"));
        }
        address
    }
}

/// Permissions, owner and group. None keeps the present value, or takes the default of a new file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The twelve bits below the kind.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
}

impl Attributes {
    fn parameters(&self) -> Vec<(&'static str, String)> {
        let Self { mode, uid, gid } = *self;
        let mode = mode.map(|mode| ("mode", format!("{mode:o}")));
        let ids = [("uid", uid), ("gid", gid)].into_iter();
        mode.into_iter().chain(ids.filter_map(|(key, id)| Some((key, id?.to_string())))).collect()
    }
}

/// How a change treats an existing file or directory, and missing directories above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// A file is replaced, a directory stays as it is, and missing directories are made.
    Taken,
    /// It is refused, and so is a path whose directory is missing.
    Refused,
}

impl Existing {
    fn is_taken(self) -> String {
        (self == Self::Taken).to_string()
    }
}

/// An answer that comes in parts: of a file its bytes, of a directory a line for each entry.
pub type Whole = Response<Incoming>;

/// Calls about files. Each fails with the refusal of the process of volumes, or if that cannot be reached.
impl Client {
    /// What `stat` shows; of a link itself.
    pub async fn stat(&self, of: &Place<'_>) -> Result<FileInfo, Error> {
        self.ask(Method::GET, &of.address(&[("op", "stat".to_owned())]), &()).await
    }

    /// The bytes of a file. Of `headers`, those that name a range or a condition count.
    pub async fn read(&self, of: &Place<'_>, headers: HeaderMap) -> Result<Whole, Error> {
        let mut request = Request::get(of.address(&[("op", "read".to_owned())])).body(Full::<Bytes>::default());
        if let Ok(request) = &mut request {
            *request.headers_mut() = headers;
        }
        let Begun(answer) = self.begin_with(request.map_err(not_json(ASK))?).await?;
        Ok(answer)
    }

    /// All that is below a directory, so many levels deep: a line of [`api::volume::TreeEntry`] for each entry.
    pub async fn tree(&self, of: &Place<'_>, depth: u32) -> Result<Whole, Error> {
        let address = of.address(&[("op", "tree".to_owned()), ("depth", depth.to_string())]);
        self.begin(Method::GET, &address, &()).await.map(|Begun(answer)| answer)
    }

    /// Writes a file, whole or not at all: a body that breaks off changes nothing.
    pub async fn write<B>(
        &self,
        to: &Place<'_>,
        attributes: Attributes,
        existing: Existing,
        body: B,
    ) -> Result<FileInfo, Error>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let mut parameters = attributes.parameters();
        parameters.extend([("parents", existing.is_taken()), ("replace", existing.is_taken())]);
        let request = Request::put(to.address(&parameters)).body(body).map_err(not_json(ASK))?;
        self.begin_with(request).await?.end().await
    }

    /// Makes a directory.
    pub async fn make_directory(
        &self,
        at: &Place<'_>,
        attributes: Attributes,
        existing: Existing,
    ) -> Result<FileInfo, Error> {
        let mut parameters = vec![("op", "mkdir".to_owned())];
        parameters.extend(attributes.parameters());
        parameters.extend([("parents", existing.is_taken()), ("existing", existing.is_taken())]);
        self.ask(Method::POST, &at.address(&parameters), &()).await
    }

    /// Changes permissions, owner and group in one step; of what a link leads to.
    pub async fn set_attributes(&self, of: &Place<'_>, attributes: Attributes) -> Result<FileInfo, Error> {
        let mut parameters = vec![("op", "set".to_owned())];
        parameters.extend(attributes.parameters());
        self.ask(Method::POST, &of.address(&parameters), &()).await
    }

    /// Removes a file, or a directory with all that is in it.
    pub async fn remove_path(&self, at: &Place<'_>) -> Result<(), Error> {
        self.ask(Method::DELETE, &at.address(&[("recursive", "true".to_owned())]), &()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_becomes_an_address() {
        let (volume, snapshot) = ("ws".parse().unwrap(), "then".parse().unwrap());
        let place = Place { volume: &volume, snapshot: None, path: "/a b/c&d" };
        assert_eq!(place.address(&[]), "/v1/volumes/ws/files/a%20b/c%26d");
        let then = Place { snapshot: Some(&snapshot), ..place };
        let attributes = Attributes { mode: Some(0o640), uid: None, gid: Some(7) };
        assert_eq!(
            then.address(&attributes.parameters()),
            "/v1/volumes/ws/files/a%20b/c%26d?mode=640&gid=7&snapshot=then"
        );
    }
}
