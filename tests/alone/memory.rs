//! Memory goes back to the system (S9), after a peak, and when schedulers come and go. The tests run one at a time, because they
//! read the memory of the whole process, and in real time, because the system takes memory back in real time.
//!
//! `TICKWHEEL_FULL=1` runs the full counts, as `scripts/storms` does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use std::{fmt, fs, thread};

use crate::common::{PATIENCE, at_least, count, digits, proc, process_of, until};
use crate::{in_own_process, live};
use tickwheel::delay::DelayQueue;
use tickwheel::message_loop::{LoopThread, MessageLoop};
use tickwheel::pool::JoinError;
use tickwheel::rx::ExecutorScheduler;
use tickwheel::{Cancellable, Clock, Inline, ManualClock, Scheduler, Sleeper, ThreadPool};

const HOUR: Duration = Duration::from_secs(3600);

/// Returns the bytes of memory that the process has, if the system tells.
fn resident() -> Option<usize> {
    let text = fs::read_to_string(proc("self/statm")?).ok()?;
    Some(text.split(' ').nth(1)?.parse::<usize>().ok()? * 4096)
}

/// Returns how many threads of the crate there are. The harness starts threads too, for tests that wait for their turn.
fn threads() -> Option<usize> {
    let is_ours = |task: &fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm"));
        name.is_ok_and(|name| name.starts_with("tickwheel") || name.starts_with("pool-"))
    };
    Some(fs::read_dir(proc("self/task")?).ok()?.flatten().filter(is_ours).count())
}

fn descriptors() -> Option<usize> {
    Some(fs::read_dir(proc("self/fd")?).ok()?.count())
}

/// A task that counts its run.
fn counted(ran: &Arc<AtomicUsize>) -> impl FnOnce() + Send + 'static {
    let ran = Arc::clone(ran);
    move || {
        ran.fetch_add(1, Ordering::Relaxed);
    }
}

/// Schedules tasks for later. For every ten thousand of them, one more is scheduled that stays while the memory around it goes.
/// Returns the number of those.
fn peak(scheduler: &Scheduler, ran: &Arc<AtomicUsize>, handles: &mut [Cancellable]) -> usize {
    let soon = Duration::from_millis(at_least(1_500, 10_000) as u64);
    for (number, handle) in handles.iter_mut().enumerate() {
        if number % 10_000 == 0 {
            scheduler.schedule_once(soon, counted(ran)).expect("open");
        }
        *handle = scheduler.schedule_once(HOUR, counted(ran)).expect("open");
    }
    handles.len().div_ceil(10_000)
}

/// Uses the slots of stale handles again, and calls the stale handles while the new tasks come in, and when all of them are
/// there.
fn use_again(scheduler: &Scheduler, ran: &Arc<AtomicUsize>, stale: &[Cancellable]) {
    let soon = Duration::from_millis(at_least(400, 5_000) as u64);
    let use_stale = || {
        for handle in stale {
            assert!(!handle.cancel(), "a stale handle has cancelled another task");
            assert!(handle.is_done() && handle.is_cancelled());
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in stale {
                scheduler.schedule_once(soon, counted(ran)).expect("open");
            }
        });
        use_stale();
    });
    use_stale();
}

/// Bytes, for people.
fn megabytes(bytes: usize) -> String {
    format!("{}.{} MB", bytes / 1_000_000, bytes / 100_000 % 10)
}

/// Waits until most of the memory of a peak is back at the system, if the system tells.
fn until_resident_goes_back(before: Option<usize>, peak: Option<usize>, tasks: usize) {
    let (Some(before), Some(peak)) = (before, peak) else {
        println!("skipped what is resident: this system does not tell");
        return;
    };
    let grown = peak - before;
    assert!(grown > tasks * 64, "the holders alone: {grown}");
    // The allocator may keep half of it. The holders are three quarters.
    let more = || resident().unwrap_or(0).saturating_sub(before);
    until("most of it goes back", || more() < grown / 2);
    until("the rest of it stays", || {
        let now = more();
        thread::sleep(Duration::from_millis(100)); // real time: memory goes back in slices
        more() >= now
    });
    println!("resident: {} more at the peak, then {}", megabytes(grown), megabytes(more()));
}

#[test]
fn s09_s10_after_a_peak_memory_goes_back_and_stale_handles_stay_harmless() {
    let Some(_alone) =
        in_own_process(s09_s10_after_a_peak_memory_goes_back_and_stale_handles_stay_harmless)
    else {
        return;
    };
    let tasks = at_least(250_000, 10_000_000);
    let scheduler = Scheduler::builder().executor(Inline).build().expect("a tick thread");
    let mut stale: Vec<_> = (0..tasks).map(|_| Cancellable::already_cancelled()).collect();
    let ran = Arc::new(AtomicUsize::new(0));
    let (before, heap) = (resident(), live());
    let grown = || (live() - heap).unsigned_abs();
    let staying = peak(&scheduler, &ran, &mut stale);
    let at_peak = (resident(), grown());
    assert!(stale.iter().all(Cancellable::cancel));
    if let (Some(peak), Some(then)) = (at_peak.0, resident()) {
        assert!(
            then < peak + tasks * 16,
            "a cancel takes memory: {peak} of it before, then {then}"
        );
    }
    // Some blocks to work with stay, and the tables of wheel and depot.
    until("the heap is as it was", || grown() < 3_500_000 + tasks * 5 / 4);
    let (cancelled, peak, then) = (digits(tasks), megabytes(at_peak.1), megabytes(grown()));
    println!("{cancelled} scheduled and cancelled: {peak} more of heap at the peak, then {then}");
    until_resident_goes_back(before, at_peak.0, tasks);

    use_again(&scheduler, &ran, &stale);
    until("all run", || ran.load(Ordering::Relaxed) == tasks + staying);
    println!("{cancelled} stale handles on slots in use again: 0 hits");
    assert_eq!(scheduler.stats().cancelled(), tasks as u64);
    assert_eq!(scheduler.pending(), 0);
    drop((scheduler.close(), scheduler));
    until("the wheel is gone, and the depot's table stays", || grown() < 1_000_000 + tasks / 4);
    println!("after the close: {} more of heap", megabytes(grown()));
}

/// Memory that a producer has to wait for is slow, so the tick thread adds it ahead, although no task is due soon.
#[test]
fn a_thread_that_runs_short_of_slots_wakes_the_tick_thread() {
    let Some(_alone) = in_own_process(a_thread_that_runs_short_of_slots_wakes_the_tick_thread)
    else {
        return;
    };
    /// A clock that tells of each sleep.
    struct Tells(ManualClock, mpsc::Sender<()>);
    impl Clock for Tells {
        fn now(&self) -> Instant {
            self.0.now()
        }
        fn sleep(&self, sleeper: &Sleeper, until: Option<Instant>) {
            _ = self.1.send(());
            self.0.sleep(sleeper, until);
        }
    }
    const SOME: usize = 20_000; // of the first 32,768
    let (tells, sleeps) = mpsc::channel();
    let clock = Tells(ManualClock::new(), tells);
    let scheduler = Scheduler::builder().clock(clock).executor(Inline).build();
    let scheduler = scheduler.expect("a tick thread");
    let sleeps_again = || sleeps.recv_timeout(PATIENCE).is_ok();
    assert!(sleeps_again());
    scheduler.schedule_once(HOUR, || ()).expect("open");
    assert!(sleeps_again(), "it was woken for that");
    (0..SOME).for_each(|_| drop(scheduler.schedule_once(HOUR * 2, || ()).expect("open")));
    assert!(sleeps_again(), "it was woken for more");
}

/// Cancelled tasks do not stay in a loop until their deadline, neither in a loop that sleeps nor in the inbox of a busy one.
#[test]
fn s09_cancelled_tasks_do_not_stay_in_a_message_loop() {
    let Some(_alone) = in_own_process(s09_cancelled_tasks_do_not_stay_in_a_message_loop) else {
        return;
    };
    let tasks = count(100_000, 2_000_000);
    let thread = LoopThread::spawn("sleeper").expect("a thread");
    let runner = thread.runner();
    let (busy, free) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    for is_busy in [false, true] {
        if is_busy {
            let (busy, free) = (Arc::clone(&busy), Arc::clone(&free));
            let blocks = move || _ = (busy.wait(), free.wait());
            runner.post(blocks).expect("open");
        }
        if is_busy {
            busy.wait();
        }
        let heap = live();
        let grown = || live() - heap;
        let post = |_| runner.post_delayed(24 * HOUR, || ()).expect("open");
        let handles: Vec<_> = (0..tasks).map(post).collect();
        let peak = grown();
        assert!(handles.iter().all(Cancellable::cancel));
        drop(handles);
        let few = peak / 8 + 200_000;
        until("they are swept", || grown() < few);
        println!(
            "{} cancelled in a loop that is {}: {} more of heap at the peak, then {}",
            digits(tasks),
            if is_busy { "busy" } else { "asleep" },
            megabytes(peak.unsigned_abs()),
            megabytes(grown().max(0).unsigned_abs())
        );
        if is_busy {
            free.wait();
        }
    }
}

#[test]
fn after_a_peak_a_message_loop_gives_its_tables_back() {
    let Some(_alone) = in_own_process(after_a_peak_a_message_loop_gives_its_tables_back) else {
        return;
    };
    let tasks = count(100_000, 2_000_000);
    let clock = ManualClock::new();
    let looper = MessageLoop::builder().clock(clock.clone()).prepare().expect("no other one");
    let (runner, local) = (looper.runner(), looper.local_runner());
    let later = |_| drop(runner.post_delayed(HOUR, || ()).expect("open"));
    let at_once = |_| drop(runner.post(|| ()).expect("open"));
    let at_home = |_| drop(local.post(|| ()).expect("open"));
    for (sort, post) in
        [("delayed", &later as &dyn Fn(usize)), ("immediate", &at_once), ("local", &at_home)]
    {
        let heap = live();
        let grown = || (live() - heap).max(0).unsigned_abs();
        (0..tasks).for_each(post);
        let peak = grown();
        clock.advance(HOUR);
        assert_eq!(looper.run_until_idle(), tasks);
        looper.turn();
        assert!(grown() < peak / 8 + 200_000, "{sort}: {} stay", grown());
        println!(
            "{} {sort} tasks: {} at the peak, then {}",
            digits(tasks),
            megabytes(peak),
            megabytes(grown())
        );
    }
}

/// What stays of a crowd that has come and gone: of workers that wait for an executor, and of futures that wait for a queue.
#[test]
fn after_a_crowd_the_tables_of_those_that_wait_go_back() {
    let Some(_alone) = in_own_process(after_a_crowd_the_tables_of_those_that_wait_go_back) else {
        return;
    };
    let crowd = count(40_000, 400_000);
    let (timers, _driver) = Scheduler::builder().build_driven().expect("good settings");
    let pool = Arc::new(ThreadPool::new(1));
    let on_a_pool = ExecutorScheduler::new(Arc::clone(&pool), &timers);
    let through_the_pool = || {
        let ran = Arc::new(AtomicUsize::new(0));
        let (busy, free) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
        let (begun, ends) = (Arc::clone(&busy), Arc::clone(&free));
        on_a_pool.worker().schedule(move || {
            begun.wait();
            ends.wait();
        });
        busy.wait();
        (0..crowd).for_each(|_| drop(on_a_pool.worker().schedule(counted(&ran))));
        let peak = live();
        free.wait();
        until("all have run", || ran.load(Ordering::Relaxed) == crowd);
        peak
    };
    let inline = ExecutorScheduler::new(Inline, &timers);
    let inside_of_a_task = || {
        let (inner, peak) = (inline.clone(), Arc::new(AtomicUsize::new(0)));
        let told = Arc::clone(&peak);
        inline.worker().schedule(move || {
            (0..crowd).for_each(|_| drop(inner.worker().schedule(|| ())));
            told.store(live().unsigned_abs(), Ordering::Relaxed);
        });
        peak.load(Ordering::Relaxed) as isize
    };
    let queue: DelayQueue<u32, u32> = DelayQueue::new(&timers);
    queue.insert(1, 1, HOUR).expect("open");
    let in_futures = || {
        let mut context = Context::from_waker(Waker::noop());
        let mut all: Vec<_> = (0..crowd).map(|_| Box::pin(queue.next())).collect();
        assert!(all.iter_mut().all(|next| next.as_mut().poll(&mut context).is_pending()));
        let peak = live();
        // Half of them go from behind, and half from the front, each time the one that leads.
        drop(all.split_off(crowd / 2));
        peak
    };
    for (sort, come_and_go) in [
        ("on a pool", &through_the_pool as &dyn Fn() -> isize),
        ("inline", &inside_of_a_task),
        ("takers", &in_futures),
    ] {
        let heap = live();
        let peak = come_and_go() - heap;
        let left = || (live() - heap).max(0);
        until("the memory goes back", || left() < peak / 100 + 20_000);
        println!(
            "{} {sort}: {} at the peak, then {}",
            digits(crowd),
            megabytes(peak.unsigned_abs()),
            megabytes(left().unsigned_abs())
        );
    }
}

/// The resources of the process that a scheduler could leak.
struct Belongings {
    threads: Option<usize>,
    descriptors: Option<usize>,
    heap: isize,
    resident: Option<usize>,
}

impl fmt::Display for Belongings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Belongings { threads, descriptors, heap, resident } = self;
        write!(f, "{} bytes of heap", digits(heap.unsigned_abs()))?;
        match (threads, descriptors, resident) {
            (Some(threads), Some(descriptors), Some(resident)) => {
                let resident = megabytes(*resident);
                write!(f, ", {threads} threads, {descriptors} descriptors, {resident} resident")
            }
            _ => write!(f, "; skipped the rest, this system does not tell"),
        }
    }
}

impl Belongings {
    fn now() -> Belongings {
        let heap = live();
        Belongings { threads: threads(), descriptors: descriptors(), heap, resident: resident() }
    }
}

/// Makes schedulers that end in four ways, all with tasks pending.
fn come_and_go(rounds: usize) {
    let alive = Arc::new(());
    for round in 0..rounds {
        let builder = Scheduler::builder();
        let pooled = || Scheduler::builder().executor(ThreadPool::new(1));
        let builder = if round % 4 == 3 { pooled() } else { builder.executor(Inline) };
        let scheduler = builder.build().expect("a tick thread");
        for delay in [Duration::ZERO, HOUR] {
            let hold = Arc::clone(&alive);
            scheduler.schedule_once(delay, move || drop(hold)).expect("open");
        }
        let inner = scheduler.clone();
        match round % 4 {
            0 => drop(scheduler.close().expect("in time")),
            1 => drop(scheduler.stop().wait()),
            2 => drop(scheduler.schedule_once(Duration::ZERO, move || drop(inner.stop()))),
            _ => drop(inner),
        }
        drop(scheduler);
        until("its tasks are gone", || Arc::strong_count(&alive) == 1);
    }
}

/// Each thread that schedules has a lane of its own at the scheduler, and counters. When it ends, the next
/// one gets them.
#[test]
fn s09_threads_that_come_and_go_leave_nothing() {
    let Some(_alone) = in_own_process(s09_threads_that_come_and_go_leave_nothing) else { return };
    let rounds = at_least(2_000, 100_000);
    let scheduler = Scheduler::builder().executor(Inline).build().expect("a tick thread");
    let come_and_go = |rounds: usize| {
        for _ in 0..rounds {
            let schedule = || scheduler.schedule_once(HOUR, || ()).expect("open").cancel();
            assert!(thread::scope(|scope| scope.spawn(schedule).join()).expect("no panic"));
        }
        until("the tick thread has seen them", || scheduler.pending() == 0);
    };
    come_and_go(300);
    let (before, resident_before) = (live(), resident());
    come_and_go(rounds);
    let bytes = live() - before;
    println!("{} threads came and went: {bytes} bytes of heap more", digits(rounds));
    if let (Some(before), Some(after)) = (resident_before, resident()) {
        // The slots in the magazines of a thread lie in a page of their own.
        let grown = after.saturating_sub(before);
        assert!(grown < rounds * 2_000, "{before} resident, then {after}");
    }
    // Far less than a lane. The entries of cancelled tasks stay until they are swept.
    assert!(bytes < rounds as isize * 50, "{bytes} bytes");
    assert_eq!(scheduler.stats().cancelled(), 300 + rounds as u64);
}

#[test]
fn s24_schedulers_that_come_and_go_leave_nothing() {
    let Some(_alone) = in_own_process(s24_schedulers_that_come_and_go_leave_nothing) else {
        return;
    };
    let rounds = at_least(1_500, 100_000);
    let running = threads();
    // A thread forgets its lanes at schedulers that are gone when it comes to another one. So the last one comes alone.
    let come_and_go = |rounds| {
        [rounds, 1].into_iter().for_each(|rounds| {
            come_and_go(rounds);
            until("the threads end", || threads() <= running);
        });
    };
    come_and_go(300);
    let before = Belongings::now();
    come_and_go(rounds);
    let after = Belongings::now();
    let bytes = after.heap - before.heap;
    println!("{} schedulers came and went: {bytes} bytes of heap more", digits(rounds));
    println!("before: {before}\nafter:  {after}");
    assert!(bytes < rounds as isize, "less than a byte each");
    assert_eq!(after.descriptors, before.descriptors);
    if let (Some(before), Some(after)) = (before.resident, after.resident) {
        // Stacks and arenas that the system's library keeps come to some hundred kilobytes.
        assert!(after.saturating_sub(before) < 4_000_000, "{before} resident, then {after}");
    }
}

/// The engine forgets an executor's tasks when they are over, although no further tasks come.
#[test]
fn s29_what_was_remembered_of_an_executor_goes_when_its_tasks_are_over() {
    let Some(_alone) =
        in_own_process(s29_what_was_remembered_of_an_executor_goes_when_its_tasks_are_over)
    else {
        return;
    };
    let queue = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&queue);
    let keep = move |task| keep.lock().expect("whole").push(task);
    let (scheduler, driver) = Scheduler::builder().executor_fn(keep).build_driven().expect("good");
    let peak = || {
        (0..200_000)
            .for_each(|_| drop(scheduler.schedule_once(Duration::ZERO, || ()).expect("open")));
        while driver.turn().is_some_and(|at| at <= driver.now()) {}
        let tasks = std::mem::take(&mut *queue.lock().expect("whole"));
        assert_eq!(tasks.len(), 200_000);
        tasks.into_iter().for_each(tickwheel::DueTask::run);
    };
    driver.advance(Duration::from_secs(5));
    let before = live();
    peak();
    let peak = live() - before;
    driver.advance(Duration::from_secs(5));
    let left = live() - before;
    println!(
        "200,000 tasks handed over and run: {peak} bytes of heap more, and {left} after the trim"
    );
    assert!(peak > 200_000 * 16 && left < peak / 4, "{peak}, then {left}");
}

/// Nobody turns the engine, as if a task held it up. However often tasks are reset to an earlier deadline, each has a few
/// records on its way.
#[test]
fn s28_resets_to_earlier_deadlines_of_an_engine_that_is_held_up_take_no_memory() {
    let Some(_alone) =
        in_own_process(s28_resets_to_earlier_deadlines_of_an_engine_that_is_held_up_take_no_memory)
    else {
        return;
    };
    let builder = Scheduler::builder().max_pending(10);
    let (scheduler, driver) = builder.build_driven().expect("the settings are good");
    let (ran, resets) = (Arc::new(AtomicUsize::new(0)), count(300_000, 3_000_000) as u64);
    let later = |nanos| scheduler.now() + HOUR + Duration::from_nanos(nanos);
    for past in [false, true] {
        let task = scheduler.schedule_at(later(resets), counted(&ran)).expect("open");
        driver.turn();
        let before = live();
        for nanos in (0..resets).rev() {
            let earlier = later(nanos).checked_sub(if past { HOUR * 2 } else { Duration::ZERO });
            let earlier = earlier.expect("the machine is up for longer");
            assert!(task.reset_at(earlier));
        }
        let taken = (live() - before).unsigned_abs();
        println!("{} resets take {}", digits(resets as usize), megabytes(taken));
        assert!(taken < 2_000_000, "{taken}");
        let due = if past { Duration::ZERO } else { HOUR };
        assert_eq!(driver.advance(due.saturating_sub(Duration::from_millis(1))), usize::from(past));
        driver.advance(Duration::from_millis(2));
        assert!(task.is_done());
    }
    assert_eq!((ran.load(Ordering::Relaxed), scheduler.pending()), (2, 0));
}

// ----- a system without memory -------------------------------------------------------------

/// Returns how many bytes of addresses this process has.
#[cfg(target_os = "linux")]
fn addresses() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").expect("a table of sizes");
    let pages = text.split(' ').next().and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("a number") * 4096
}

/// Bounds the addresses of this process, so that the system has no memory for it.
#[cfg(target_os = "linux")]
fn bound_addresses(bytes: libc::rlim_t) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the call reads `limit`.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
}

/// Runs a test that is a child, and has bounded what its process gets.
#[cfg(target_os = "linux")]
fn assert_child_says(test: impl Fn(), expected: &str) {
    let child = process_of(test).env("TICKWHEEL_CHILD", "1").output().expect("it starts");
    let told = String::from_utf8_lossy(&child.stdout);
    let wrong = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && told.contains(expected), "{told}{wrong}");
}

/// The child of the next test, in a process of its own, whose addresses are bounded for a while.
#[cfg(target_os = "linux")]
#[test]
fn child_without_memory() {
    if std::env::var_os("TICKWHEEL_CHILD").is_none() {
        return;
    }
    let full = tickwheel::ScheduleError::Full;
    let scheduler = Scheduler::builder().executor(Inline).build().expect("a thread");
    let schedule = || scheduler.schedule_once(HOUR, || ());
    // The system is asked for sixteen blocks at a time, so this leaves half a block of them.
    let most = (16 << 15) - (1 << 14) - 500;
    let mut handles: Vec<_> = (0..most).map(|_| schedule().expect("memory")).collect();
    handles.reserve(1 << 16); // or the list itself would need memory
    bound_addresses(addresses() + 1_000_000);
    // Each turn of the tick thread would like a further block.
    for _ in 0..12_000 {
        let refused = loop {
            match schedule() {
                Ok(handle) => handles.push(handle),
                Err(refused) => break refused,
            }
        };
        assert_eq!(refused, full);
        assert!(handles.pop().expect("many").cancel());
        let ran = Arc::new(AtomicUsize::new(0));
        scheduler.schedule_once(Duration::ZERO, counted(&ran)).expect("the slot that is free");
        until("it ran", || ran.load(Ordering::Relaxed) == 1);
    }
    bound_addresses(libc::RLIM_INFINITY);
    let more: Vec<_> = (0..100_000).map(|_| schedule().expect("there is memory again")).collect();
    assert!(more.iter().all(Cancellable::cancel));
    println!("\nwhole again");
}

/// While the system has no memory schedules are refused, and when it has some again they are accepted.
#[cfg(target_os = "linux")]
#[test]
fn s20_a_time_without_memory_refuses_and_leaves_nothing_broken() {
    let Some(_alone) = in_own_process(s20_a_time_without_memory_refuses_and_leaves_nothing_broken)
    else {
        return;
    };
    assert_child_says(child_without_memory, "whole again");
}

/// The child of the next test, in a process of its own, in which no further thread can be started.
#[cfg(target_os = "linux")]
#[test]
fn child_without_threads() {
    if std::env::var_os("TICKWHEEL_CHILD").is_none() {
        return;
    }
    let scheduler = Scheduler::builder().executor(ThreadPool::new(2)).build().expect("a thread");
    let inner = scheduler.clone();
    let joins = move || {
        bound_addresses(addresses() + 1_000_000); // less than the stack of a thread
        let joined = inner.call_after(Duration::ZERO, || ()).join();
        bound_addresses(libc::RLIM_INFINITY);
        joined
    };
    let joined = scheduler.call_after(Duration::ZERO, joins).join().expect("its thread is there");
    assert!(matches!(joined, Err(JoinError::WouldDeadlock)), "{joined:?}");
    println!("\nno thread");
}

/// A join that counts on a second thread of a `ThreadPool` looks again when that one cannot be started.
#[cfg(target_os = "linux")]
#[test]
fn a_join_that_needs_a_thread_which_the_system_refuses_says_so() {
    let test = a_join_that_needs_a_thread_which_the_system_refuses_says_so;
    let Some(_alone) = in_own_process(test) else { return };
    assert_child_says(child_without_threads, "no thread");
}
