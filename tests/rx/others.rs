//! The rest of `rx`: sets of handles, contexts, trampolines.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::log::Log;
use crate::common::{Grenade, PATIENCE, count, panic_on_purpose, silence, until};
use tickwheel::rx::{
    self, CompositeCancellable, ContextAwareScheduler, ContextCapture, ExecutorScheduler,
    TrampolineScheduler, Worker,
};
use tickwheel::{
    Cancel, Cancellable, DueTask, Executor, Inline, Period, RepeatingTask, Schedule, ScheduleError,
    ScheduleExt, Scheduler, Task, ThreadPool,
};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

// ----- CompositeCancellable ---------------------------------------------------------------------

#[test]
fn a_set_cancels_what_is_in_it_and_what_comes_late() {
    let (scheduler, _driver) = Scheduler::builder().build_driven().expect("good");
    let task = || scheduler.schedule_once(SECOND, || ()).expect("open");
    let (set, [a, b, c, d]) = (CompositeCancellable::new(), [task(), task(), task(), task()]);
    let keys = [&a, &b, &c].map(|handle| set.add(handle.clone()));
    assert!(keys[0] != keys[1] && keys[1] != keys[2]);
    assert_eq!((set.len(), set.is_empty(), set.is_cancelled()), (3, false, false));
    assert!(set.remove(keys[0]).is_some_and(|handle| !handle.is_done()), "it does not cancel");
    assert!(set.remove(keys[0]).is_none(), "once");
    assert!(b.cancel(), "somebody else was first");
    let same = set.clone();
    assert_eq!(same.cancel(), 1, "it prevented one of the two");
    assert!(set.is_cancelled() && set.is_empty() && c.is_cancelled() && !a.is_cancelled());
    assert_eq!(set.cancel(), 0);
    let late = set.add(d.clone());
    assert!(d.is_cancelled() && set.is_empty() && set.remove(late).is_none());
}

#[test]
fn a_key_names_nothing_in_another_set() {
    let (one, other) = (CompositeCancellable::new(), CompositeCancellable::default());
    let key = one.add(Cancellable::already_cancelled());
    other.add(Cancellable::already_cancelled());
    assert!(other.remove(key).is_none());
    assert!(one.remove(key).is_some());
}

#[test]
fn a_set_is_a_handle_that_says_whether_it_prevented_something() {
    let (scheduler, _driver) = Scheduler::builder().build_driven().expect("good");
    let set = CompositeCancellable::new();
    set.add(scheduler.schedule_once(SECOND, || ()).expect("open"));
    let handle = Cancellable::from(Arc::new(set));
    assert!(!handle.is_done() && !handle.is_cancelled());
    assert!(handle.cancel() && !handle.cancel());
    assert!(handle.is_done() && handle.is_cancelled());
    let empty = Cancellable::from(Arc::new(CompositeCancellable::new()));
    assert!(!empty.cancel() && empty.is_done(), "there was nothing to prevent");
}

#[test]
fn sets_nest_and_a_handle_that_panics_saves_nobody() {
    struct Panics;
    impl Cancel for Panics {
        fn cancel(&self) -> bool {
            panic_on_purpose()
        }
        fn is_cancelled(&self) -> bool {
            false
        }
        fn is_done(&self) -> bool {
            false
        }
    }
    silence();
    let (scheduler, _driver) = Scheduler::builder().build_driven().expect("good");
    let task = || scheduler.schedule_once(SECOND, || ()).expect("open");
    let (outer, inner, [a, b]) =
        (CompositeCancellable::new(), CompositeCancellable::new(), [task(), task()]);
    inner.add(a.clone());
    outer.add(Cancellable::from(Arc::new(Panics)));
    outer.add(Cancellable::from(Arc::new(Panics)));
    outer.add(Cancellable::from(Arc::new(inner.clone())));
    outer.add(b.clone());
    let cancel = std::panic::AssertUnwindSafe(|| outer.cancel());
    assert!(std::panic::catch_unwind(cancel).is_err(), "the panic goes on, afterwards");
    assert!(a.is_cancelled() && b.is_cancelled() && inner.is_cancelled() && outer.is_empty());
}

#[test]
fn a_handle_whose_drop_panics_saves_nobody_and_the_first_panic_goes_on() {
    struct Panics(&'static str, bool);
    impl Cancel for Panics {
        fn cancel(&self) -> bool {
            assert!(self.1, "{}", self.0);
            true
        }
        fn is_cancelled(&self) -> bool {
            false
        }
        fn is_done(&self) -> bool {
            false
        }
    }
    impl Drop for Panics {
        fn drop(&mut self) {
            assert!(!self.1, "{}", self.0);
        }
    }
    silence();
    let (scheduler, _driver) = Scheduler::builder().build_driven().expect("good");
    let (set, last) =
        (CompositeCancellable::new(), scheduler.schedule_once(SECOND, || ()).expect("open"));
    set.add(Cancellable::from(Arc::new(Panics("on purpose, first", true))));
    set.add(Cancellable::from(Arc::new(Panics("on purpose, second", false))));
    set.add(last.clone());
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| set.cancel()));
    let panic = panic.expect_err("it goes on");
    assert_eq!(panic.downcast_ref::<String>().map(String::as_str), Some("on purpose, first"));
    assert!(last.is_cancelled());
}

#[test]
fn sets_are_filled_and_cancelled_from_many_threads() {
    let (set, cancels) = (CompositeCancellable::new(), AtomicUsize::new(0));
    let (scheduler, _driver) = Scheduler::builder().build_driven().expect("good");
    let tasks = crate::common::count(2_000, 200_000);
    let handles = thread::scope(|scope| {
        let adders: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let add = |_| {
                        let handle = scheduler.schedule_once(HOUR, || ()).expect("open");
                        set.add(handle.clone());
                        handle
                    };
                    (0..tasks).map(add).collect::<Vec<_>>()
                })
            })
            .collect();
        for _ in 0..2 {
            scope.spawn(|| {
                until("something is in it", || !set.is_empty() || set.is_cancelled());
                cancels.fetch_add(set.cancel(), Ordering::Relaxed);
            });
        }
        adders.into_iter().flat_map(|adder| adder.join().expect("no panic")).collect::<Vec<_>>()
    });
    assert!(handles.iter().all(Cancellable::is_cancelled));
    assert!(cancels.load(Ordering::Relaxed) <= handles.len() && set.is_empty());
    assert_eq!(scheduler.pending(), 0);
}

/// A set may live for ever, because it drops the handles of tasks that have ended.
#[test]
fn a_million_tasks_that_have_run_leave_nothing_in_a_set() {
    let (scheduler, driver) = Scheduler::builder().build_driven().expect("good");
    let set = CompositeCancellable::new();
    let (held, total) = (Arc::new(()), count(1_000_000, 1_000_000).min(1_000_000)); // below an hour
    let lives = set.add(scheduler.schedule_once(HOUR, || ()).expect("open"));
    for _ in 0..total / 1000 {
        for _ in 0..1000 {
            let ends =
                Ends(Arc::clone(&held), scheduler.schedule_once(SECOND, || ()).expect("open"));
            set.add(Cancellable::from(Arc::new(ends)));
        }
        driver.advance(SECOND);
        let kept = Arc::strong_count(&held) - 1;
        assert!(kept <= 4_000, "{kept} handles are kept, of 1,001 that did not wait to run");
    }
    assert_eq!((set.len(), set.is_empty()), (1, false), "what is over does not count");
    assert_eq!(Arc::strong_count(&held), 1, "and is let go");
    assert!(set.remove(lives).is_some_and(|handle| !handle.is_done()));
    assert!(set.is_empty() && set.cancel() == 0);
}

/// A handle whose drop the test can see.
struct Ends(#[expect(dead_code, reason = "it counts")] Arc<()>, Cancellable);

impl Cancel for Ends {
    fn cancel(&self) -> bool {
        self.1.cancel()
    }
    fn is_cancelled(&self) -> bool {
        self.1.is_cancelled()
    }
    fn is_done(&self) -> bool {
        self.1.is_done()
    }
}

/// A set looks at its handles now and then. They may be a user's own type.
#[test]
fn a_set_looks_at_a_user_s_handle_with_nothing_locked() {
    struct Looks(CompositeCancellable, bool);
    impl Cancel for Looks {
        fn cancel(&self) -> bool {
            false
        }
        fn is_cancelled(&self) -> bool {
            false
        }
        fn is_done(&self) -> bool {
            self.0.is_cancelled();
            self.0.remove(self.0.add(Cancellable::already_cancelled()));
            if self.1 {
                panic_on_purpose();
            }
            false
        }
    }
    silence();
    let set = CompositeCancellable::new();
    for panics in [false, true] {
        set.add(Cancellable::from(Arc::new(Looks(set.clone(), panics))));
    }
    let key = set.add(Cancellable::already_cancelled());
    assert_eq!(set.len(), 2, "a handle that panics is not over");
    assert!(set.remove(key).is_none(), "it was over, and is let go");
    (0..10_000).for_each(|_| _ = set.add(Cancellable::already_cancelled()));
    assert_eq!(set.len(), 2);
    set.cancel(); // otherwise the set would hold itself
}

// ----- ContextAwareScheduler --------------------------------------------------------------------

thread_local!(static TENANT: Cell<u32> = const { Cell::new(0) });

struct Tenant;

impl ContextCapture for Tenant {
    type Context = u32;

    fn capture(&self) -> u32 {
        TENANT.get()
    }

    fn replace(&self, tenant: u32) -> u32 {
        assert_ne!(tenant, 666, "on purpose, from `replace`");
        TENANT.replace(tenant)
    }
}

fn with_tenants() -> (Worker, Scheduler, tickwheel::Driver) {
    let (timers, driver) = Scheduler::builder().build_driven().expect("good");
    let plain = ExecutorScheduler::new(Inline, &timers);
    (ContextAwareScheduler::new(plain, Tenant).worker(), timers, driver)
}

#[test]
fn a_task_runs_in_the_context_of_who_scheduled_it() {
    silence();
    let (worker, _timers, driver) = with_tenants();
    let log = Log::default();
    let say = |log: &Log| {
        let log = log.clone();
        move || log.say(TENANT.get())
    };
    TENANT.set(1);
    worker.schedule_after(SECOND, say(&log));
    TENANT.set(2);
    let said = log.clone();
    worker.schedule_periodically(2 * SECOND, SECOND, move || {
        said.say(TENANT.get());
        TENANT.set(77); // no other thread sees this
    });
    TENANT.set(3);
    worker.schedule_after(SECOND, || panic_on_purpose());
    TENANT.set(4);
    worker.schedule(say(&log));
    worker.try_schedule(say(&log)).expect("open");
    (&worker as &dyn Schedule).schedule_once(SECOND, say(&log)).expect("open");
    TENANT.set(9);
    driver.advance(3 * SECOND);
    assert_eq!(log.all(), [4, 4, 1, 4, 2, 2]);
    assert_eq!(TENANT.get(), 9, "the thread has its own again, after a panic too");
}

#[test]
fn a_context_that_cannot_be_installed_leaves_the_one_around_it_as_it_was() {
    struct Fails;
    impl ContextCapture for Fails {
        type Context = ();
        fn capture(&self) {}
        fn replace(&self, (): ()) {
            panic_on_purpose();
        }
    }
    silence();
    let (timers, driver) = Scheduler::builder().build_driven().expect("good");
    let tenants = ContextAwareScheduler::new(ExecutorScheduler::new(Inline, &timers), Tenant);
    let both = ContextAwareScheduler::over(move || tenants.worker(), Fails);
    TENANT.set(7);
    both.worker().schedule_after(SECOND, || ());
    TENANT.set(0);
    driver.advance(SECOND);
    assert_eq!(TENANT.get(), 0);
}

#[test]
fn a_panic_of_a_task_is_reported_beside_that_of_the_way_back() {
    silence();
    let (timers, driver) = Scheduler::builder().build_driven().expect("good");
    let said = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&said);
    let plain = ExecutorScheduler::new(Inline, &timers).on_panic(move |panic| {
        let message = panic.message().unwrap_or_default().to_owned();
        told.lock().expect("no panic").push(message);
    });
    let worker = ContextAwareScheduler::new(plain, Tenant).worker();
    TENANT.set(0);
    worker.schedule_after(SECOND, || std::panic::panic_any("on purpose, of the task"));
    TENANT.set(666); // restoring this value fails
    driver.advance(SECOND);
    let said = said.lock().expect("no panic");
    assert!(
        said.len() == 2
            && said[0] == "on purpose, of the task"
            && said[1].contains("from `replace`")
    );
}

#[test]
fn a_closure_comes_back_out_of_its_context() {
    let (worker, _timers, _driver) = with_tenants();
    worker.dispose();
    let log = Log::default();
    let refused = worker.try_schedule(log.task(1)).expect_err("disposed");
    assert_eq!(refused.reason(), ScheduleError::Closed);
    refused.into_task()();
    assert_eq!(log.all(), [1]);
}

#[test]
fn a_context_that_cannot_be_put_up_costs_only_its_own_task() {
    let (worker, _timers, driver) = with_tenants();
    let log = Log::default();
    TENANT.set(666);
    let bad = worker.schedule_after(SECOND, log.task(666));
    let series = worker.schedule_periodically(SECOND, SECOND, || ());
    // Restoring the context can fail as well. By then the task has run.
    TENANT.set(1);
    worker.schedule_after(SECOND, log.task(1));
    TENANT.set(0);
    driver.advance(SECOND);
    TENANT.set(666);
    let failed_on_the_way_back = worker.schedule_after(SECOND, log.task(2));
    TENANT.set(0);
    driver.advance(2 * SECOND);
    assert!(bad.is_done() && series.is_done() && failed_on_the_way_back.is_done());
    assert_eq!(log.all(), [1]);
    worker.schedule(log.task(3));
    assert_eq!((log.all(), worker.pending()), (vec![1, 3], 0));
}

/// Returns a worker whose tasks run in such contexts, and of how many panics its hook was told.
fn worker_in(contexts: impl ContextCapture) -> (Worker, Arc<AtomicUsize>) {
    silence();
    let (timers, _driver) = Scheduler::builder().build_driven().expect("good");
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    let plain = ExecutorScheduler::new(Inline, &timers)
        .on_panic(move |_| _ = count.fetch_add(1, Ordering::Relaxed));
    (ContextAwareScheduler::new(plain, contexts).worker(), told)
}

/// A context that panics when it is dropped. A clone of it does not.
struct Mined(Option<Grenade>);

impl Clone for Mined {
    fn clone(&self) -> Mined {
        Mined(None)
    }
}

/// The closure and its context are dropped apart, because a panic during a panic would end the process.
#[test]
fn a_context_that_cannot_be_put_up_may_panic_when_it_is_dropped_and_the_closure_too() {
    struct Bad;
    impl ContextCapture for Bad {
        type Context = Mined;
        fn capture(&self) -> Mined {
            Mined(Some(Grenade))
        }
        fn replace(&self, context: Mined) -> Mined {
            assert!(context.0.is_none(), "a clone");
            panic_on_purpose()
        }
    }
    let (worker, told) = worker_in(Bad);
    let grenade = Grenade;
    worker.schedule(move || drop(grenade));
    assert_eq!(told.load(Ordering::Relaxed), 3, "of `replace`, of the closure, of its context");
}

/// The same of a task that is cancelled, of a series that ends, and of a task that is refused after its context was captured.
#[test]
fn a_context_may_panic_when_it_is_dropped_and_the_closure_too_however_the_task_ends() {
    /// Disposes a worker when a context is captured.
    #[derive(Clone, Default)]
    struct Disposes(Arc<Mutex<Option<Worker>>>);
    impl ContextCapture for Disposes {
        type Context = Mined;
        fn capture(&self) -> Mined {
            let worker = self.0.lock().expect("no panic").take();
            worker.into_iter().for_each(|worker| worker.dispose());
            Mined(Some(Grenade))
        }
        fn replace(&self, context: Mined) -> Mined {
            assert!(context.0.is_none(), "a clone");
            context
        }
    }
    let told_of = |end: fn(&Worker, &Disposes)| {
        let disposes = Disposes::default();
        let (worker, told) = worker_in(disposes.clone());
        end(&worker, &disposes);
        told.load(Ordering::Relaxed)
    };
    let cancelled = told_of(|worker, _| {
        let inner = worker.clone();
        worker.schedule(move || {
            let grenade = Grenade;
            assert!(inner.schedule(move || drop(grenade)).cancel(), "it waits for this task");
        });
    });
    let ended = told_of(|worker, _| {
        let grenade = Grenade;
        worker.schedule_periodically(Duration::ZERO, SECOND, move || {
            let _has_it = &grenade;
            ControlFlow::Break(())
        });
    });
    let refused = told_of(|worker, disposes| {
        *disposes.0.lock().expect("no panic") = Some(worker.clone());
        let grenade = Grenade;
        let refused = worker.try_schedule(move || drop(grenade)).expect_err("disposed by now");
        assert_eq!(refused.reason(), ScheduleError::Closed);
        std::mem::forget(refused.into_task());
    });
    assert_eq!((cancelled, ended, refused), (3, 2, 1), "of the closures, and of their contexts");
}

/// It is user code, and would be asked with locks held. And what it says later must not change the order of its timers.
#[test]
fn a_schedule_is_asked_once_whether_it_is_a_scheduler() {
    struct Asked(Scheduler, Arc<AtomicUsize>);
    impl Schedule for Asked {
        fn now(&self) -> Instant {
            self.0.now()
        }
        fn schedule_task(&self, delay: Duration, task: Task) -> Result<Cancellable, ScheduleError> {
            self.0.schedule_task(delay, task)
        }
        fn schedule_task_at(&self, at: Instant, task: Task) -> Result<Cancellable, ScheduleError> {
            self.0.schedule_task_at(at, task)
        }
        fn schedule_series(
            &self,
            initial: Duration,
            period: Period,
            task: RepeatingTask,
        ) -> Result<Cancellable, ScheduleError> {
            self.0.schedule_series(initial, period, task)
        }
        fn as_scheduler(&self) -> Option<&Scheduler> {
            let is_first = self.1.fetch_add(1, Ordering::Relaxed) == 0;
            (!is_first).then_some(&self.0)
        }
    }
    let (timers, driver) = Scheduler::builder().build_driven().expect("good");
    let (asked, log) = (Arc::new(AtomicUsize::new(0)), Log::default());
    let workers = ExecutorScheduler::over(Inline, Asked(timers, Arc::clone(&asked)));
    let worker = workers.worker();
    let moved = worker.schedule_after(SECOND, log.task(2));
    let _series = worker.schedule_periodically(HOUR, HOUR, || ());
    worker.schedule_after(SECOND, log.task(1));
    assert!(moved.reset(2 * SECOND));
    driver.advance(3 * SECOND);
    worker.dispose();
    assert_eq!((asked.load(Ordering::Relaxed), log.all()), (1, vec![1, 2]));
}

/// The hook drops the closure first, because a panic during a panic would end the process.
#[test]
fn a_context_that_cannot_be_captured_is_its_caller_s_panic() {
    struct NoContext;
    impl ContextCapture for NoContext {
        type Context = ();
        fn capture(&self) {
            panic_on_purpose()
        }
        fn replace(&self, (): ()) {}
    }
    let (worker, told) = worker_in(NoContext);
    let grenade = Grenade;
    let schedule = std::panic::AssertUnwindSafe(|| worker.schedule(move || drop(grenade)));
    assert!(std::panic::catch_unwind(schedule).is_err());
    assert_eq!((told.load(Ordering::Relaxed), worker.pending()), (1, 0));
}

/// A caller whose task would be refused anyway does not pay for a context, and does not get its panics.
#[test]
fn no_context_is_captured_for_a_task_that_is_refused() {
    struct Once(AtomicUsize);
    impl ContextCapture for Once {
        type Context = ();
        fn capture(&self) {
            assert_eq!(self.0.fetch_add(1, Ordering::Relaxed), 0, "on purpose: captured again");
        }
        fn replace(&self, (): ()) {}
    }
    silence();
    let (timers, _driver) = Scheduler::builder().build_driven().expect("good");
    let refuses = |worker: &Worker, reason| {
        assert_eq!(worker.try_schedule(|| ()).expect_err("refused").reason(), reason);
        let handles = [
            worker.schedule(|| ()),
            worker.schedule_after(SECOND, || ()),
            worker.schedule_periodically(SECOND, SECOND, || ()),
        ];
        assert!(handles.iter().all(Cancellable::is_cancelled));
        let rejected = worker.execute(DueTask::new(Instant::now(), || ())).expect_err("refused");
        assert_eq!(rejected.is_for_good(), reason == ScheduleError::Closed);
    };
    let once = || Once(AtomicUsize::new(0));
    let plain = ExecutorScheduler::new(Inline, &timers).max_pending(1);
    let worker = ContextAwareScheduler::new(plain, once()).worker();
    worker.schedule_after(SECOND, || ());
    refuses(&worker, ScheduleError::Full);
    worker.dispose();
    refuses(&worker, ScheduleError::Closed);
    let trampoline = || TrampolineScheduler::new().worker();
    for workers in [trampoline, rx::single] {
        let worker = ContextAwareScheduler::over(workers, once()).worker();
        worker.schedule(|| ());
        worker.dispose();
        refuses(&worker, ScheduleError::Closed);
    }
}

#[test]
fn contexts_go_to_the_threads_of_a_pool_and_leave_them() {
    let timers = Scheduler::new();
    let pool = Arc::new(ThreadPool::new(1));
    let plain = ExecutorScheduler::new(Arc::clone(&pool), &timers);
    let aware = ContextAwareScheduler::new(plain.clone(), Tenant).clone().worker();
    let (sender, receiver) = mpsc::channel();
    let send = |sender: &mpsc::Sender<u32>| {
        let sender = sender.clone();
        move || sender.send(TENANT.get()).expect("it waits")
    };
    TENANT.set(5);
    aware.schedule(send(&sender));
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok(5));
    plain.worker().schedule(send(&sender));
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok(0), "the thread is as it was");
}

// ----- TrampolineScheduler ----------------------------------------------------------------------

#[test]
fn a_trampoline_runs_on_its_caller_and_does_not_nest() {
    fn nest(worker: &Worker, log: &Log, left: u32) {
        let (next, said) = (worker.clone(), log.clone());
        worker.schedule(move || {
            if left > 0 {
                nest(&next, &said, left - 1);
            }
            said.say(left);
        });
    }
    let (worker, log) = (TrampolineScheduler::new().worker(), Log::default());
    let here = thread::current().id();
    worker.schedule(move || assert_eq!(thread::current().id(), here));
    nest(&worker, &log, 100_000);
    assert!(log.all().into_iter().eq((0..=100_000).rev()), "each to its end, and then the next");
    assert!(worker.pending() == 0 && !worker.is_disposed());
}

#[test]
fn a_trampoline_waits_for_what_is_delayed() {
    let (worker, log, start) =
        (TrampolineScheduler::new().worker(), Log::default(), Instant::now());
    let (own, said) = (worker.clone(), log.clone());
    let ms = Duration::from_millis;
    worker.schedule(move || {
        own.schedule_after(ms(200), said.task(3));
        own.schedule_after(ms(100), said.task(2));
        own.schedule(said.task(1));
        assert_eq!(own.pending(), 3);
    });
    assert_eq!(log.all(), [1, 2, 3]);
    assert!(start.elapsed() >= ms(200));
    let start = Instant::now();
    let mut left = 3;
    worker
        .schedule_periodic(ms(5), Period::fixed_rate(ms(5)), move || {
            left -= 1;
            if left == 0 {
                std::ops::ControlFlow::Break(())
            } else {
                std::ops::ControlFlow::Continue(())
            }
        })
        .expect("open");
    assert!(start.elapsed() >= ms(15) && worker.pending() == 0);
}

/// It may be what the other worker waits for. A thread that is held back by a worker that runs nothing waits for 100 ms, once.
#[test]
fn a_task_on_a_trampoline_is_never_held_back() {
    let longest_call = || {
        let (timers, _driver) = Scheduler::builder().build_driven().expect("good");
        let kept: Arc<Mutex<Vec<DueTask>>> = Arc::default();
        let keeps = Arc::clone(&kept);
        let executor = move |task| keeps.lock().expect("no panic").push(task);
        let never_runs = ExecutorScheduler::new(executor, &timers).worker();
        let (full, (sender, longest)) = (never_runs.clone(), mpsc::channel());
        TrampolineScheduler::new().worker().schedule(move || {
            let time = |_| {
                let start = Instant::now();
                full.schedule(|| ());
                start.elapsed()
            };
            sender.send((0..(1 << 16) + 10).map(time).max()).expect("awaited");
        });
        never_runs.dispose();
        kept.lock().expect("no panic").clear();
        longest.recv().expect("it has run").expect("many calls")
    };
    // On a busy machine a call may take as long without any wait, but not in each round.
    assert!((0..5).any(|_| longest_call() < SECOND / 10));
}

#[test]
fn a_caller_that_waits_out_a_delay_is_freed_by_a_cancel_and_by_a_dispose() {
    for is_disposed in [false, true] {
        let (worker, log) = (TrampolineScheduler::new().worker(), Log::default());
        let handle: Arc<Mutex<Option<Cancellable>>> = Arc::default();
        let (own, slot) = (worker.clone(), Arc::clone(&handle));
        let waits = thread::spawn(move || {
            let inner = own.clone();
            own.schedule(move || {
                let delayed = inner.schedule_after(HOUR, || unreachable!("cancelled"));
                *slot.lock().expect("no panic") = Some(delayed);
            });
        });
        until("it waits", || handle.lock().expect("no panic").is_some());
        // The thread that drains also runs the tasks that come in the meantime.
        worker.schedule(log.task(1));
        until("it runs there", || log.all() == [1]);
        assert!(worker.pending() == 1 && !worker.is_disposed());
        if is_disposed {
            worker.dispose();
            assert!(worker.is_disposed() && worker.schedule(log.task(2)).is_cancelled());
        } else {
            assert!(handle.lock().expect("no panic").as_ref().expect("there").cancel());
        }
        waits.join().expect("no panic");
        assert_eq!((worker.pending(), log.all()), (0, vec![1]));
    }
}

#[test]
fn a_trampoline_survives_panics_and_ends_series() {
    silence();
    let (worker, log) = (TrampolineScheduler::new().worker(), Log::default());
    let handle = worker.schedule(|| panic_on_purpose());
    worker.schedule(log.task(1));
    assert!(handle.is_done() && log.all() == [1]);
    let (own, said) = (worker.clone(), log.clone());
    let series =
        worker.schedule_periodically(Duration::ZERO, Duration::from_millis(1), move || {
            said.say(2);
            if said.all().len() == 5 {
                own.dispose();
            }
        });
    assert!(series.is_cancelled() && log.all() == [1, 2, 2, 2, 2]);
    assert!(!series.cancel(), "the disposal won");
}

/// A disposal on another thread finds a task that has been taken from the queue and has not started.
#[test]
fn after_a_disposal_no_cancel_wins_on_a_trampoline() {
    for _ in 0..crate::common::count(2_000, 200_000) {
        let worker = TrampolineScheduler::new().worker();
        let disposes = {
            let worker = worker.clone();
            thread::spawn(move || worker.dispose())
        };
        let handles: Vec<_> = (0..20).map(|_| worker.schedule(|| ())).collect();
        disposes.join().expect("no panic");
        assert!(handles.iter().all(|handle| handle.is_done() && !handle.cancel()));
        assert_eq!(worker.pending(), 0);
    }
}
