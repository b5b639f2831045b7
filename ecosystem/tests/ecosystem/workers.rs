//! Workers of `rx` on a pool of rayon, and in the spans of `tracing`.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::common::log::Log;
use crate::common::until;
use tickwheel::rx::{ContextAwareScheduler, ExecutorScheduler, TracingSpans, Worker};
use tickwheel::{DueTask, Inline, Scheduler, ThreadPool};
use tracing::span::Id;
use tracing::{Span, Subscriber, info_span};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

const SECOND: Duration = Duration::from_secs(1);

/// What each producer has scheduled runs in its order, and no two tasks run at a time.
#[test]
fn tasks_of_a_worker_run_in_order_and_one_at_a_time_on_rayon() {
    const EACH: u32 = 2_000;
    let timers = Scheduler::new();
    let workers = ExecutorScheduler::new(|task: DueTask| rayon::spawn(|| task.run()), &timers);
    let (worker, is_busy) = (workers.worker(), Arc::new(AtomicBool::new(false)));
    let logs: [Log; 2] = [Log::default(), Log::default()];
    let produce = |log: &Log, worker: &Worker| {
        for number in 0..EACH {
            let (log, is_busy) = (log.clone(), Arc::clone(&is_busy));
            worker.schedule(move || {
                assert!(!is_busy.swap(true, Ordering::Relaxed), "two at once");
                log.say(number);
                is_busy.store(false, Ordering::Relaxed);
            });
        }
    };
    thread::scope(|scope| {
        logs.iter().for_each(|log| _ = scope.spawn(|| produce(log, &worker)));
    });
    until("all have run", || {
        worker.pending() == 0 && logs.iter().all(|log| log.all().len() == EACH as usize)
    });
    assert!(logs.iter().all(|log| log.all().into_iter().eq(0..EACH)));
}

#[test]
fn tasks_run_in_the_spans_that_they_were_scheduled_in() {
    let name = || Span::current().metadata().map(tracing::Metadata::name);
    tracing::subscriber::with_default(tracing_subscriber::registry(), || {
        let (timers, driver) = Scheduler::builder().build_driven().expect("good");
        let plain = ExecutorScheduler::new(Inline, &timers);
        let worker = ContextAwareScheduler::new(plain, TracingSpans).worker();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let see = || {
            let seen = Arc::clone(&seen);
            move || seen.lock().expect("no panic").push(name())
        };
        worker.schedule_after(SECOND, see());
        info_span!("request").in_scope(|| {
            worker.schedule_after(2 * SECOND, see());
            let inner = info_span!("query").entered();
            worker.schedule_after(3 * SECOND, see());
            drop(inner);
            worker.schedule_after(4 * SECOND, || std::panic::resume_unwind(Box::new(())));
        });
        let outer = info_span!("outer").entered();
        let innermost = info_span!("innermost").entered();
        driver.advance(5 * SECOND);
        assert_eq!(*seen.lock().expect("no panic"), [None, Some("request"), Some("query")]);
        assert_eq!(name(), Some("innermost"), "the thread is in its own spans again");
        drop(innermost);
        assert_eq!(name(), Some("outer"), "in all of them");
        drop(outer);
        assert_eq!(name(), None);
    });
}

/// Only the scheduling thread has the subscriber. Each span that is entered is left again, otherwise spans would pile up on
/// the thread that runs the task.
#[test]
fn a_span_of_a_stranger_s_subscriber_is_not_left_entered() {
    struct Counts(Arc<[AtomicUsize; 2]>);
    impl<S: Subscriber> Layer<S> for Counts {
        fn on_enter(&self, _: &Id, _: Context<'_, S>) {
            self.0[0].fetch_add(1, Ordering::Relaxed);
        }
        fn on_exit(&self, _: &Id, _: Context<'_, S>) {
            self.0[1].fetch_add(1, Ordering::Relaxed);
        }
    }

    let counts = Arc::<[AtomicUsize; 2]>::default();
    let timers = Scheduler::new();
    let plain = ExecutorScheduler::new(ThreadPool::new(1), &timers);
    let worker = ContextAwareScheduler::new(plain, TracingSpans).worker();
    let log = Log::default();
    let subscriber = tracing_subscriber::registry().with(Counts(Arc::clone(&counts)));
    tracing::subscriber::with_default(subscriber, || {
        let _in_it = info_span!("request").entered();
        (0..10).for_each(|number| _ = worker.schedule(log.task(number)));
    });
    until("all have run", || log.all().len() == 10);
    until("the last has left its span", || counts[1].load(Ordering::Relaxed) == 11);
    assert_eq!(counts[0].load(Ordering::Relaxed), 11, "ten runs, and the scheduling thread");
}
