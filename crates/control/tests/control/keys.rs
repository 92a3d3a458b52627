//! API keys.

use base::limits::{KEY_BELIEVED, KEY_USE_NOTED};
use control::{ControlError, Kind, Scope};

use crate::place::{Place, SECOND, scopes, team};

pub(crate) async fn a_key_is_shown_once_and_kept_as_a_hash(place: &Place) {
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    let (info, text) = control.keys().create(&team, "laptop", &scopes(Scope::All)).await.unwrap();
    assert!(text.len() == 44 && text.starts_with("e2b_") && info.mask.len() < 16);
    let caller = control.keys().authenticate(&text).await.unwrap();
    assert_eq!((&caller.team, &caller.key), (&team, &info.id));
    let listed = control.keys().list(&team).await.unwrap();
    assert_eq!((listed.len(), &*listed[0].name), (1, "laptop"));
    assert!(!format!("{listed:?}").contains(&text[4..]), "the list shows the key");
    let (begins, last) = text.split_at(text.len() - 1);
    let other = format!("{begins}{}", if last == "0" { "1" } else { "0" });
    for wrong in ["", "e2b_", "x", &other] {
        let error = control.keys().authenticate(wrong).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unauthorised);
        assert!(wrong.is_empty() || !error.to_string().contains(&format!("{wrong} ")), "the error shows the key");
    }
}

pub(crate) async fn a_revoked_key_is_refused_at_once_here_and_soon_elsewhere(place: &Place) {
    let (here, there) = (place.open("a").await, place.open("b").await);
    let team = team(&here, "acme").await;
    let (info, text) = here.keys().create(&team, "laptop", &scopes(Scope::All)).await.unwrap();
    for server in [&here, &there] {
        server.keys().authenticate(&text).await.unwrap();
    }
    here.keys().revoke(&team, &info.id).await.unwrap();
    assert!(matches!(here.keys().authenticate(&text).await, Err(ControlError::Unauthorised)));
    place.clock.advance(KEY_BELIEVED);
    assert!(matches!(there.keys().authenticate(&text).await, Err(ControlError::Unauthorised)));
    assert!(here.keys().list(&team).await.unwrap().is_empty());
    assert_eq!(here.keys().revoke(&team, &info.id).await.unwrap_err().kind(), Kind::NotFound);
}

pub(crate) async fn a_reading_key_may_not_write(place: &Place) {
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    let (_, text) = control.keys().create(&team, "panel", &scopes(Scope::Read)).await.unwrap();
    let reader = control.keys().authenticate(&text).await.unwrap();
    assert_eq!(reader.may_write().unwrap_err().kind(), Kind::Forbidden);
    let (_, text) = control.keys().create(&team, "agent", &scopes(Scope::All)).await.unwrap();
    control.keys().authenticate(&text).await.unwrap().may_write().unwrap();
    assert_eq!(control.keys().create(&team, "none", &Default::default()).await.unwrap_err().kind(), Kind::Invalid);
}

pub(crate) async fn the_use_of_a_key_is_noted_seldom(place: &Place) {
    let control = place.open("a").await;
    let team = team(&control, "acme").await;
    let (info, text) = control.keys().create(&team, "laptop", &scopes(Scope::All)).await.unwrap();
    assert_eq!(info.used, None);
    let first = control.now();
    control.keys().authenticate(&text).await.unwrap();
    place.clock.advance(KEY_BELIEVED + SECOND);
    control.keys().authenticate(&text).await.unwrap();
    assert_eq!(control.keys().list(&team).await.unwrap()[0].used, Some(first));
    place.clock.advance(KEY_USE_NOTED);
    control.keys().authenticate(&text).await.unwrap();
    assert_eq!(control.keys().list(&team).await.unwrap()[0].used, Some(control.now()));
}

pub(crate) async fn a_team_revokes_only_its_own_keys(place: &Place) {
    let control = place.open("a").await;
    let (ours, theirs) = (team(&control, "ours").await, team(&control, "theirs").await);
    let (info, text) = control.keys().create(&theirs, "laptop", &scopes(Scope::All)).await.unwrap();
    assert_eq!(control.keys().revoke(&ours, &info.id).await.unwrap_err().kind(), Kind::NotFound);
    assert!(control.keys().list(&ours).await.unwrap().is_empty());
    control.keys().authenticate(&text).await.unwrap();
}
