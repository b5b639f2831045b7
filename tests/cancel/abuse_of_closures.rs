//! Closures that misbehave: they drop the last scheduler, or close their own. Captured values whose `Drop` panics, schedules
//! or cancels (S8, S9, S11, S17, S20, S21, S24).
//!
//! `TICKWHEEL_FULL=1` runs the full counts, as `scripts/storms` does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::ledger::{End, Ledger, Tally};
use crate::common::{OnDrop, PATIENCE, count, digits, panic_on_purpose, silence, until};
use tickwheel::{Builder, Cancellable, CloseError, Inline, ScheduleError, Scheduler, ThreadPool};

const HOUR: Duration = Duration::from_secs(3600);

/// Returns schedulers in turn: one that runs tasks on the tick thread, one that runs them on a pool, and so on.
fn builder(round: usize) -> Builder {
    let builder = Scheduler::builder();
    if round % 2 == 0 { builder.executor(Inline) } else { builder.executor(ThreadPool::new(2)) }
}

/// Schedules tasks beside the one that a test is about. Some are due at once, and some in an hour.
const NEIGHBOURS: usize = 8;

fn neighbours(scheduler: &Scheduler) -> Arc<Ledger> {
    let ledger = Ledger::new(NEIGHBOURS);
    for id in 0..NEIGHBOURS {
        let page = ledger.page(id);
        let delay = if id % 2 == 0 { Duration::ZERO } else { HOUR };
        scheduler.schedule_once(delay, move || page.run()).expect("open");
    }
    ledger
}

#[test]
fn s24_closures_that_drop_the_last_scheduler() {
    let (rounds, mut all) = (count(1_000, 50_000), Tally::default());
    for round in 0..rounds {
        let scheduler = builder(round).build().expect("a tick thread");
        let (last, (gone, wait)) = (scheduler.clone(), mpsc::channel::<()>());
        let task = move || {
            let _ = wait.recv(); // until all others are gone
            drop(last);
        };
        scheduler.schedule_once(Duration::ZERO, task).expect("open");
        let ledger = neighbours(&scheduler);
        drop(scheduler);
        drop(gone);
        until("every neighbour has an end", || ledger.is_closed());
        ledger.tally().assert_balanced();
        all += ledger.tally();
    }
    println!("{} schedulers dropped by a closure of theirs: {all}", digits(rounds));
}

#[test]
fn s21_closures_that_close_their_scheduler() {
    let (rounds, mut all) = (count(1_000, 50_000), Tally::default());
    for round in 0..rounds {
        let scheduler = builder(round).build().expect("a tick thread");
        let ledger = neighbours(&scheduler);
        let (inner, (sender, told)) = (scheduler.clone(), mpsc::channel());
        let task = move || sender.send(inner.close_and_run()).expect("the receiver lives");
        scheduler.schedule_once(Duration::ZERO, task).expect("open");
        let told = told.recv_timeout(PATIENCE).expect("no deadlock");
        if round % 2 == 0 {
            assert_eq!(told, Err(CloseError::OnTickThread));
            assert!(!scheduler.is_closed());
            scheduler.close_and_run().expect("in time");
        } else {
            assert!(told.is_ok_and(|ran| ran >= NEIGHBOURS / 2), "{told:?}");
            assert_eq!(scheduler.schedule_once(HOUR, || ()).unwrap_err(), ScheduleError::Closed);
        }
        until("every neighbour has an end", || ledger.is_closed());
        ledger.tally().assert_balanced();
        assert_eq!(ledger.tally().of(End::Ran), NEIGHBOURS);
        all += ledger.tally();
    }
    println!("{} schedulers closed by a closure of theirs: {all}", digits(rounds));
}

/// Ends tasks in every way there is, a quarter of them each: by a run, a cancel, a drop of what a close
/// has returned, and with the last handle. `make` is told on which scheduler, still alive, a task may
/// act, and its number.
fn end_in_every_way<T: FnOnce() + Send + 'static>(
    builder: impl Fn() -> Builder,
    each: usize,
    make: impl Fn(&Scheduler, usize) -> T,
) {
    let build = || builder().build().expect("a tick thread");
    let (first, second) = (build(), build());
    for id in 0..each {
        first.schedule_once(Duration::ZERO, make(&first, id)).expect("open");
        let task = make(&first, each + id);
        assert!(first.schedule_once(HOUR, task).expect("open").cancel());
        first.schedule_once(HOUR, make(&first, each * 2 + id)).expect("open");
        second.schedule_once(HOUR, make(&first, each * 3 + id)).expect("open");
    }
    drop(second);
    until("the runs have begun", || first.stats().fired() >= each as u64);
    drop(first.close().expect("in time"));
}

#[test]
fn s09_s17_captured_values_whose_drop_panics() {
    silence();
    let each = count(20_000, 250_000);
    let reported = Arc::new(AtomicUsize::new(0));
    let builder = || {
        let hook = Arc::clone(&reported);
        let builder = Scheduler::builder().executor(Inline);
        builder.on_panic(move |panic| {
            let is_ours = panic.message() == Some("on purpose");
            hook.fetch_add(usize::from(is_ours), Ordering::Relaxed);
        })
    };
    let ledger = Ledger::new(each * 4);
    end_in_every_way(builder, each, |_, id| {
        let ledger = Arc::clone(&ledger);
        let grenade = OnDrop(move || {
            ledger.book(id, End::Dropped);
            panic_on_purpose();
        });
        move || drop(grenade)
    });
    until("every value is dropped", || ledger.is_closed());
    until("every panic is reported", || reported.load(Ordering::Relaxed) >= each * 4);
    let (tally, reported) = (ledger.tally(), reported.load(Ordering::Relaxed));
    println!("{} drops panicked: {tally}, {} reported", digits(each * 4), digits(reported));
    tally.assert_balanced();
    assert_eq!(reported, each * 4);
}

#[test]
fn s11_s20_captured_values_whose_drop_schedules() {
    let each = count(20_000, 250_000);
    let (ledger, refused) = (Ledger::new(each * 4), Arc::new(AtomicUsize::new(0)));
    end_in_every_way(
        || Scheduler::builder().executor(Inline),
        each,
        |alive, id| {
            let (alive, mut page) = (alive.clone(), Some(ledger.page(id)));
            let refused = Arc::clone(&refused);
            let guard = OnDrop(move || {
                let page = page.take().expect("once");
                let told = alive.schedule_once(Duration::ZERO, move || page.run());
                refused.fetch_add(usize::from(told.is_err()), Ordering::Relaxed);
            });
            move || drop(guard)
        },
    );
    until("every task has an end", || ledger.is_closed());
    let (tally, refused) = (ledger.tally(), refused.load(Ordering::Relaxed));
    println!("{} drops scheduled: {tally}, {} refused", digits(each * 4), digits(refused));
    tally.assert_balanced();
    assert!(refused >= each, "the leftovers went after the close");
    assert!(tally.of(End::Dropped) >= refused);
}

#[test]
fn s08_s11_captured_values_whose_drop_cancels() {
    let each = count(20_000, 250_000);
    let third = Scheduler::new();
    let (ledger, won) = (Ledger::new(each * 4), Arc::new(AtomicUsize::new(0)));
    end_in_every_way(
        || Scheduler::builder().executor(Inline),
        each,
        |_, id| {
            let page = ledger.page(id);
            let victim = third.schedule_once(HOUR, move || page.run()).expect("open");
            let won = Arc::clone(&won);
            let guard = OnDrop(move || {
                won.fetch_add(usize::from(victim.cancel()), Ordering::Relaxed);
            });
            move || drop(guard)
        },
    );
    until("every victim is dropped", || ledger.is_closed());
    until("each cancel returns", || won.load(Ordering::Relaxed) == each * 4);
    let (tally, won) = (ledger.tally(), won.load(Ordering::Relaxed));
    println!("{} drops cancelled another task: {} won, {tally}", digits(each * 4), digits(won));
    tally.assert_balanced();
    assert_eq!((won, tally.of(End::Dropped)), (each * 4, each * 4));
    assert_eq!((third.stats().cancelled(), third.pending()), (won as u64, 0));
}

/// A task whose end cancels another task, which is named later.
fn cancels(scheduler: &Scheduler, ledger: &Arc<Ledger>, other: usize) -> (Cancellable, Slot) {
    let (slot, ledger) = (Slot::default(), Arc::clone(ledger));
    let seen = Arc::clone(&slot);
    let guard = OnDrop(move || {
        let handle = seen.lock().expect("whole").take();
        if handle.is_some_and(|handle| handle.cancel()) {
            ledger.book(other, End::Cancelled);
        }
    });
    (scheduler.schedule_once(HOUR, move || drop(guard)).expect("open"), slot)
}

type Slot = Arc<Mutex<Option<Cancellable>>>;

#[test]
fn s08_s11_pairs_that_cancel_each_other_from_two_threads() {
    let pairs = count(50_000, 500_000);
    let (scheduler, ledger) = (Scheduler::new(), Ledger::new(pairs * 2));
    let mut sides = [Vec::new(), Vec::new()];
    for id in (0..pairs * 2).step_by(2) {
        let (first, slot) = cancels(&scheduler, &ledger, id + 1);
        let (second, other_slot) = cancels(&scheduler, &ledger, id);
        *slot.lock().expect("whole") = Some(second.clone());
        *other_slot.lock().expect("whole") = Some(first.clone());
        sides[0].push((id, first));
        sides[1].push((id + 1, second));
    }
    let start = Barrier::new(2);
    thread::scope(|scope| {
        for side in sides {
            let (start, ledger) = (&start, &ledger);
            scope.spawn(move || {
                start.wait();
                for (id, handle) in side {
                    if handle.cancel() {
                        ledger.book(id, End::Cancelled);
                    }
                }
            });
        }
    });
    let tally = ledger.tally();
    println!("{} pairs that cancel each other: {tally}", digits(pairs));
    tally.assert_balanced();
    assert_eq!((tally.of(End::Cancelled), scheduler.pending()), (pairs * 2, 0));
}
