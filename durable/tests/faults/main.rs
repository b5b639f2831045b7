//! Faults. Worker processes are killed, halted and aborted in each phase of their work; servers crash and
//! hang, and replicas take their place; connections are cut and held up; disks are full; clocks jump (STORE-1 to STORE-7, ATTEMPT-1 to ATTEMPT-5, LEASE-1 to LEASE-6, PG-1 to PG-3).
//!
//! In all of that nothing is lost and nothing is early. What a handler does in the timers' transaction exists exactly
//! once. A plain handler runs twice only if a fault came between its start and the write of its outcome.
//!
//! Worker processes are this program, started again as the test `worker_process`, which does nothing by itself.
//! `TICKWHEEL_STORM=10` makes the storms ten times as long, `TICKWHEEL_SEED=n` repeats the kills of one. The ordeal does all of it at
//! once.

#![cfg(unix)]

mod attempts;
mod changes;
mod claims;
#[path = "../../../tests/common/mod.rs"]
mod common;
#[path = "../common/databases.rs"]
mod databases;
mod delayed_messages;
#[path = "../common/example.rs"]
mod example;
mod failover;
#[cfg(target_os = "linux")]
mod full_disk;
mod handlers;
mod holding;
mod kills;
mod ordeal;
mod pooler;
mod process;
mod proxy;
#[path = "../common/server.rs"]
mod server;
mod servers;
mod shards;
#[cfg(target_os = "linux")]
mod small_disk;
mod storm;
mod tls;
mod wall_clock;

use attempts::{
    a_poison_timer_takes_no_neighbour_along, kills_cost_no_attempt_that_was_not_made,
    what_was_claimed_and_not_started_goes_back,
};
use changes::{
    a_full_disk_loses_nothing, a_worker_stops_when_the_tables_become_too_new,
    jumps_of_the_clock_under_load_lose_nothing, what_a_long_transaction_has_put_in_is_on_time,
};
use claims::a_thousand_workers_claim_ten_timers_once;
use kills::{
    a_claim_that_comes_after_the_stop_is_given_back,
    a_halted_process_changes_nothing_when_it_comes_back, a_killed_worker_loses_nothing,
    a_payload_that_kills_its_process_is_dead_in_the_end, a_process_that_was_halted_goes_on,
    a_timer_that_is_held_before_its_start_holds_up_no_other, a_worker_whose_thread_panics_says_so,
    a_worker_whose_wall_clock_jumps_is_on_time,
};
use storm::a_storm_of_kills_loses_nothing;

/// Does nothing, unless it was started by one of the others.
#[test]
fn worker_process() {
    process::be_a_worker();
}

/// Does nothing, unless an ordeal has started it.
#[test]
fn ordeal_process() {
    ordeal::be_one();
}

#[test]
fn an_ordeal_with_postgresql() {
    match server::Server::private() {
        Ok(server) => ordeal::with_a_server(&server),
        Err(reason) => databases::say(&format!("an ordeal with PostgreSQL: skipped: {reason}")),
    }
}

#[test]
fn an_ordeal_with_sqlite() {
    ordeal::with_a_file();
}

on_both! {
    "faults":
    a_poison_timer_takes_no_neighbour_along,
    kills_cost_no_attempt_that_was_not_made,
    a_killed_worker_loses_nothing,
    a_storm_of_kills_loses_nothing,
    a_halted_process_changes_nothing_when_it_comes_back,
    a_process_that_was_halted_goes_on,
    a_worker_whose_thread_panics_says_so,
    a_worker_whose_wall_clock_jumps_is_on_time,
    a_timer_that_is_held_before_its_start_holds_up_no_other,
    a_claim_that_comes_after_the_stop_is_given_back,
    a_payload_that_kills_its_process_is_dead_in_the_end,
    what_was_claimed_and_not_started_goes_back,
    a_thousand_workers_claim_ten_timers_once,
    a_worker_stops_when_the_tables_become_too_new,
    jumps_of_the_clock_under_load_lose_nothing,
    what_a_long_transaction_has_put_in_is_on_time,
}

/// The disk of a server is not the workers', so this one is for a file.
#[test]
fn with_a_full_disk() {
    a_full_disk_loses_nothing(&databases::Database::file());
}

#[cfg(target_os = "linux")]
#[test]
fn with_a_full_disk_and_a_reader() {
    changes::a_full_disk_is_forgotten_when_a_reader_goes(&databases::Database::file());
}

#[test]
fn with_a_server_that_fails() {
    servers::of_the_server();
}

#[test]
fn with_connections_that_fail() {
    servers::of_connections();
}

#[test]
fn with_a_replica() {
    failover::what_a_replica_has_is_kept();
}

#[cfg(target_os = "linux")]
#[test]
fn with_a_server_on_a_small_disk() {
    small_disk::a_server_whose_disk_is_full_loses_nothing();
}

// Tests begin in order of their names, and these two take the longest. So they are not among the last.
#[test]
fn over_three_servers() {
    shards::on_three_servers_of_our_own();
}

#[test]
fn over_tls() {
    tls::connections_have_tls_as_the_address_says();
}

#[test]
fn with_several_files() {
    shards::files_are_shards_too();
}
