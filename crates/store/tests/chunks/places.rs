//! Every scenario over every kind of place. `scripts/s3.sh cargo test -p pando-store --test chunks -- --include-ignored` runs them all.

use store::object::{Location, ObjectError, Objects};

use crate::{
    common::{directory, quick},
    scenarios,
};

macro_rules! over_each_place {
    ($($scenario:ident),* $(,)?) => {
        mod over_a_directory {
            $(#[tokio::test]
            async fn $scenario() {
                let folder = tempfile::tempdir().unwrap();
                super::scenarios::$scenario(&super::directory(folder.path())).await;
            })*
        }

        mod over_s3 {
            $(#[tokio::test]
            #[ignore = "needs a service: scripts/s3.sh runs one"]
            async fn $scenario() {
                super::scenarios::$scenario(&super::bucket(stringify!($scenario))).await;
            })*
        }
    };
}

over_each_place!(
    objects_are_created_once_and_read_back,
    a_stream_of_several_parts_is_one_object,
    an_interrupted_upload_leaves_nothing_to_read,
    chunks_are_read_alone_and_together,
    a_lost_answer_to_a_write_is_not_a_second_write,
);

/// A fresh prefix in the bucket that `PANDO_TEST_S3` names.
fn bucket(test: &str) -> Location {
    let text = std::env::var("PANDO_TEST_S3").expect("PANDO_TEST_S3 is set by scripts/s3.sh");
    let Location::S3(mut s3) = text.parse().unwrap() else { panic!("{text} is not a bucket") };
    s3.prefix = format!("{test}-{}", base::id::random_uuid());
    Location::S3(s3)
}

#[tokio::test]
#[ignore = "needs a service: scripts/s3.sh runs one"]
async fn a_missing_bucket_is_named() {
    let Location::S3(s3) = bucket("denied") else { unreachable!() };
    let missing = Location::S3(store::object::S3Location { bucket: "no-such-bucket".into(), ..s3 });
    let objects = Objects::open(&missing, quick()).unwrap();
    for outcome in [objects.put("a", "x".into()).await, objects.list("a").await.map(drop)] {
        let Err(ObjectError::Failed { source, .. }) = outcome else { panic!("{outcome:?}") };
        assert!(source.to_string().contains("NoSuchBucket"), "{source}");
    }
}
