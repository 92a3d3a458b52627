//! The two kinds of place behind one set of calls. No retries here: [`super::requests`] has them.

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::{
    ClientOptions, Error, GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload, Result,
    RetryConfig,
    aws::{AmazonS3, AmazonS3Builder},
    multipart::{MultipartStore, PartId},
    path::Path,
};

use super::{
    Ask,
    directory::Directory,
    location::{Location, S3Location},
    staged::Staged,
};

pub(super) enum Backend {
    Directory(Directory),
    S3(Box<AmazonS3>),
}

/// An upload that nobody can see yet.
#[derive(Clone)]
pub(super) enum Unfinished {
    File(Staged),
    S3(String),
}

impl Backend {
    pub(super) fn open(location: &Location) -> Result<Self> {
        match location {
            Location::Directory(root) => Ok(Self::Directory(Directory::open(root)?)),
            Location::S3(s3) => Ok(Self::S3(Box::new(open_s3(s3)?))),
        }
    }

    fn store(&self) -> &dyn ObjectStore {
        match self {
            Self::Directory(directory) => directory.store(),
            Self::S3(s3) => s3.as_ref(),
        }
    }

    pub(super) async fn put(&self, path: &Path, bytes: Bytes) -> Result<()> {
        match self {
            Self::Directory(directory) => {
                let staged = directory.stage().await?;
                staged.write(bytes).await?;
                directory.publish(staged, path).await
            }
            Self::S3(s3) => s3.put_opts(path, PutPayload::from(bytes), PutMode::Create.into()).await.map(drop),
        }
    }

    /// The bytes asked for, and the size of the whole object.
    pub(super) async fn get(&self, path: &Path, ask: &Ask) -> Result<(Bytes, u64)> {
        let found = self.store().get_opts(path, GetOptions { range: ask.range(), ..GetOptions::default() }).await?;
        let size = found.meta.size;
        match ask.length(size) {
            // Known before any of the bytes have come.
            0 => Ok((Bytes::new(), size)),
            _ => Ok((found.bytes().await?, size)),
        }
    }

    pub(super) async fn head(&self, path: &Path) -> Result<ObjectMeta> {
        self.store().head(path).await
    }

    pub(super) async fn list(&self, folder: &Path) -> Result<Vec<ObjectMeta>> {
        self.store().list(Some(folder)).try_collect().await
    }

    pub(super) async fn delete(&self, path: &Path) -> Result<()> {
        self.store().delete(path).await
    }

    pub(super) async fn begin(&self, path: &Path) -> Result<Unfinished> {
        match self {
            Self::Directory(directory) => directory.stage().await.map(Unfinished::File),
            Self::S3(s3) => s3.create_multipart(path).await.map(Unfinished::S3),
        }
    }

    /// Part `number` (from 0); all but the last have [`crate::limits::PART_BYTES`].
    pub(super) async fn part(&self, path: &Path, upload: &Unfinished, number: usize, bytes: Bytes) -> Result<PartId> {
        match (self, upload) {
            (Self::Directory(_), Unfinished::File(staged)) => {
                staged.write_part(number, bytes).await?;
                Ok(PartId { content_id: String::new() })
            }
            (Self::S3(s3), Unfinished::S3(id)) => s3.put_part(path, id, number, bytes.into()).await,
            (Self::Directory(_), Unfinished::S3(_)) | (Self::S3(_), Unfinished::File(_)) => Err(foreign()),
        }
    }

    pub(super) async fn complete(&self, path: &Path, upload: &Unfinished, parts: Vec<PartId>) -> Result<()> {
        match (self, upload) {
            (Self::Directory(directory), Unfinished::File(staged)) => directory.publish(staged.clone(), path).await,
            (Self::S3(s3), Unfinished::S3(id)) => s3.complete_multipart(path, id, parts).await.map(drop),
            (Self::Directory(_), Unfinished::S3(_)) | (Self::S3(_), Unfinished::File(_)) => Err(foreign()),
        }
    }

    pub(super) async fn abort(&self, path: &Path, upload: &Unfinished) -> Result<()> {
        match (self, upload) {
            // The file has no name; it goes with its last descriptor.
            (_, Unfinished::File(_)) => Ok(()),
            (Self::S3(s3), Unfinished::S3(id)) => s3.abort_multipart(path, id).await,
            (Self::Directory(_), Unfinished::S3(_)) => Err(foreign()),
        }
    }
}

fn foreign() -> Error {
    Error::NotSupported { source: "the upload was begun at another store".into() }
}

fn open_s3(location: &S3Location) -> Result<AmazonS3> {
    // The process has one provider of TLS primitives; whoever came first may have installed it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(&location.bucket)
        .with_virtual_hosted_style_request(!location.path_style)
        // Time limits and retries are ours: they are counted, and hold for both kinds of place.
        .with_client_options(ClientOptions::new().with_timeout_disabled().with_allow_http(true))
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() });
    if let Some(region) = &location.region {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = &location.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    builder.build()
}
