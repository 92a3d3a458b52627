//! Heads and leases on a real SQLite and a real PostgreSQL: the same cases on both.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cases;
mod place;
mod postgres;
mod races;

macro_rules! on_both {
    ($module:ident: $($case:ident)*) => {
        mod $module {
            mod sqlite {
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
                async fn $case() {
                    crate::$module::$case(&crate::place::Place::sqlite()).await;
                })*
            }

            mod postgres {
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
                async fn $case() {
                    crate::$module::$case(&crate::place::Place::postgres().await).await;
                })*
            }
        }
    };
}

mod on {
    on_both! { cases:
        a_head_moves_from_what_the_writer_saw_and_from_nothing_else
        a_name_is_removed_whatever_it_names_by_now
        a_writer_that_was_taken_over_is_fenced_off
        a_name_made_again_fences_the_writers_of_its_first_life
        of_several_who_take_over_one_wins
        a_commit_or_create_may_be_repeated_when_its_answer_was_lost
        a_state_gets_a_second_name_only_while_its_first_one_has_it
        a_commit_names_what_was_before_in_the_same_step_or_changes_nothing
        a_commit_of_what_is_named_already_is_told_by_its_note
        what_a_head_keeps_is_named_only_while_that_head_is_what_was_seen
        heads_are_listed_by_prefix_in_order_of_bytes_in_parts
        a_realm_does_not_see_another
        a_commit_without_its_lease_changes_nothing
        an_expired_lease_ends_and_a_renewed_one_does_not
        roots_are_all_that_heads_and_leases_keep
        a_database_is_made_once_however_many_open_it
        a_newer_schema_is_refused
        a_database_of_version_1_is_brought_up_to_date
        peers_are_found_until_they_withdraw_or_fall_silent
    }

    on_both! { races:
        many_commits_are_raced_for_and_each_has_one_winner
        creates_and_removals_are_raced_for_and_each_has_one_winner
        what_is_opened_under_a_lease_is_never_missing_from_the_roots
    }
}

#[tokio::test]
async fn a_database_file_may_have_any_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("heads ?a=b#c %20 \u{e4}.db");
    let heads = store::heads::Heads::open_file(&path).await.unwrap();
    let head = place::create(&heads, "a").await;
    drop(heads);
    assert!(path.exists());
    let again = store::heads::Heads::open_file(&path).await.unwrap();
    assert_eq!(again.get(&place::realm(), &head.name).await.unwrap(), head);
}
