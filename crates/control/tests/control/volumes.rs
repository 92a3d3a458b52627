//! Volumes.

use base::id::VolumeId;
use control::{ControlError, Kind};

use crate::place::{Place, team};

pub(crate) async fn a_volume_has_one_name_in_its_team(place: &Place) {
    let control = place.open("a").await;
    let (ours, theirs) = (team(&control, "ours").await, team(&control, "theirs").await);
    let volumes = control.volumes();
    let (first, second) =
        (volumes.create(&ours, "data").await.unwrap(), volumes.create(&theirs, "data").await.unwrap());
    assert_ne!(first.node_volume, second.node_volume);
    assert!(matches!(volumes.create(&ours, "data").await, Err(ControlError::Exists { .. })));
    assert_eq!(volumes.by_name(&ours, "data").await.unwrap(), first);
    assert_eq!(volumes.list(&theirs).await.unwrap(), std::slice::from_ref(&second));
    assert_eq!(volumes.get(&ours, &second.id).await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(volumes.delete(&ours, &second.id).await.unwrap_err().kind(), Kind::NotFound);
    volumes.delete(&ours, &first.id).await.unwrap();
    assert_eq!(volumes.by_name(&ours, "data").await.unwrap_err().kind(), Kind::NotFound);
    volumes.create(&ours, "data").await.unwrap();
    for bad in ["", "a b", "a/b", "\u{0}", &"a".repeat(129)] {
        assert_eq!(volumes.create(&ours, bad).await.unwrap_err().kind(), Kind::Invalid, "{bad:?}");
    }
}

pub(crate) async fn a_volume_of_the_node_becomes_a_teams(place: &Place) {
    let control = place.open("a").await;
    let (ours, theirs) = (team(&control, "ours").await, team(&control, "theirs").await);
    let volumes = control.volumes();
    let first = volumes.create(&ours, "data").await.unwrap();
    let copy = volumes.adopt(&ours, "data-copy", "vol-copy".parse().unwrap()).await.unwrap();
    assert_eq!((volumes.get(&ours, &copy.id).await.unwrap(), copy.node_volume.as_str()), (copy.clone(), "vol-copy"));
    let taken = volumes.adopt(&ours, "data", "vol-other".parse().unwrap()).await;
    assert!(matches!(taken, Err(ControlError::Exists { .. })));
    let other = volumes.create(&theirs, "data").await.unwrap();
    let mut all = volumes.all().await.unwrap();
    let mut expected = vec![first, copy, other];
    for volumes in [&mut all, &mut expected] {
        volumes.sort_by(|one, other| one.id.as_str().cmp(other.id.as_str()));
    }
    assert_eq!(all, expected);
}

pub(crate) async fn a_volume_is_opened_by_its_token_alone(place: &Place) {
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    let volumes = control.volumes();
    let (first, second) = (volumes.create(&team, "a").await.unwrap(), volumes.create(&team, "b").await.unwrap());
    let token = volumes.token(&first);
    control.close().await;
    let again = place.open("a").await;
    assert_eq!(again.volumes().authenticate(&first.id, token.as_str()).await.unwrap(), first);
    for (id, token) in [(&second.id, token.as_str()), (&first.id, ""), (&VolumeId::random(), token.as_str())] {
        let error = again.volumes().authenticate(id, token).await.unwrap_err();
        assert!(matches!(error, ControlError::Token), "{error}");
    }
}
