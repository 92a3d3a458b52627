//! What heads and leases promise, one writer at a time.

use std::time::Duration;

use db::DbError;
use store::{
    heads::{Head, Heads, HeadsError, PeerEntry, Protected, Roots},
    id::{ManifestId, SegmentId},
};

use crate::place::{HOUR, Place, create, lease, lease_of, name, realm};

/// Commits with a lease of its own.
async fn commit(heads: &Heads, expected: &Head) -> Result<Head, HeadsError> {
    let next = ManifestId::random();
    heads.commit(expected, next, &lease_of(heads, next).await).await
}

pub(crate) async fn a_head_moves_from_what_the_writer_saw_and_from_nothing_else(place: &Place) {
    let heads = place.open().await;
    let first = create(&heads, "volumes/a").await;
    assert_eq!(heads.get(&realm(), &first.name).await.unwrap(), first);
    let other = ManifestId::random();
    let again = heads.create(&realm(), &first.name, other, &lease_of(&heads, other).await).await;
    assert!(matches!(again, Err(HeadsError::Exists { .. })), "{again:?}");
    let second = commit(&heads, &first).await.unwrap();
    assert_eq!(
        (second.generation, heads.get(&realm(), &first.name).await.unwrap()),
        (first.generation, second.clone())
    );
    let stale = commit(&heads, &first).await;
    assert!(matches!(stale, Err(HeadsError::Moved { found, .. }) if found == second.manifest), "{stale:?}");
    let stale = heads.remove(&first).await;
    assert!(matches!(stale, Err(HeadsError::Moved { .. })), "{stale:?}");
    heads.remove(&second).await.unwrap();
    for gone in [heads.remove(&second).await.map(|()| second.clone()), commit(&heads, &second).await] {
        assert!(matches!(gone, Err(HeadsError::NotFound { .. })), "{gone:?}");
    }
    assert!(matches!(heads.get(&realm(), &first.name).await, Err(HeadsError::NotFound { .. })));
}

pub(crate) async fn a_name_is_removed_whatever_it_names_by_now(place: &Place) {
    let heads = place.open().await;
    let first = create(&heads, "a").await;
    create(&heads, "b").await;
    let moved = commit(&heads, &first).await.unwrap();
    heads.remove_name(&realm(), &first.name).await.unwrap();
    let gone = heads.remove_name(&realm(), &first.name).await;
    assert!(matches!(gone, Err(HeadsError::NotFound { .. })), "{gone:?}");
    let gone = commit(&heads, &moved).await;
    assert!(matches!(gone, Err(HeadsError::NotFound { .. })), "{gone:?}");
    heads.get(&realm(), &name("b")).await.unwrap();
}

pub(crate) async fn a_writer_that_was_taken_over_is_fenced_off(place: &Place) {
    let (heads, other) = (place.open().await, place.open().await);
    let mine = create(&heads, "a").await;
    let theirs = other.take_over(&mine).await.unwrap();
    assert!(theirs.generation > mine.generation);
    assert_eq!(theirs.manifest, mine.manifest);
    let fenced = commit(&heads, &mine).await;
    assert!(
        matches!(&fenced, Err(HeadsError::Fenced { held, current, .. })
            if (*held, *current) == (mine.generation, theirs.generation)),
        "{fenced:?}"
    );
    assert!(matches!(heads.remove(&mine).await, Err(HeadsError::Fenced { .. })));
    let next = commit(&other, &theirs).await.unwrap();
    assert!(matches!(commit(&heads, &mine).await, Err(HeadsError::Fenced { .. })));
    assert_eq!(heads.get(&realm(), &mine.name).await.unwrap(), next);
}

pub(crate) async fn a_name_made_again_fences_the_writers_of_its_first_life(place: &Place) {
    let heads = place.open().await;
    let first = create(&heads, "a").await;
    heads.remove(&first).await.unwrap();
    // Even with the manifest of the first life, as after an import.
    let lease = lease_of(&heads, first.manifest).await;
    let second = heads.create(&realm(), &first.name, first.manifest, &lease).await.unwrap();
    assert!(second.generation > first.generation);
    assert!(matches!(commit(&heads, &first).await, Err(HeadsError::Fenced { .. })));
    assert!(matches!(heads.remove(&first).await, Err(HeadsError::Fenced { .. })));
    assert_eq!(heads.get(&realm(), &first.name).await.unwrap(), second);
}

pub(crate) async fn of_several_who_take_over_one_wins(place: &Place) {
    let heads = place.open().await;
    let seen = create(&heads, "a").await;
    // The writer may have moved on meanwhile: what counts is the generation.
    let moved = commit(&heads, &seen).await.unwrap();
    let first = heads.take_over(&seen).await.unwrap();
    assert_eq!(first.manifest, moved.manifest);
    assert!(matches!(heads.take_over(&seen).await, Err(HeadsError::Fenced { .. })));
    assert!(heads.take_over(&first).await.unwrap().generation > first.generation);
}

pub(crate) async fn a_commit_or_create_may_be_repeated_when_its_answer_was_lost(place: &Place) {
    let heads = place.open().await;
    let (manifest, next) = (ManifestId::random(), ManifestId::random());
    let (making, moving) = (lease_of(&heads, manifest).await, lease_of(&heads, next).await);
    let first = heads.create(&realm(), &name("a"), manifest, &making).await.unwrap();
    assert_eq!(heads.create(&realm(), &name("a"), manifest, &making).await.unwrap(), first);
    let second = heads.commit(&first, next, &moving).await.unwrap();
    assert_eq!(heads.commit(&first, next, &moving).await.unwrap(), second);
}

pub(crate) async fn a_state_gets_a_second_name_only_while_its_first_one_has_it(place: &Place) {
    let (heads, other) = (place.open().await, place.open().await);
    let first = create(&heads, "volumes/a").await;
    let second = heads.duplicate(&first, &name("snapshots/1"), "a note").await.unwrap();
    assert_eq!((second.manifest, &*second.note, &*first.note), (first.manifest, "a note", ""));
    assert!(second.generation > first.generation);
    assert_eq!(heads.get(&realm(), &second.name).await.unwrap(), second);
    assert_eq!(heads.duplicate(&first, &second.name, "a note").await.unwrap(), second, "repeated");
    let moved = commit(&heads, &first).await.unwrap();
    let late = heads.duplicate(&first, &name("snapshots/2"), "").await;
    assert!(matches!(late, Err(HeadsError::Moved { .. })), "{late:?}");
    let taken = heads.duplicate(&moved, &second.name, "").await;
    assert!(matches!(taken, Err(HeadsError::Exists { .. })), "{taken:?}");
    other.take_over(&moved).await.unwrap();
    let fenced = heads.duplicate(&moved, &name("snapshots/2"), "").await;
    assert!(matches!(fenced, Err(HeadsError::Fenced { .. })), "{fenced:?}");
    assert!(matches!(heads.get(&realm(), &name("snapshots/2")).await, Err(HeadsError::NotFound { .. })));
    let roots = heads.roots(&realm()).await.unwrap();
    assert_eq!(roots.heads.len(), 2);
}

pub(crate) async fn a_commit_names_what_was_before_in_the_same_step_or_changes_nothing(place: &Place) {
    let (heads, other) = (place.open().await, place.open().await);
    let first = create(&heads, "volumes/a").await;
    let kept = name("snapshots/1");
    let next = ManifestId::random();
    let lease = lease_of(&heads, next).await;
    let moved = heads.commit_keeping(&first, (next, "of the head"), &lease, (&kept, "a note")).await.unwrap();
    assert_eq!((moved.manifest, moved.generation, &*moved.note), (next, first.generation, "of the head"));
    let before = heads.get(&realm(), &kept).await.unwrap();
    assert_eq!((before.manifest, &*before.note), (first.manifest, "a note"));
    assert!(before.generation > first.generation);
    let again = heads.commit_keeping(&first, (next, "of the head"), &lease, (&kept, "a note")).await.unwrap();
    assert_eq!((again, heads.get(&realm(), &kept).await.unwrap()), (moved.clone(), before.clone()), "repeated");

    let next = ManifestId::random();
    let lease = lease_of(&heads, next).await;
    let taken = heads.commit_keeping(&moved, (next, ""), &lease, (&kept, "")).await;
    assert!(matches!(&taken, Err(HeadsError::Exists { name, .. }) if *name == kept), "{taken:?}");
    let late = heads.commit_keeping(&first, (next, ""), &lease, (&name("snapshots/2"), "")).await;
    assert!(matches!(late, Err(HeadsError::Moved { .. })), "{late:?}");
    let long = "x".repeat(store::limits::HEAD_NOTE_BYTES_MAX + 1);
    let refused = heads.commit_keeping(&moved, (next, ""), &lease, (&name("snapshots/2"), &long)).await;
    assert!(matches!(refused, Err(HeadsError::Note { .. })), "{refused:?}");
    let refused = heads.commit_keeping(&moved, (next, &long), &lease, (&name("snapshots/2"), "")).await;
    assert!(matches!(refused, Err(HeadsError::Note { .. })), "{refused:?}");
    other.take_over(&moved).await.unwrap();
    let fenced = heads.commit_keeping(&moved, (next, ""), &lease, (&name("snapshots/2"), "")).await;
    assert!(matches!(fenced, Err(HeadsError::Fenced { .. })), "{fenced:?}");
    assert_eq!(heads.get(&realm(), &moved.name).await.unwrap().manifest, moved.manifest);
    assert_eq!(heads.get(&realm(), &kept).await.unwrap(), before);
    assert!(matches!(heads.get(&realm(), &name("snapshots/2")).await, Err(HeadsError::NotFound { .. })));
    // None of these has ended the lease.
    heads.protect(&lease, &[]).await.unwrap();
}

pub(crate) async fn a_commit_of_what_is_named_already_is_told_by_its_note(place: &Place) {
    let heads = place.open().await;
    let first = create(&heads, "volumes/a").await;
    let (kept, taken) = (name("snapshots/1"), create(&heads, "snapshots/taken").await.name);
    let lease = lease_of(&heads, first.manifest).await;
    let next = (first.manifest, "restored");
    let refused = heads.commit_keeping(&first, next, &lease, (&taken, "")).await;
    assert!(matches!(&refused, Err(HeadsError::Exists { name, .. }) if *name == taken), "{refused:?}");
    assert_eq!(heads.get(&realm(), &first.name).await.unwrap(), first);
    let moved = heads.commit_keeping(&first, next, &lease, (&kept, "")).await.unwrap();
    assert_eq!((moved.manifest, &*moved.note), next);
    assert_eq!(heads.commit_keeping(&first, next, &lease, (&kept, "")).await.unwrap(), moved, "repeated");
    // Later commits leave the note where it is.
    assert_eq!(commit(&heads, &moved).await.unwrap().note, "restored");
}

pub(crate) async fn what_a_head_keeps_is_named_only_while_that_head_is_what_was_seen(place: &Place) {
    let heads = place.open().await;
    let keeper = create(&heads, "checkpoint/a").await;
    let kept = ManifestId::random();
    let named = heads.name_kept(&keeper, kept, &name("volumes/a/head"), "a note").await.unwrap();
    assert_eq!((named.manifest, &*named.note), (kept, "a note"));
    assert_eq!(heads.name_kept(&keeper, kept, &named.name, "a note").await.unwrap(), named, "repeated");
    assert_eq!(heads.get(&realm(), &keeper.name).await.unwrap(), keeper);
    let taken = heads.name_kept(&keeper, ManifestId::random(), &named.name, "a note").await;
    assert!(matches!(taken, Err(HeadsError::Exists { .. })), "{taken:?}");
    let long = "x".repeat(store::limits::HEAD_NOTE_BYTES_MAX + 1);
    let refused = heads.name_kept(&keeper, kept, &name("volumes/b/head"), &long).await;
    assert!(matches!(refused, Err(HeadsError::Note { .. })), "{refused:?}");
    commit(&heads, &keeper).await.unwrap();
    let late = heads.name_kept(&keeper, kept, &name("volumes/b/head"), "").await;
    assert!(matches!(late, Err(HeadsError::Moved { .. })), "{late:?}");
    assert!(matches!(heads.get(&realm(), &name("volumes/b/head")).await, Err(HeadsError::NotFound { .. })));
}

pub(crate) async fn heads_are_listed_by_prefix_in_order_of_bytes_in_parts(place: &Place) {
    let heads = place.open().await;
    // A locale would order these otherwise, and LIKE would take '_' for any letter and 'C' for 'c'.
    let mut names = vec!["c_/b", "c_/B", "c_/a-a", "c_/aa", "c_/a.a", "c_/a/a", "C_/x", "cx/x", "c_", "d"];
    for name in &names {
        create(&heads, name).await;
    }
    names.sort_unstable();
    let listed = |found: Vec<Head>| found.iter().map(|head| head.name.to_string()).collect::<Vec<_>>();
    assert_eq!(listed(heads.list(&realm(), "", None).await.unwrap()), names);
    let below: Vec<_> = names.iter().copied().filter(|name| name.starts_with("c_/")).collect();
    assert_eq!(listed(heads.list(&realm(), "c_/", None).await.unwrap()), below);
    let after = heads.list(&realm(), "c_/", Some(&name(below[2]))).await.unwrap();
    assert_eq!(listed(after), below[3..]);
}

pub(crate) async fn a_realm_does_not_see_another(place: &Place) {
    let heads = place.open().await;
    let mine = create(&heads, "a").await;
    let other = "other".parse().unwrap();
    assert!(matches!(heads.get(&other, &mine.name).await, Err(HeadsError::NotFound { .. })));
    assert_eq!(heads.list(&other, "", None).await.unwrap(), []);
    assert_eq!(heads.roots(&other).await.unwrap(), Roots::default());
    let theirs = heads.lease(&other, "test", HOUR).await.unwrap();
    assert!(matches!(heads.open_under(&theirs, &mine.name).await, Err(HeadsError::NotFound { .. })));
    let unfound = heads.open_leased(&other, &mine.name, "test", HOUR).await;
    assert!(matches!(unfound, Err(HeadsError::NotFound { .. })));
    assert_eq!(heads.leases(&other).await.unwrap(), std::slice::from_ref(&theirs));
    // A lease of another realm keeps nothing here, so it does not serve a commit here.
    let foreign = heads.commit(&mine, ManifestId::random(), &theirs).await;
    assert!(matches!(foreign, Err(HeadsError::LeaseLost(_))), "{foreign:?}");
    assert_eq!(heads.realms().await.unwrap(), [realm(), other]);
}

pub(crate) async fn a_commit_without_its_lease_changes_nothing(place: &Place) {
    let heads = place.open().await;
    let head = create(&heads, "a").await;
    let ended = lease(&heads).await;
    heads.release(ended.clone()).await.unwrap();
    let refused = heads.commit(&head, ManifestId::random(), &ended).await;
    assert!(matches!(refused, Err(HeadsError::LeaseLost(_))), "{refused:?}");
    let refused = heads.create(&realm(), &name("b"), ManifestId::random(), &ended).await;
    assert!(matches!(refused, Err(HeadsError::LeaseLost(_))), "{refused:?}");
    let refused = heads.protect(&ended, &[Protected::Segment(SegmentId::random())]).await;
    assert!(matches!(refused, Err(HeadsError::LeaseLost(_))), "{refused:?}");
    assert!(matches!(heads.open_under(&ended, &head.name).await, Err(HeadsError::LeaseLost(_))));
    assert_eq!(heads.roots(&realm()).await.unwrap(), Roots { heads: vec![head.manifest], leased: vec![] });
    let other = lease_of(&heads, ManifestId::random()).await;
    let refused = heads.commit(&head, ManifestId::random(), &other).await;
    assert!(matches!(refused, Err(HeadsError::Unprotected { .. })), "{refused:?}");
    // A refusal ends no lease.
    assert_eq!(heads.leases(&realm()).await.unwrap(), [other]);
    assert_eq!(heads.get(&realm(), &head.name).await.unwrap(), head);
}

pub(crate) async fn an_expired_lease_ends_and_a_renewed_one_does_not(place: &Place) {
    let heads = place.open().await;
    let expired = heads.lease(&realm(), "slow", Duration::ZERO).await.unwrap();
    let mut renewed = heads.lease(&realm(), "busy", Duration::ZERO).await.unwrap();
    let segment = Protected::Segment(SegmentId::random());
    heads.protect(&expired, &[segment]).await.unwrap();
    heads.renew(&mut renewed, HOUR).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(heads.expire_leases(&realm()).await.unwrap(), 1);
    assert_eq!(heads.leases(&realm()).await.unwrap(), [renewed]);
    assert_eq!(heads.roots(&realm()).await.unwrap(), Roots::default());
    let mut lost = expired;
    assert!(matches!(heads.renew(&mut lost, HOUR).await, Err(HeadsError::LeaseLost(id)) if id == lost.id));
}

pub(crate) async fn roots_are_all_that_heads_and_leases_keep(place: &Place) {
    let heads = place.open().await;
    let (a, b) = (create(&heads, "a").await, create(&heads, "b").await);
    let writer = lease(&heads).await;
    let next = ManifestId::random();
    let items = [Protected::Manifest(next), Protected::Segment(SegmentId::random())];
    heads.protect(&writer, &items).await.unwrap();
    heads.protect(&writer, &items).await.unwrap();
    let (opened, reader) = heads.open_leased(&realm(), &a.name, "test", HOUR).await.unwrap();
    assert_eq!(opened, a);
    // Another one, that keeps both.
    let second = lease(&heads).await;
    assert_eq!(heads.open_under(&second, &a.name).await.unwrap(), a);
    assert_eq!(heads.open_under(&second, &b.name).await.unwrap(), b);
    let sorted = |mut roots: Roots| {
        roots.heads.sort();
        roots.leased.sort();
        roots
    };
    let mut leased = items.to_vec();
    leased.extend([a.manifest, a.manifest, b.manifest].map(Protected::Manifest));
    let expected = sorted(Roots { heads: vec![a.manifest, b.manifest], leased });
    assert_eq!(sorted(heads.roots(&realm()).await.unwrap()), expected);
    heads.release(second).await.unwrap();
    // The commit ends the writer's lease; the reader's still keeps what the head has left.
    heads.commit(&a, next, &writer).await.unwrap();
    let leased = vec![Protected::Manifest(a.manifest)];
    let expected = sorted(Roots { heads: vec![next, b.manifest], leased });
    assert_eq!(sorted(heads.roots(&realm()).await.unwrap()), expected);
    heads.release(reader).await.unwrap();
    assert_eq!(heads.roots(&realm()).await.unwrap().leased, []);
}

pub(crate) async fn a_database_is_made_once_however_many_open_it(place: &Place) {
    let opened = futures::future::join_all((0..8).map(|_| place.open())).await;
    let id = opened[0].store_id().await.unwrap();
    for heads in &opened {
        assert_eq!(heads.store_id().await.unwrap(), id);
    }
    let head = create(&opened[0], "a").await;
    drop(opened);
    assert_eq!(place.open().await.get(&realm(), &head.name).await.unwrap(), head);
}

pub(crate) async fn a_newer_schema_is_refused(place: &Place) {
    place.open().await;
    let pool = sqlx::AnyPool::connect(&place.url).await.unwrap();
    sqlx::query("UPDATE heads_schema SET version = 99").execute(&pool).await.unwrap();
    pool.close().await;
    let refused = Heads::open(&place.url).await;
    let newer = |refused: &HeadsError| matches!(refused, HeadsError::Database(DbError::NewerSchema { found: 99, .. }));
    assert!(refused.as_ref().is_err_and(newer), "{refused:?}");
}

pub(crate) async fn a_database_of_version_1_is_brought_up_to_date(place: &Place) {
    let head = create(&place.open().await, "a").await;
    let pool = sqlx::AnyPool::connect(&place.url).await.unwrap();
    for undo in ["DROP TABLE peers", "ALTER TABLE heads DROP COLUMN note"] {
        sqlx::query(undo).execute(&pool).await.unwrap();
    }
    sqlx::query("UPDATE heads_schema SET version = 1").execute(&pool).await.unwrap();
    pool.close().await;
    let heads = place.open().await;
    assert_eq!(heads.get(&realm(), &head.name).await.unwrap(), head);
    assert!(heads.peers(&realm(), "").await.unwrap().is_empty());
}

pub(crate) async fn peers_are_found_until_they_withdraw_or_fall_silent(place: &Place) {
    let heads = place.open().await;
    let peer = |node: &str, port: u16| PeerEntry { node: node.to_owned(), address: format!("10.0.0.1:{port}") };
    heads.announce_peer(&realm(), &peer("a", 1)).await.unwrap();
    heads.announce_peer(&realm(), &peer("b", 2)).await.unwrap();
    heads.announce_peer(&realm(), &peer("a", 3)).await.unwrap();
    heads.announce_peer(&"other".parse().unwrap(), &peer("c", 4)).await.unwrap();
    assert_eq!(heads.peers(&realm(), "b").await.unwrap(), [peer("a", 3)], "the newest address, not one's own realm's");
    assert_eq!(heads.peers(&realm(), "").await.unwrap().len(), 2);
    heads.withdraw_peer(&realm(), "a").await.unwrap();
    assert_eq!(heads.peers(&realm(), "").await.unwrap(), [peer("b", 2)]);
    let pool = sqlx::AnyPool::connect(&place.url).await.unwrap();
    sqlx::query("UPDATE peers SET seen_s = seen_s - 40").execute(&pool).await.unwrap();
    assert!(heads.peers(&realm(), "").await.unwrap().is_empty(), "silent for 40 s");
    sqlx::query("UPDATE peers SET seen_s = seen_s - 600").execute(&pool).await.unwrap();
    heads.announce_peer(&realm(), &peer("d", 5)).await.unwrap();
    let rows = sqlx::query("SELECT node FROM peers").fetch_all(&pool).await.unwrap();
    assert_eq!(rows.len(), 1, "rows of the silent are removed");
}
