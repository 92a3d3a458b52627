//! Real mounts, served by real processes, which are killed.
//!
//! No harness: this program is also guardian and worker, which begin with one thread. The tests need root, and are in a mount namespace
//! of their own.

mod damage;
mod files;
mod kills;
mod lifecycle;
mod model;
mod owners;
mod place;

use std::{
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
    time::Instant,
};

use anyhow::{Context, Result, bail};

type Case = (&'static str, fn() -> Result<()>);

const CASES: &[Case] = &[
    ("http_and_a_mount_show_the_same", files::http_and_a_mount_show_the_same),
    (
        "files_have_owners_and_are_replaced_only_if_they_may_be",
        owners::files_have_owners_and_are_replaced_only_if_they_may_be,
    ),
    ("of_two_uploads_of_a_new_file_one_is_refused", owners::of_two_uploads_of_a_new_file_one_is_refused),
    ("directories_are_listed_with_what_is_in_them", owners::directories_are_listed_with_what_is_in_them),
    ("paths_stay_in_the_volume", files::paths_stay_in_the_volume),
    ("an_upload_that_breaks_off_leaves_nothing", files::an_upload_that_breaks_off_leaves_nothing),
    ("a_refusal_is_heard_before_all_is_sent", files::a_refusal_is_heard_before_all_is_sent),
    ("ranges_and_tags", files::ranges_and_tags),
    ("garbage_is_refused_and_harms_nobody", files::garbage_is_refused_and_harms_nobody),
    ("fifty_at_once", files::fifty_at_once),
    ("snapshots_forks_and_restores", lifecycle::snapshots_forks_and_restores),
    ("what_a_volume_holds_goes_out_and_in", lifecycle::what_a_volume_holds_goes_out_and_in),
    ("what_nobody_uses_is_closed_and_the_processes_end", lifecycle::what_nobody_uses_is_closed_and_the_processes_end),
    ("whoever_is_asked_to_end_commits_first", lifecycle::whoever_is_asked_to_end_commits_first),
    ("what_is_held_is_not_taken_away", lifecycle::what_is_held_is_not_taken_away),
    ("slow_clients_of_one_volume_hold_up_no_other", lifecycle::slow_clients_of_one_volume_hold_up_no_other),
    ("any_number_of_holders_is_told", lifecycle::any_number_of_holders_is_told),
    ("what_was_removed_for_good_is_not_made_later", lifecycle::what_was_removed_for_good_is_not_made_later),
    ("a_store_that_is_away_is_told_and_nothing_is_lost", lifecycle::a_store_that_is_away_is_told_and_nothing_is_lost),
    ("a_takeover_is_noticed_where_nobody_writes", lifecycle::a_takeover_is_noticed_where_nobody_writes),
    ("a_volume_that_was_taken_over_says_so", lifecycle::a_volume_that_was_taken_over_says_so),
    ("damage_is_seen_where_it_is_and_the_rest_is_read", damage::damage_is_seen_where_it_is_and_the_rest_is_read),
    ("either_process_may_be_killed_at_any_moment", kills::either_process_may_be_killed_at_any_moment),
    ("a_worker_may_die_at_each_of_its_places", kills::a_worker_may_die_at_each_of_its_places),
    ("a_mount_and_a_client_do_what_a_local_directory_does", model::a_mount_and_a_client_do_what_a_local_directory_does),
    ("mounts_outlive_a_worker_that_finds_no_store", kills::mounts_outlive_a_worker_that_finds_no_store),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["family", folder, options, role] => place::be_one_of_the_family(folder, options, role),
        ["in-namespace", filter] => run_all(filter),
        [filter] if !filter.starts_with('-') => enter_namespace(filter),
        _ => enter_namespace(""),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::FAILURE
        }
    }
}

fn enter_namespace(filter: &str) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can mount");
        return Ok(());
    }
    let program = std::env::current_exe()?;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]).arg(program).args(["in-namespace", filter]);
    // Little is written here: files of the log are to be used again all the same.
    command.env("PANDO_SPARE_BYTES", "65536");
    bail!("cannot run unshare: {}", command.exec())
}

fn run_all(filter: &str) -> Result<()> {
    for (name, case) in CASES.iter().filter(|(name, _)| name.contains(filter)) {
        let start = Instant::now();
        case().with_context(|| format!("{name} failed"))?;
        println!("ok {name} ({:.1} s)", start.elapsed().as_secs_f32());
    }
    Ok(())
}
