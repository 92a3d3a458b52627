//! Secrets.

use std::{collections::BTreeMap, sync::Arc};

use base::limits::{SECRET_BYTES_MAX, SECRET_NAME_BYTES_MAX};
use control::{ControlError, Kind, NewSecret, Page, SecretUpdate};
use sqlx::Connection;
use store::{
    keys::{MasterKeys, RealmKeys},
    object::Objects,
};

use crate::place::{Place, SECOND, team};

/// Data keys in a directory, wrapped by a master key.
fn keys(directory: &std::path::Path) -> RealmKeys {
    let objects = directory.join("objects").to_str().unwrap().parse().unwrap();
    let objects = Objects::open(&objects, Default::default()).unwrap();
    let master = MasterKeys::parse(&format!("test:{}", "42".repeat(32)), "a test").unwrap();
    RealmKeys::new(objects, Arc::new(master), "default".parse().unwrap())
}

fn new(name: &str, value: &str) -> NewSecret {
    let metadata = BTreeMap::from([("a".to_owned(), "1".to_owned())]);
    NewSecret { name: name.to_owned(), value: value.to_owned().into(), metadata }
}

pub(crate) async fn a_value_is_sealed_and_versions_are_counted(place: &Place) {
    let directory = tempfile::tempdir().unwrap();
    let keys = keys(directory.path());
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    let secrets = control.secrets(&keys);
    let made = secrets.create(&team, &new("Api-Key", "value-0123")).await.unwrap();
    assert_eq!((&*made.name, made.version, made.created), ("api-key", 1, control.now()));
    for way in [made.public_id(), "api-key".to_owned(), "API-KEY".to_owned()] {
        assert_eq!(secrets.get(&team, &way).await.unwrap(), made, "{way}");
    }
    assert_eq!(**secrets.value(&team, "api-key").await.unwrap(), *"value-0123");
    place.clock.advance(SECOND);
    let value = || "value-4567".to_owned().into();
    let kept = secrets.update(&team, "api-key", &SecretUpdate { value: value(), metadata: None }).await.unwrap();
    assert_eq!((kept.version, &kept.metadata, kept.updated), (2, &made.metadata, control.now()));
    let update = SecretUpdate { value: value(), metadata: Some(BTreeMap::new()) };
    let set = secrets.update(&team, &made.public_id(), &update).await.unwrap();
    assert_eq!((set.version, set.metadata.len(), set.created), (3, 0, made.created));
    assert_eq!(**secrets.value(&team, "api-key").await.unwrap(), *"value-4567");
    // Another secret's value in its place is not taken for its own, and the database has no value in the clear.
    secrets.create(&team, &new("other", "value-89ab")).await.unwrap();
    let mut connection = place.connect().await;
    let rows: Vec<(String,)> = sqlx::query_as("SELECT sealed FROM secrets").fetch_all(&mut connection).await.unwrap();
    let digits = |text: &str| base::id::hex(text.as_bytes());
    assert!(rows.iter().all(|(sealed,)| !sealed.contains(&digits("value-")) && !sealed.contains("value-")));
    let swap = "UPDATE secrets SET sealed = (SELECT sealed FROM secrets WHERE name = 'other')";
    sqlx::query(swap).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    assert!(matches!(secrets.value(&team, "api-key").await, Err(ControlError::Seal { .. })));
    assert_eq!(**secrets.value(&team, "other").await.unwrap(), *"value-89ab");
}

pub(crate) async fn secrets_are_named_once_paged_and_of_one_team(place: &Place) {
    let directory = tempfile::tempdir().unwrap();
    let keys = keys(directory.path());
    let control = place.open("a").await;
    let (ours, theirs) = (team(&control, "ours").await, team(&control, "theirs").await);
    let secrets = control.secrets(&keys);
    for number in 0..5 {
        secrets.create(&ours, &new(&format!("s{number}"), "value")).await.unwrap();
        place.clock.advance(SECOND);
    }
    let foreign = secrets.create(&theirs, &new("s0", "value")).await.unwrap();
    assert!(matches!(secrets.create(&ours, &new("S0", "value")).await, Err(ControlError::Exists { .. })));
    let (mut names, mut page) = (Vec::new(), Page { limit: 2, after: None });
    loop {
        let (found, next) = secrets.list(&ours, &page).await.unwrap();
        names.extend(found.into_iter().map(|secret| secret.name));
        match next {
            Some(next) => page.after = Some(next.to_string().parse().unwrap()),
            None => break,
        }
    }
    assert_eq!(names, ["s4", "s3", "s2", "s1", "s0"]);
    for secret in [&*foreign.public_id(), "absent"] {
        assert_eq!(secrets.get(&ours, secret).await.unwrap_err().kind(), Kind::NotFound);
        assert_eq!(secrets.delete(&ours, secret).await.unwrap_err().kind(), Kind::NotFound);
        assert_eq!(secrets.value(&ours, secret).await.unwrap_err().kind(), Kind::NotFound);
    }
    secrets.delete(&ours, "s0").await.unwrap();
    assert_eq!(secrets.get(&ours, "s0").await.unwrap_err().kind(), Kind::NotFound);
    secrets.get(&theirs, "s0").await.unwrap();
    for bad in ["", "a{b", "a\u{0}", "sec_1", &"a".repeat(SECRET_NAME_BYTES_MAX + 1)] {
        assert_eq!(secrets.create(&ours, &new(bad, "value")).await.unwrap_err().kind(), Kind::Invalid, "{bad:?}");
    }
    let long = "a".repeat(SECRET_BYTES_MAX + 1);
    assert_eq!(secrets.create(&ours, &new("long", &long)).await.unwrap_err().kind(), Kind::Invalid);
}
