//! What a program on WebAssembly has of the crate: one thread, which turns the scheduler itself.

use std::cell::RefCell;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tickwheel::delay::DelayQueue;
use tickwheel::message_loop::MessageLoop;
use tickwheel::rx::TrampolineScheduler;
use tickwheel::wheel::Wheel;
use tickwheel::{BootClock, BuildError, Clock, ManualClock, Scheduler, SystemClock, time};

const MINUTE: Duration = Duration::from_secs(60);

fn main() {
    let tests: &[(&str, fn())] = &[
        ("the wheel", the_wheel),
        ("a driven scheduler in virtual time", virtual_time),
        ("a driven scheduler on a manual clock", manual_clock),
        ("a driven scheduler on the system's clocks", system_clocks),
        ("futures", futures),
        ("a delay queue", delay_queue),
        ("a trampoline", trampoline),
        ("a message loop", message_loop),
        ("what needs a thread says so", no_threads),
    ];
    for (name, test) in tests {
        test();
        println!("ok: {name}");
    }
    println!("{} tests passed", tests.len());
}

fn the_wheel() {
    let mut wheel = Wheel::new(64);
    let keys: Vec<_> = (0..10_000_u64).map(|at| wheel.insert(at * 7 % 5_000, at)).collect();
    keys.iter().step_by(2).for_each(|key| assert!(wheel.remove(*key).is_some()));
    let due: Vec<_> = wheel.advance(10_000).map(|(deadline, _)| deadline).collect();
    assert!(due.len() == 5_000 && due.is_sorted());
}

/// Returns a list, and a function that adds to it.
fn list() -> (Arc<Mutex<Vec<u64>>>, impl Fn(u64) + Clone + Send + Sync + 'static) {
    let list = Arc::new(Mutex::new(Vec::new()));
    let add = Arc::clone(&list);
    (list, move |value| add.lock().unwrap().push(value))
}

fn virtual_time() {
    let (scheduler, driver) = Scheduler::builder().build_driven().unwrap();
    let (ran, run) = list();
    for minutes in [3, 1, 2] {
        let run = run.clone();
        scheduler.schedule_once(MINUTE * minutes, move || run(u64::from(minutes))).unwrap();
    }
    let cancelled = scheduler.schedule_once(MINUTE, || unreachable!("cancelled")).unwrap();
    assert!(cancelled.cancel());
    assert_eq!(driver.advance(MINUTE * 2), 2);
    assert_eq!((ran.lock().unwrap().as_slice(), scheduler.pending()), (&[1, 2][..], 1));
}

fn manual_clock() {
    let clock = ManualClock::new();
    let (scheduler, driver) = Scheduler::builder().clock(clock.clone()).build_driven().unwrap();
    let (ran, run) = list();
    scheduler.schedule_once(MINUTE, move || run(1)).unwrap();
    driver.turn();
    assert!(ran.lock().unwrap().is_empty());
    clock.advance(MINUTE * 2);
    driver.turn();
    assert_eq!(*ran.lock().unwrap(), [1]);
}

fn system_clocks() {
    fn on(clock: impl Clock) {
        let (scheduler, driver) = Scheduler::builder().clock(clock).build_driven().unwrap();
        let (ran, run) = list();
        let (start, delay) = (Instant::now(), Duration::from_millis(20));
        scheduler.schedule_once(delay, move || run(1)).unwrap();
        assert_eq!(driver.advance(Duration::from_millis(30)), 1);
        assert!(start.elapsed() >= delay && *ran.lock().unwrap() == [1]);
    }
    on(SystemClock);
    on(BootClock);
}

fn futures() {
    let (_scheduler, driver) = Scheduler::builder().build_driven().unwrap();
    let slept = driver.block_on(async {
        let start = time::Instant::now();
        assert!(time::timeout(MINUTE, std::future::pending::<()>()).await.is_err());
        start.elapsed()
    });
    assert!(slept.unwrap() >= MINUTE);
}

fn delay_queue() {
    let (scheduler, driver) = Scheduler::builder().build_driven().unwrap();
    let queue = DelayQueue::new(&scheduler);
    for key in 0..1_000_u64 {
        queue.insert(key, (), MINUTE * (1 + key as u32 % 7)).unwrap();
    }
    assert!(queue.reset(&3, MINUTE * 60) && queue.remove(&4).is_some());
    driver.advance(MINUTE * 10);
    let taken = std::iter::from_fn(|| queue.try_next()).count();
    assert_eq!((taken, queue.close().len()), (998, 1));
}

fn trampoline() {
    let (ran, run) = list();
    let worker = TrampolineScheduler::new().worker();
    let start = Instant::now();
    let again = run.clone();
    worker.schedule_after(Duration::from_millis(15), move || again(2));
    worker.schedule(move || run(3));
    assert!(start.elapsed() >= Duration::from_millis(15));
    assert_eq!(*ran.lock().unwrap(), [2, 3]);
}

fn message_loop() {
    thread_local! {
        static RAN: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    }
    let looper = MessageLoop::prepare().unwrap();
    let tasks = looper.runner();
    let quit = tasks.clone();
    let second = move || {
        RAN.with_borrow_mut(|ran| ran.push(2));
        quit.quit_safely();
    };
    tasks.post_delayed(Duration::from_millis(15), second).unwrap();
    tasks.post(|| RAN.with_borrow_mut(|ran| ran.push(1))).unwrap();
    looper.run();
    RAN.with_borrow(|ran| assert_eq!(*ran, [1, 2]));
}

fn no_threads() {
    let error = Scheduler::builder().build().expect_err("there are no threads");
    assert!(matches!(error, BuildError::Thread(_)), "{error}");
    println!("    {error}");
}
