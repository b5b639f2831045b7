//! A message loop inside of another event loop: turns, wakers, pumps.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Barrier};
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::log::Log;
use crate::common::{PATIENCE, count};
use tickwheel::message_loop::{
    DefaultPump, Delegate, LoopThread, MessageLoop, MessagePump, Next, RunLoop, TaskRunner,
};
use tickwheel::{Clock, ManualClock, Sleeper, SystemClock};

const SECOND: Duration = Duration::from_secs(1);

/// Returns the loop of the calling thread, for tasks.
fn here() -> TaskRunner {
    MessageLoop::current().expect("it is called in a task")
}

// ----- turns and wakers --------------------------------------------------------------------

#[derive(Default)]
struct Rings(AtomicUsize);
impl Wake for Rings {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
impl Rings {
    fn so_far(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

fn hosted() -> (MessageLoop, Arc<Rings>, ManualClock) {
    let (rings, clock) = (Arc::new(Rings::default()), ManualClock::new());
    let waker = Waker::from(Arc::clone(&rings));
    let looper = MessageLoop::builder().clock(clock.clone()).wake_with(waker).prepare();
    (looper.expect("no other one"), rings, clock)
}

#[test]
fn who_turns_it_is_woken_for_what_cannot_wait() {
    let (looper, rings, clock) = hosted();
    let runner = looper.runner();
    runner.post(|| ()).expect("open");
    runner.post(|| ()).expect("open");
    assert_eq!(rings.so_far(), 1, "nobody has turned it yet: it is to be");
    looper.run_until_idle();
    assert_eq!(looper.turn(), Next::Idle);
    // From this thread too: its own event loop may be about to wait.
    runner.post_delayed(2 * SECOND, || ()).expect("open");
    assert_eq!(rings.so_far(), 2);
    runner.post(|| ()).expect("open");
    assert_eq!(rings.so_far(), 2, "it knows already");
    assert_eq!(looper.turn(), Next::At(clock.now() + 2 * SECOND));
    runner.post_delayed(3 * SECOND, || ()).expect("open");
    assert_eq!(rings.so_far(), 2, "S7: that can wait");
    let elsewhere = runner.clone();
    let posted = std::thread::spawn(move || elsewhere.post_delayed(SECOND, || ()).map(drop));
    posted.join().expect("no panic").expect("open");
    assert_eq!(rings.so_far(), 3);
    assert_eq!(looper.turn(), Next::At(clock.now() + SECOND), "and nothing was lost");
    runner.quit();
    assert_eq!(rings.so_far(), 4);
    assert_eq!(looper.turn(), Next::Quit);
}

/// The answer of a turn is how long its caller may wait. Posts assume the same time, whatever is cancelled in between.
#[test]
fn a_cancelled_deadline_hides_no_later_one() {
    let (looper, rings, clock) = hosted();
    let runner = looper.runner();
    let first = runner.post_delayed(SECOND, || ()).expect("open");
    runner.post_delayed(100 * SECOND, || ()).expect("open");
    first.cancel();
    looper.turn();
    assert_eq!(looper.turn(), Next::At(clock.now() + 100 * SECOND));
    let before = rings.so_far();
    runner.post_delayed(10 * SECOND, || ()).expect("open");
    assert_eq!(rings.so_far(), before + 1);
    assert_eq!(looper.turn(), Next::At(clock.now() + 10 * SECOND));
}

#[test]
fn an_end_that_an_idle_handler_or_a_destructor_brings_is_not_slept_over() {
    for end in [TaskRunner::quit, TaskRunner::quit_safely, TaskRunner::quit_when_idle] {
        let (looper, _rings, _clock) = hosted();
        looper.add_idle_handler(move || end(&here()));
        let mut next = looper.turn();
        while next == Next::Now {
            next = looper.turn();
        }
        assert_eq!(next, Next::Quit, "there is nobody to ring");
    }
}

/// Another thread ends the loop at any moment of a turn. The answer of the turn tells, or the waker does.
#[test]
fn an_end_from_elsewhere_is_seen_or_rung_for() {
    let rounds = count(2_000, 500_000);
    let (gate, end) = (Arc::new(Barrier::new(2)), sync_channel::<TaskRunner>(1));
    let opened = Arc::clone(&gate);
    let (give, take) = end;
    let ender = thread::spawn(move || {
        for (round, runner) in take.into_iter().enumerate() {
            opened.wait();
            (0..round % 300).for_each(|_| std::hint::spin_loop());
            runner.quit();
            opened.wait();
        }
    });
    for _ in 0..rounds {
        let (looper, rings, _clock) = hosted();
        looper.runner().post(|| ()).expect("open");
        let before = rings.so_far();
        give.send(looper.runner()).expect("it waits");
        gate.wait();
        let next = looper.turn();
        gate.wait();
        let is_told = matches!(next, Next::Quit | Next::Now) || rings.so_far() > before;
        assert!(is_told, "{next:?}, and nobody rang");
    }
    drop(give);
    ender.join().expect("no panic");
}

#[test]
fn a_run_in_between_does_not_silence_the_waker() {
    let (looper, rings, _clock) = hosted();
    let post = || {
        let runner = looper.runner();
        let posted = thread::spawn(move || runner.post(|| ()).map(drop));
        posted.join().expect("no panic").expect("open");
    };
    post();
    assert_eq!(rings.so_far(), 1, "before the first turn");
    assert_eq!(looper.turn(), Next::Idle);
    looper.run_until_idle(); // inside an event handler
    post();
    assert_eq!(rings.so_far(), 2);
    looper.runner().post(|| ()).expect("open");
    let run = RunLoop::new().expect("a loop");
    run.quit_handle().quit_when_idle();
    run.run(); // a dialogue
    post();
    assert_eq!(rings.so_far(), 3);
}

// ----- pumps -------------------------------------------------------------------------------

/// What is called, each call as a letter, and when.
type Calls = RefCell<Vec<(char, Instant)>>;

/// Counts its wakes, and keeps the order of its calls.
struct Watched {
    inner: DefaultPump,
    wakes: Arc<Rings>,
    calls: Rc<Calls>,
}

struct Watching<'a> {
    delegate: &'a dyn Delegate,
    calls: &'a Calls,
}

impl Watching<'_> {
    fn note(&self, call: char, did: bool) -> bool {
        let call = if did { call.to_ascii_uppercase() } else { call };
        self.calls.borrow_mut().push((call, Instant::now()));
        did
    }
}

impl Delegate for Watching<'_> {
    fn do_work(&self) -> bool {
        let did = self.delegate.do_work();
        self.note('w', did)
    }
    fn do_delayed_work(&self) -> bool {
        let did = self.delegate.do_delayed_work();
        self.note('d', did)
    }
    fn next_delayed_work(&self) -> Option<Instant> {
        self.note('n', false);
        self.delegate.next_delayed_work()
    }
    fn do_idle_work(&self) -> bool {
        let did = self.delegate.do_idle_work();
        self.note('i', did)
    }
}

impl MessagePump for Watched {
    fn run(&self, delegate: &dyn Delegate) {
        self.inner.run(&Watching { delegate, calls: &self.calls });
    }
    fn quit(&self) {
        self.calls.borrow_mut().push(('q', Instant::now()));
        self.inner.quit();
    }
    fn waker(&self) -> Waker {
        struct Both(Arc<Rings>, Waker);
        impl Wake for Both {
            fn wake(self: Arc<Self>) {
                self.0.0.fetch_add(1, Ordering::Relaxed);
                self.1.wake_by_ref();
            }
        }
        Waker::from(Arc::new(Both(Arc::clone(&self.wakes), self.inner.waker())))
    }
}

#[test]
fn a_pump_sees_a_turn_as_the_contract_says_and_is_woken_from_outside_alone() {
    // On a busy machine the delay may be over before the first sleep. A longer one shows the order of the calls then.
    let mut delay = Duration::from_millis(2);
    while !a_pump_sees_a_turn(delay) {
        delay *= 4;
    }
}

/// Returns false if the delay was too short to see the calls before the first sleep.
fn a_pump_sees_a_turn(delay: Duration) -> bool {
    let (wakes, calls) = (Arc::new(Rings::default()), Rc::new(RefCell::default()));
    let pump =
        Watched { inner: DefaultPump::new(), wakes: Arc::clone(&wakes), calls: Rc::clone(&calls) };
    let looper = MessageLoop::prepare_with(pump).expect("no other one");
    let runner = looper.runner();
    let mut handled = false;
    looper.add_idle_handler(move || {
        if !std::mem::replace(&mut handled, true) {
            here().post(|| ()).expect("open");
        }
    });
    let due = Instant::now() + delay;
    runner.post_delayed(delay, || here().quit()).expect("open");
    runner.post(|| _ = here().post(|| ()).expect("open")).expect("open");
    looper.run();
    assert_eq!(wakes.so_far(), 0, "all came from its own thread");
    let (calls, times): (String, Vec<_>) = calls.borrow().iter().copied().unzip();
    assert!(calls.ends_with("qD"), "{calls}");
    assert_eq!(calls.matches('q').count(), 1);
    let expected = "WdWdwdIWdwdIwdin";
    let is_in_time = times.iter().take(expected.len()).all(|time| *time < due);
    assert!(!is_in_time || calls.starts_with(expected), "{calls} is not {expected}..");
    is_in_time
}

/// A pump like that of a window system: it dispatches its own events while it waits.
struct Native {
    events: RefCell<VecDeque<Box<dyn FnOnce()>>>,
    quits: Cell<bool>,
    bell: Arc<Doorbell>,
    rings: Receiver<()>,
}

struct Doorbell(SyncSender<()>);
impl Wake for Doorbell {
    fn wake(self: Arc<Self>) {
        _ = self.0.try_send(());
    }
}

impl Native {
    fn new() -> Rc<Native> {
        let (ring, rings) = sync_channel(1);
        let (events, quits) = (RefCell::default(), Cell::new(false));
        Rc::new(Native { events, quits, bell: Arc::new(Doorbell(ring)), rings })
    }

    fn wait(&self, until: Option<Instant>) {
        loop {
            let event = self.events.borrow_mut().pop_front();
            match event {
                Some(event) => event(),
                None => break,
            }
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let rung = self.rings.recv_timeout(left.unwrap_or(PATIENCE));
        assert!(rung.is_ok() || until.is_some(), "slept over");
    }
}

struct NativePump(Rc<Native>);
impl MessagePump for NativePump {
    fn run(&self, delegate: &dyn Delegate) {
        loop {
            let did = [delegate.do_work(), delegate.do_delayed_work()].contains(&true);
            let did = did || (!self.0.quits.get() && delegate.do_idle_work());
            if self.0.quits.replace(false) {
                return;
            }
            if !did {
                self.0.wait(delegate.next_delayed_work());
            }
        }
    }
    fn quit(&self) {
        self.0.quits.set(true);
    }
    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.0.bell))
    }
}

#[test]
fn an_event_of_the_pump_s_own_may_post_in_a_nested_run_too() {
    let native = Native::new();
    let looper = MessageLoop::prepare_with(NativePump(Rc::clone(&native))).expect("no other one");
    let log = Log::default();
    let (said, inside) = (log.clone(), Rc::clone(&native));
    let nest = move || {
        said.say(1);
        let run = RunLoop::new().expect("in a task");
        let (quit, told) = (run.quit_handle(), said.clone());
        let event = move || {
            let task = move || {
                told.say(2);
                quit.quit();
            };
            here().post(task).expect("open");
        };
        inside.events.borrow_mut().push_back(Box::new(event));
        run.run();
        said.say(3);
        let event = || here().quit();
        inside.events.borrow_mut().push_back(Box::new(event));
    };
    let local = looper.local_runner();
    native.events.borrow_mut().push_back(Box::new(move || {
        local.post(nest).expect("open");
    }));
    looper.run();
    assert_eq!(log.all(), [1, 2, 3]);
}

/// The nested run ends, and the run that waits has to look again before it sleeps.
#[test]
fn a_clock_that_runs_the_loop_in_its_wait_makes_it_miss_no_post() {
    thread_local! {
        static LOOP: RefCell<Option<Rc<MessageLoop>>> = const { RefCell::new(None) };
        static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    }
    struct RunsTheLoop(SyncSender<()>);
    impl Clock for RunsTheLoop {
        fn now(&self) -> Instant {
            if !IS_INSIDE.replace(true) {
                let here = LOOP.with(|here| here.borrow().clone());
                here.into_iter().for_each(|here| _ = here.run_until_idle());
                IS_INSIDE.set(false);
            }
            SystemClock.now()
        }
        fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
            _ = self.0.try_send(());
            SystemClock.sleep(sleeper, until);
        }
    }
    let ((sleeps, is_asleep), (sender, runners)) = (sync_channel(1), sync_channel(1));
    let host = thread::spawn(move || {
        let own = MessageLoop::builder().clock(RunsTheLoop(sleeps)).prepare().expect("unbound");
        let own = Rc::new(own);
        LOOP.set(Some(Rc::clone(&own)));
        own.runner().post_delayed(Duration::from_secs(3600), || ()).expect("open");
        sender.send(own.runner()).expect("awaited");
        own.run();
        LOOP.take();
    });
    let runner = runners.recv().expect("it is prepared");
    is_asleep.recv_timeout(PATIENCE).expect("it sleeps until the task is due");
    let (sender, ran) = sync_channel(1);
    runner.post(move || sender.send(()).expect("awaited")).expect("open");
    ran.recv_timeout(PATIENCE).expect("the post has woken it");
    runner.quit();
    host.join().expect("no panic");
}

/// The nested run has slept with the same pump. The run around it has not lost its wake-ups by that.
#[test]
fn a_clock_that_runs_and_waits_in_its_sleep_misses_no_post() {
    thread_local!(static IS_INSIDE: Cell<bool> = const { Cell::new(false) });
    struct RunsAndWaits(SyncSender<()>);
    impl Clock for RunsAndWaits {
        fn now(&self) -> Instant {
            SystemClock.now()
        }
        fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
            if !IS_INSIDE.replace(true) {
                let nested = RunLoop::new().expect("it sleeps");
                let ends = nested.quit_handle();
                let posted = here().post_delayed(Duration::from_millis(20), move || ends.quit());
                posted.expect("open");
                nested.run();
                self.0.send(()).expect("awaited");
            }
            SystemClock.sleep(sleeper, until);
        }
    }
    let (sleeps, is_asleep) = sync_channel(1);
    let host =
        LoopThread::spawn_with("host", || MessageLoop::builder().clock(RunsAndWaits(sleeps)));
    let host = host.expect("a thread");
    is_asleep.recv_timeout(PATIENCE).expect("it sleeps");
    let (sender, ran) = sync_channel(1);
    host.runner().post(move || sender.send(()).expect("awaited")).expect("open");
    ran.recv_timeout(PATIENCE).expect("the post has woken it");
    host.quit_and_join().expect("no panic");
}
