//! File work in sandboxes: a node in this process, with a keeper and sandboxes of its own, and programs inside that interfere.

mod attacks;
mod events;
mod place;
mod stops;
mod work;

use anyhow::Result;
use place::Place;
use testkit::runner::Case;

/// The work of a case with a node.
type Body = fn(&Place) -> Result<()>;

/// All of them.
const CASES: [(&str, Body); 16] = [
    ("every_operation_works_on_every_filesystem", work::every_operation),
    ("volumes_are_worked_on_alike", work::volumes),
    ("64_mib_go_up_and_down_in_little_memory", work::streams),
    ("special_files_answer_within_a_second", work::special_files),
    ("a_full_disk_is_said_and_leaves_nothing", work::full_disk),
    ("a_hand_has_no_rights_and_cannot_be_seen", work::rights),
    ("other_users_and_sandboxes_are_refused", work::refusals),
    ("swapped_links_lead_nowhere_else", attacks::swapped_links),
    ("a_killed_hand_fails_its_own_requests_only", attacks::killed),
    ("a_broken_upload_leaves_nothing", attacks::broken_upload),
    ("events_of_programs_arrive", events::of_programs),
    ("a_pause_keeps_what_was_reported_as_written", stops::pause),
    ("forks_have_whole_files_only", stops::forks),
    ("a_frozen_sandbox_stays_readable", stops::frozen),
    ("hands_that_come_and_go_leave_no_descriptor", stops::comings_and_goings),
    ("removal_and_the_end_of_the_node_leave_nothing", stops::removal),
];

pub(crate) fn cases() -> Vec<Case> {
    CASES.iter().map(|(name, body)| place::case(format!("hands::{name}"), *body)).collect()
}
