//! What verification reads, and what it finds.

use store::{
    heads::Protected,
    id::SegmentId,
    object::FaultPlan,
    tree::Batch,
    verify::{Finding, Problem, VerifyReport, verify},
};

use crate::place::{Place, key_of, name};

async fn verified(place: &Place) -> VerifyReport {
    let (heads, store) = (place.heads.clone(), place.store.clone());
    let report = tokio::spawn(async move { verify(&heads, &store).await }).await.unwrap().unwrap();
    assert_eq!(place.heads.leases(&crate::place::realm()).await.unwrap(), []);
    report
}

fn harmed(finding: &Finding) -> Vec<&str> {
    let mut names: Vec<_> = finding.heads.iter().map(|name| name.as_str()).collect();
    names.sort_unstable();
    names
}

fn batch() -> Batch {
    (0..3_000u32).map(|number| (number.to_be_bytes().to_vec().into(), Some("value".into()))).collect()
}

/// Two heads share a base with a tree; one has a segment of its own. A third stands alone.
async fn furnished() -> (Place, SegmentId, SegmentId) {
    let place = Place::new().await;
    let (base, tree) = place.manifest_with_tree(&batch()).await;
    let own = place.segment("own").await;
    place.head("a", place.manifest(Some(base), &[own]).await).await;
    place.head("b", place.manifest(Some(base), &[]).await).await;
    place.head("c", place.manifest(None, &[place.segment("alone").await]).await).await;
    place.segment("garbage is not looked at").await;
    (place, tree, own)
}

#[tokio::test]
async fn all_that_heads_need_is_read_once() {
    let (place, ..) = furnished().await;
    let report = verified(&place).await;
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!((report.heads, report.manifests, report.segments), (3, 4, 3));
    assert!(report.nodes >= 4 && report.chunks == report.nodes + 2, "{report:?}");
}

#[tokio::test]
async fn what_is_included_is_read_and_its_damage_harms_those_who_include_it() {
    let place = Place::new().await;
    let segment = place.segment("of a volume").await;
    let volume = place.manifest(None, &[segment]).await;
    place.head("checkpoint", place.manifest_including(&[volume]).await).await;
    place.head("other", place.manifest_including(&[volume]).await).await;
    place.head("alone", place.manifest(None, &[]).await).await;
    let report = verified(&place).await;
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!((report.heads, report.manifests, report.segments), (3, 4, 1));
    place.damage(&key_of(Protected::Segment(segment)));
    let report = verified(&place).await;
    let [finding] = &report.findings[..] else { panic!("{:?}", report.findings) };
    assert!(matches!(finding.problem, Problem::Segment(_)), "{finding:?}");
    assert_eq!(harmed(finding), ["checkpoint", "other"]);
}

#[tokio::test]
async fn a_damaged_segment_is_found_with_the_heads_it_harms() {
    let (place, _, own) = furnished().await;
    place.damage(&key_of(Protected::Segment(own)));
    let report = verified(&place).await;
    let [finding] = &report.findings[..] else { panic!("{:?}", report.findings) };
    assert!(matches!(finding.problem, Problem::Segment(_)) && harmed(finding) == ["a"], "{finding:?}");
    assert!(!finding.problem.is_out_of_reach());
    assert_eq!((report.heads, report.segments), (3, 3));
}

#[tokio::test]
async fn a_missing_segment_is_found_by_its_tree_too() {
    let (place, tree, _) = furnished().await;
    std::fs::remove_file(place.file(&key_of(Protected::Segment(tree)))).unwrap();
    let report = verified(&place).await;
    assert_eq!(report.findings.len(), 2, "{:?}", report.findings);
    assert!(report.findings.iter().all(|finding| harmed(finding) == ["a", "b"] && !finding.problem.is_out_of_reach()));
    assert!(report.findings.iter().any(|finding| matches!(finding.problem, Problem::Tree { index: 0, .. })));
    assert!(report.findings.iter().any(|finding| matches!(finding.problem, Problem::Segment(_))));
}

#[tokio::test]
async fn a_damaged_manifest_is_found_and_the_rest_is_read() {
    let (place, ..) = furnished().await;
    let head = place.heads.get(&crate::place::realm(), &name("b")).await.unwrap();
    place.damage(&key_of(Protected::Manifest(head.manifest)));
    let report = verified(&place).await;
    let [finding] = &report.findings[..] else { panic!("{:?}", report.findings) };
    assert!(matches!(finding.problem, Problem::Manifest(_)) && harmed(finding) == ["b"], "{finding:?}");
    assert_eq!((report.manifests, report.segments), (4, 3));
}

#[tokio::test]
async fn what_is_only_out_of_reach_is_not_called_damaged() {
    let place = Place::new().await;
    place.head("a", place.manifest(None, &[place.segment("own").await]).await).await;
    let away = place.faulty_store(FaultPlan { outage: true, ..FaultPlan::default() });
    let report = verify(&place.heads, &away).await.unwrap();
    let [finding] = &report.findings[..] else { panic!("{:?}", report.findings) };
    assert!(finding.problem.is_out_of_reach() && harmed(finding) == ["a"], "{finding:?}");
}
