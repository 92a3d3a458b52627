//! The cases.

mod archive;
mod files;
mod ids;
mod isolation;
mod lifecycle;
mod mounts;
mod programs;

use super::host::Host;

type Case = fn(&Host);

pub(crate) const ALL: &[(&str, Case)] = &[
    ("created_and_destroyed_leaves_nothing", lifecycle::created_and_destroyed),
    ("a_failed_creation_leaves_nothing", lifecycle::failed_creation),
    ("destroy_kills_programs_and_frozen_ones", lifecycle::destroy_with_programs),
    ("an_adopted_sandbox_works_and_a_dead_one_is_none", lifecycle::adopt),
    ("a_killed_creator_is_swept_up_at_any_moment", lifecycle::sweep),
    ("limits_hold_from_the_first_instruction", lifecycle::limits),
    ("a_killed_launcher_is_replaced", lifecycle::launcher_killed),
    ("all_sandboxes_together_have_a_limit_of_tasks", lifecycle::tasks_together),
    ("programs_are_killed_before_the_host_when_memory_is_short", lifecycle::memory_is_short),
    ("freeze_stops_and_thaw_goes_on", lifecycle::freeze),
    ("times", lifecycle::times),
    ("namespaces_are_its_own", isolation::namespaces),
    ("host_secrets_and_state_are_hidden", isolation::hidden),
    ("kernel_files_are_read_only_and_masked", isolation::kernel_files),
    ("nothing_reaches_the_host", isolation::host_is_out_of_reach),
    ("a_program_has_no_privilege", isolation::privileges),
    ("pid_one_is_out_of_reach", isolation::pid_one),
    ("files_have_the_ids_inside_that_they_have_on_the_disk", ids::on_the_disk),
    ("counts_per_user_are_a_sandboxs_own", ids::counts_per_user),
    ("root_does_what_a_package_manager_does", ids::root),
    ("root_does_not_get_out", ids::escapes),
    ("where_root_is_not_wanted_nothing_is_gained", ids::program_only),
    ("a_sandbox_with_the_hosts_users_has_no_root", ids::of_before),
    ("a_root_that_stops_commands_holds_up_no_other_start", ids::stops),
    ("a_changed_root_is_not_forked", ids::changed_root),
    ("set_user_id_bits_and_file_capabilities_count", ids::set_user_id),
    ("a_range_of_ids_is_used_by_one_sandbox_at_a_time", ids::ranges),
    ("what_takes_from_all_of_the_host_is_closed", isolation::closed_doors),
    ("terminals_are_bounded_per_sandbox", isolation::terminals),
    ("facts_of_the_host_are_hidden", isolation::host_facts),
    ("device_files_of_an_image_cannot_be_opened", isolation::devices_of_images),
    ("orphans_are_reaped", programs::orphans),
    ("errors_name_the_command", programs::errors),
    ("a_terminal_is_controlled", programs::terminal),
    ("dial_reaches_a_server_inside", programs::dial),
    ("devices_work", programs::devices),
    ("low_descriptors_as_streams", programs::low_descriptors),
    ("upper_is_copied_exactly", files::snapshot),
    ("an_archive_carries_every_kind_of_entry", archive::every_kind),
    ("an_archive_carries_what_overlay_made", archive::overlay),
    ("a_hostile_tree_is_removed", files::hostile_tree),
    ("a_tarball_is_an_image", files::tarball),
    ("a_mount_attached_in_two_sandboxes_is_one_filesystem", mounts::shared),
    ("mount_points_are_made_with_their_owners", mounts::made),
    ("a_hostile_tree_diverts_no_mount", mounts::hostile),
    ("times_of_mounts", mounts::times),
    ("a_read_only_rootfs_is_mounted_nowhere", files::detached),
    ("a_root_has_as_many_layers_as_the_kernel_stacks", files::many_layers),
];
