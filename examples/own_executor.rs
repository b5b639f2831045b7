//! How do I run tasks on my own threads? Any `Fn(DueTask)` is an executor. An executor that can be full implements the
//! trait. The tasks that it rejects are handed over again, unless it rejects them for good.

use std::error::Error;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use tickwheel::{DueTask, Executor, Rejected, Scheduler};

/// A pool of threads that take tasks from a bounded channel.
struct Bounded {
    queue: SyncSender<DueTask>,
}

impl Bounded {
    fn new(threads: usize, room: usize) -> Bounded {
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
        Bounded { queue }
    }
}

impl Executor for Bounded {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        self.queue.try_send(task).map_err(|refused| match refused {
            TrySendError::Full(task) => Rejected::new(task),
            TrySendError::Disconnected(task) => Rejected::for_good(task), // the threads are gone
        })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    // The short way: a closure that passes each task on, here to a rayon pool.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build()?;
    let scheduler =
        Scheduler::builder().executor_fn(move |task| pool.spawn(move || task.run())).build()?;
    let (sender, answers) = mpsc::channel();
    scheduler.schedule_once(Duration::from_millis(5), move || {
        let thread = rayon::current_thread_index();
        sender.send(thread).expect("main waits for it");
    })?;
    println!("rayon:    ran on thread {:?} of the rayon pool", answers.recv()?);

    // The same wheel, and a bounded pool for some of its tasks: two threads, room for four.
    let bounded = scheduler.with_executor(Bounded::new(2, 4));
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
