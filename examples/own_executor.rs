//! How do I run tasks on my own threads? Any `Fn(DueTask)` is an executor, and so is a channel. The tasks that an executor
//! rejects are handed over again, unless it rejects them for good.

use std::error::Error;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use tickwheel::{DueTask, Scheduler};

/// Starts threads that take tasks from a bounded channel. Its sending end is an executor, which rejects what has no room.
fn bounded_pool(threads: usize, room: usize) -> SyncSender<DueTask> {
    let (queue, tasks) = sync_channel::<DueTask>(room);
    let tasks = Arc::new(Mutex::new(tasks));
    for _ in 0..threads {
        let tasks = Arc::clone(&tasks);
        thread::spawn(move || {
            loop {
                let next = tasks.lock().expect("tasks do not panic outwards").recv();
                let Ok(task) = next else { return };
                task.run();
            }
        });
    }
    queue
}

fn main() -> Result<(), Box<dyn Error>> {
    // The short way: a closure that passes each task on, here to a new thread. `|task| rayon::spawn(|| task.run())` would pass it
    // to rayon.
    let scheduler = Scheduler::builder()
        .executor_fn(|task| {
            let thread = thread::Builder::new().name("my own".into()).spawn(|| task.run());
            thread.map(drop).expect("the system has threads");
        })
        .build()?;
    let (sender, answers) = mpsc::channel();
    scheduler.schedule_once(Duration::from_millis(5), move || {
        let name = thread::current().name().map(str::to_owned);
        sender.send(name.unwrap_or_default()).expect("main waits for it");
    })?;
    println!("closure:  ran on the thread {:?}", answers.recv()?);

    // The same wheel, and a bounded pool for some of its tasks: two threads, room for four.
    let bounded = scheduler.with_executor(bounded_pool(2, 4));
    let (sender, answers) = mpsc::channel();
    for n in 0..40 {
        let sender = sender.clone();
        bounded.schedule_once(Duration::from_millis(5), move || {
            thread::sleep(Duration::from_millis(1)); // some work
            sender.send(n).expect("main waits for it");
        })?;
    }
    drop(sender);
    let ran = answers.iter().take(40).count();
    println!("bounded:  {ran} of 40 tasks ran, after {} rejections", scheduler.stats().rejected());
    Ok(())
}
