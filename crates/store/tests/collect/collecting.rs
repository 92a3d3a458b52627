//! What goes and what stays.

use std::time::{Duration, SystemTime};

use store::{
    gc::{self, GcError, GcReport, Mode, collect},
    heads::{Heads, HeadsError, Protected},
    id::{ManifestId, SegmentId},
};

use crate::place::{HOUR, Place, key_of, realm};

async fn collected(place: &Place, mode: Mode) -> GcReport {
    collect(&place.heads, &place.store, mode, Duration::ZERO).await.unwrap()
}

fn keys(items: &[Protected]) -> Vec<String> {
    let mut keys: Vec<_> = items.iter().map(|item| key_of(*item)).collect();
    keys.sort();
    keys
}

#[tokio::test]
async fn what_heads_and_leases_keep_stays_and_the_rest_goes() {
    let place = Place::new().await;
    let segments = [place.segment("base").await, place.segment("head").await, place.segment("leased").await];
    let base = place.manifest(None, &segments[..1]).await;
    let parent = place.manifest(Some(base), &[]).await;
    let top = place.manifest(Some(parent), &segments[1..2]).await;
    place.head("a", top).await;
    let lease = place.lease().await;
    let (unwritten, unwritten_segment) = (ManifestId::random(), SegmentId::random());
    let leased =
        [Protected::Segment(segments[2]), Protected::Manifest(unwritten), Protected::Segment(unwritten_segment)];
    place.heads.protect(&lease, &leased).await.unwrap();
    let orphan_segment = place.segment("nobody's").await;
    let orphan = place.manifest(Some(base), &[orphan_segment, segments[0]]).await;
    let garbage = [Protected::Segment(orphan_segment), Protected::Manifest(orphan)];

    let kept = [base, parent, top].map(Protected::Manifest).into_iter().chain(segments.map(Protected::Segment));
    let kept: Vec<_> = kept.collect();
    let mut dry = collected(&place, Mode::DryRun).await;
    assert!(kept.iter().chain(&garbage).all(|item| place.has(*item)));
    let mut report = collected(&place, Mode::Remove).await;
    assert_eq!(report, dry);
    assert!(kept.iter().all(|item| place.has(*item)));
    assert!(!garbage.iter().any(|item| place.has(*item)));
    assert_eq!((report.kept.objects, report.garbage.objects, report.young.objects), (6, 2, 0));
    assert!(report.garbage.bytes > 200 && report.kept.bytes > 600, "{report:?}");
    for keys_found in [&mut dry.garbage_keys, &mut report.garbage_keys] {
        keys_found.sort();
        assert_eq!(*keys_found, keys(&garbage));
    }
    place.heads.release(lease).await.unwrap();
    assert_eq!(collected(&place, Mode::Remove).await.garbage_keys, keys(&[Protected::Segment(segments[2])]));
    assert_eq!(collected(&place, Mode::Remove).await.garbage.objects, 0);
}

#[tokio::test]
async fn the_young_are_spared_by_the_clock_of_the_store() {
    let place = Place::new().await;
    let (old, young, future) = (place.segment("1").await, place.segment("2").await, place.segment("3").await);
    let now = SystemTime::now();
    place.date(&key_of(Protected::Segment(old)), now - 2 * HOUR);
    place.date(&key_of(Protected::Segment(future)), now + 48 * HOUR);
    let report = collect(&place.heads, &place.store, Mode::Remove, HOUR).await.unwrap();
    assert_eq!((report.garbage_keys, report.young.objects), (keys(&[Protected::Segment(old)]), 2));
    assert!(place.has(Protected::Segment(young)) && place.has(Protected::Segment(future)));
}

#[tokio::test]
async fn nothing_goes_while_a_manifest_that_a_head_needs_cannot_be_read() {
    for missing in [true, false] {
        let place = Place::new().await;
        let base = place.manifest(None, &[]).await;
        place.head("a", place.manifest(Some(base), &[]).await).await;
        let orphan = Protected::Segment(place.segment("nobody's").await);
        let key = key_of(Protected::Manifest(base));
        if missing {
            std::fs::remove_file(place.file(&key)).unwrap()
        } else {
            place.damage(&key)
        }
        let refused = collect(&place.heads, &place.store, Mode::Remove, Duration::ZERO).await;
        assert!(matches!(&refused, Err(GcError::Manifest { manifest, .. }) if *manifest == base), "{refused:?}");
        assert!(place.has(orphan));
    }
}

#[tokio::test]
async fn what_a_manifest_includes_is_kept_with_all_that_it_needs() {
    let place = Place::new().await;
    let (inner, other, base) = (place.segment("1").await, place.segment("2").await, place.segment("3").await);
    let parent = place.manifest(None, &[base]).await;
    let included = [place.manifest(Some(parent), &[inner]).await, place.manifest(None, &[other]).await];
    let head = place.head("a", place.manifest_including(&included).await).await;
    let needed = [
        Protected::Segment(inner),
        Protected::Segment(other),
        Protected::Segment(base),
        Protected::Manifest(parent),
        Protected::Manifest(included[0]),
        Protected::Manifest(included[1]),
    ];
    let report = collect(&place.heads, &place.store, Mode::Remove, Duration::ZERO).await.unwrap();
    assert_eq!((report.garbage.objects, report.kept.objects), (0, 7), "{report:?}");
    assert!(needed.into_iter().all(|item| place.has(item)));
    // What is taken against it needs its own segments, not what it includes.
    let child = place.head("child", place.manifest(Some(head.manifest), &[]).await).await;
    collect(&place.heads, &place.store, Mode::Remove, Duration::ZERO).await.unwrap();
    assert!(needed.into_iter().all(|item| place.has(item)), "by its own name it is whole");
    // One of them has a name of its own by then.
    place.head("b", included[1]).await;
    place.heads.remove(&head).await.unwrap();
    collect(&place.heads, &place.store, Mode::Remove, Duration::ZERO).await.unwrap();
    let left: Vec<bool> = needed.into_iter().map(|item| place.has(item)).collect();
    assert_eq!(left, [false, true, false, false, false, true]);
    assert!(place.has(Protected::Manifest(head.manifest)), "the child's parent");
    place.heads.remove(&child).await.unwrap();
    collect(&place.heads, &place.store, Mode::Remove, Duration::ZERO).await.unwrap();
    assert!(!place.has(Protected::Manifest(head.manifest)));
}

#[tokio::test]
async fn nothing_goes_while_an_included_manifest_cannot_be_read() {
    let place = Place::new().await;
    let included = place.manifest(None, &[]).await;
    place.head("a", place.manifest_including(&[included]).await).await;
    let orphan = Protected::Segment(place.segment("nobody's").await);
    place.damage(&key_of(Protected::Manifest(included)));
    let refused = collect(&place.heads, &place.store, Mode::Remove, Duration::ZERO).await;
    assert!(matches!(&refused, Err(GcError::Manifest { manifest, .. }) if *manifest == included), "{refused:?}");
    assert!(place.has(orphan));
}

#[tokio::test]
async fn the_heads_of_another_database_never_judge() {
    let place = Place::new().await;
    let orphan = Protected::Segment(place.segment("not theirs").await);
    let directory = tempfile::tempdir().unwrap();
    let strangers = Heads::open_file(&directory.path().join("heads.db")).await.unwrap();
    let refused = collect(&strangers, &place.store, Mode::Remove, Duration::ZERO).await;
    assert!(matches!(refused, Err(GcError::OtherStore { .. })), "{refused:?}");
    let refused = gc::bind(&strangers, place.store.objects()).await;
    assert!(matches!(refused, Err(GcError::OtherStore { .. })), "{refused:?}");
    gc::bind(&place.heads, place.store.objects()).await.unwrap();
    place.store.objects().delete("store-id").await.unwrap();
    let refused = collect(&place.heads, &place.store, Mode::Remove, Duration::ZERO).await;
    assert!(matches!(refused, Err(GcError::Unbound)), "{refused:?}");
    assert!(place.has(orphan));
}

#[tokio::test]
async fn a_writer_that_was_too_slow_loses_its_work_and_nothing_else() {
    let place = Place::new().await;
    let head = place.head("a", place.manifest(None, &[]).await).await;
    let slow = place.heads.lease(&realm(), "slow", Duration::ZERO).await.unwrap();
    let (segment, next) = (place.segment("slow").await, ManifestId::random());
    place.heads.protect(&slow, &[Protected::Segment(segment), Protected::Manifest(next)]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    let dry = collected(&place, Mode::DryRun).await;
    assert_eq!((dry.leases_ended, dry.garbage.objects), (0, 0));
    let report = collected(&place, Mode::Remove).await;
    assert_eq!((report.leases_ended, report.garbage_keys), (1, keys(&[Protected::Segment(segment)])));
    let refused = place.heads.commit(&head, next, &slow).await;
    assert!(matches!(refused, Err(HeadsError::LeaseLost(_))), "{refused:?}");
    assert_eq!(place.heads.get(&realm(), &head.name).await.unwrap(), head);
}

#[tokio::test]
async fn keys_and_what_is_unknown_never_go_and_stale_probes_do() {
    let place = Place::new().await;
    place.segment("makes a key").await;
    let spared = ["realms/default/segments/0.tmp", "realms/default/later/x", "realms/other/segments/x", "elsewhere"];
    for key in spared {
        place.put(key).await;
    }
    for probe in ["stale", "young"] {
        place.put(&format!("realms/default/gc/{probe}")).await;
    }
    place.date("realms/default/gc/stale", SystemTime::now() - 2 * HOUR);
    let report = collected(&place, Mode::Remove).await;
    assert_eq!((report.garbage.objects, report.kept.objects), (2, 0));
    assert!(!place.file("realms/default/gc/stale").exists() && place.file("realms/default/gc/young").exists());
    assert!(spared.iter().all(|key| place.file(key).exists()));
    let stats = gc::stats(&place.heads, &place.store).await.unwrap();
    assert_eq!((stats.keys.objects, stats.unknown.objects, stats.segments.objects), (1, 2, 0));
}

#[tokio::test]
async fn stats_count_what_is_there() {
    let place = Place::new().await;
    let segment = place.segment("kept").await;
    place.head("a", place.manifest(None, &[segment]).await).await;
    place.segment("garbage").await;
    let lease = place.lease().await;
    let stats = gc::stats(&place.heads, &place.store).await.unwrap();
    assert_eq!((stats.heads, stats.leases, stats.manifests.objects, stats.segments.objects), (1, 1, 1, 2));
    assert_eq!((stats.kept.objects, stats.keys.objects, stats.unknown.objects), (2, 1, 0));
    assert!(
        stats.kept.bytes > stats.manifests.bytes && stats.kept.bytes < stats.manifests.bytes + stats.segments.bytes
    );
    place.heads.release(lease).await.unwrap();
}
