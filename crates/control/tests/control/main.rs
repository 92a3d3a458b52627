//! The control plane on a real SQLite and a real PostgreSQL: the same cases on both.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod isolation;
mod keys;
mod lists;
mod place;
// The server that the store's tests start.
#[path = "../../../store/tests/heads/postgres.rs"]
mod postgres;
mod schedule;
mod secrets;
mod servers;
mod starts;
mod states;
mod templates;
mod volumes;

macro_rules! on_both {
    ($module:ident: $($case:ident)*) => {
        mod $module {
            mod sqlite {
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    crate::$module::$case(&crate::place::Place::sqlite()).await;
                })*
            }

            mod postgres {
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    crate::$module::$case(&crate::place::Place::postgres().await).await;
                })*
            }
        }
    };
}

mod on {
    on_both! { keys:
        a_key_is_shown_once_and_kept_as_a_hash
        a_revoked_key_is_refused_at_once_here_and_soon_elsewhere
        a_reading_key_may_not_write
        the_use_of_a_key_is_noted_seldom
        a_team_revokes_only_its_own_keys
    }

    on_both! { starts:
        a_sandbox_is_found_as_it_was_asked_for
        a_team_gets_no_more_than_its_quota
        a_reservation_of_a_dead_server_ends
        one_key_gives_one_sandbox
        concurrent_creates_with_one_key_make_one_sandbox
        a_failed_start_leaves_its_key_free
        a_key_used_for_another_request_is_a_conflict
        too_much_metadata_is_refused
    }

    on_both! { lists:
        metadata_of_any_characters_is_matched_exactly
        lists_are_filtered_by_state_template_and_start
        forks_are_known_as_long_as_one_descends_from_them
        a_thousand_sandboxes_are_paged_while_others_come_and_go
        a_token_of_another_order_is_refused
    }

    on_both! { states:
        a_connect_extends_and_a_timeout_is_exact
        a_paused_sandbox_has_no_end_until_it_is_resumed
        only_one_of_two_servers_resumes
        a_kill_takes_over_what_is_under_way
        tokens_survive_a_restart_and_differ_between_sandboxes
        a_server_that_starts_learns_what_its_node_has
        events_are_kept_within_bounds
    }

    on_both! { schedule:
        a_sandbox_is_killed_at_its_end_and_not_before
        a_refused_pause_is_retried_every_minute_and_never_kills
        what_fell_due_while_no_server_ran_is_done_at_the_next_start
        two_servers_end_each_its_own_sandboxes
        an_extended_sandbox_is_not_ended
        work_that_a_server_began_and_did_not_end_is_taken_up
        a_kill_that_fails_is_finished_later
        a_claim_is_renewed_while_its_transition_lives
        a_running_scheduler_ends_a_sandbox_whose_timeout_is_set_to_zero
    }

    on_both! { templates:
        a_template_is_found_by_name_tag_and_id_once_it_is_ready
        a_failed_build_leaves_the_one_before
        tags_are_assigned_listed_and_removed
        a_name_of_another_team_is_forbidden_and_a_missing_one_not_found
        templates_of_the_server_are_found_by_plain_names
        a_snapshot_is_found_by_either_of_its_names
        a_tag_of_several_is_deleted_alone
        the_oldest_build_without_a_tag_makes_room
        templates_and_snapshots_are_paged
    }

    on_both! { volumes:
        a_volume_has_one_name_in_its_team
        a_volume_of_the_node_becomes_a_teams
        a_volume_is_opened_by_its_token_alone
    }

    on_both! { servers:
        a_server_leaves_what_other_nodes_have_alone
        what_is_paused_goes_on_at_any_server
        a_removed_server_takes_along_what_ran_there
        a_start_that_was_broken_off_is_found_by_its_server
    }

    on_both! { secrets:
        a_value_is_sealed_and_versions_are_counted
        secrets_are_named_once_paged_and_of_one_team
    }

    on_both! { isolation:
        two_teams_see_nothing_of_each_other
    }
}
