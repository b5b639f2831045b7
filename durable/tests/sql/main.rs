//! Timers in SQL, for every client of PostgreSQL: the functions that the migration makes, what is refused, roles, a schema of
//! one's choice, the ways of telling workers, the turns of several workers, and an upgrade while workers of the version before
//! are at work.

#[path = "../../../tests/common/mod.rs"]
mod common;
#[path = "../common/databases.rs"]
mod databases;
mod drain;
mod functions;
mod notices;
mod roles;
#[path = "../common/server.rs"]
mod server;
mod turns;
mod upgrade;

use databases::Database;

type Check = (&'static str, fn(&Database<'_>));

const CHECKS: &[Check] = &[
    (
        "an_order_and_its_timer_are_one_transaction",
        functions::an_order_and_its_timer_are_one_transaction,
    ),
    ("an_async_client_schedules", functions::an_async_client_schedules),
    ("psql_schedules", functions::psql_schedules),
    ("python_schedules", functions::python_schedules),
    ("many_are_scheduled_at_once", functions::many_are_scheduled_at_once),
    ("many_callers_do_not_wait_in_a_circle", functions::many_callers_do_not_wait_in_a_circle),
    ("functions_see_all_states", functions::functions_see_all_states),
    ("what_cannot_be_is_refused_with_advice", functions::what_cannot_be_is_refused_with_advice),
    ("times_are_kept_in_range", functions::times_are_kept_in_range),
    (
        "calls_are_quick_after_the_table_has_grown",
        functions::calls_are_quick_after_the_table_has_grown,
    ),
    ("a_schema_of_ones_choice", roles::a_schema_of_ones_choice),
    (
        "a_schema_that_was_renamed_is_noticed_and_mended",
        roles::a_schema_that_was_renamed_is_noticed_and_mended,
    ),
    ("roles_have_what_they_need_and_no_more", roles::roles_have_what_they_need_and_no_more),
    (
        "workers_of_both_versions_live_through_an_upgrade",
        upgrade::workers_of_both_versions_live_through_an_upgrade,
    ),
    (
        "workers_of_version_6_live_through_an_upgrade",
        upgrade::workers_of_version_6_live_through_an_upgrade,
    ),
    ("a_drain_does_not_walk_over_what_is_done", drain::a_drain_does_not_walk_over_what_is_done),
    (
        "a_burst_into_a_table_that_was_empty_is_quick",
        drain::a_burst_into_a_table_that_was_empty_is_quick,
    ),
    (
        "a_backlog_that_is_not_counted_is_not_sorted",
        drain::a_backlog_that_is_not_counted_is_not_sorted,
    ),
    ("what_commits_late_is_not_missed", drain::what_commits_late_is_not_missed),
    (
        "what_is_moved_below_the_floor_comes_at_once",
        drain::what_is_moved_below_the_floor_comes_at_once,
    ),
    (
        "what_was_held_below_the_floor_is_not_missed",
        drain::what_was_held_below_the_floor_is_not_missed,
    ),
    ("a_floor_leaves_out_what_is_below_it_alone", drain::a_floor_leaves_out_what_is_below_it_alone),
    ("what_was_locked_for_long_comes_soon", drain::what_was_locked_for_long_comes_soon),
    ("no_statement_reads_the_whole_table", drain::no_statement_reads_the_whole_table),
    ("two_phases_work_without_notices", notices::two_phases_work_without_notices),
    ("another_way_than_the_three_is_refused", notices::another_way_than_the_three_is_refused),
    ("the_way_may_change_at_any_time", notices::the_way_may_change_at_any_time),
    ("many_commits_are_told_once", notices::many_commits_are_told_once),
    (
        "a_long_transaction_tells_although_the_workers_were_awake",
        notices::a_long_transaction_tells_although_the_workers_were_awake,
    ),
    ("what_a_killed_process_leaves_runs_at_once", turns::what_a_killed_process_leaves_runs_at_once),
    ("all_work_off_what_is_too_much_for_one", turns::all_work_off_what_is_too_much_for_one),
];

/// On a machine that is busy, turns are missed, and there are more claims than these count on.
const ALONE: &[Check] = &[
    ("eight_processes_claim_as_often_as_one", turns::eight_processes_claim_as_often_as_one),
    ("one_that_hangs_costs_some_milliseconds", turns::one_that_hangs_costs_some_milliseconds),
];

/// Does nothing, unless it was started by one of the others.
#[test]
fn worker_process() {
    turns::be_a_worker();
}

#[test]
fn with_postgresql() {
    databases::on_a_server("sql", CHECKS, ALONE);
}
