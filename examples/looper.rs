//! How do I give a thread its own work, timers, replies and futures? The example is a small user interface: one thread
//! owns the screen, and no other thread touches it. A cursor blinks, another thread counts files, and a future sleeps.
//!
//! `cargo run --example looper`

use std::cell::RefCell;
use std::error::Error;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tickwheel::message_loop::{LocalTaskRunner, LoopThread, MessageLoop, TaskRunner};
use tickwheel::{Period, Scheduler};

const FOLDERS: [&str; 4] = ["src", "tests", "examples", "no such folder"];

/// The content of the screen. It is not `Send`: it belongs to the thread of the loop.
struct Screen {
    opened: Instant,
    answers: usize,
    is_lit: bool,
}

impl Screen {
    fn show(&self, line: &str) {
        println!("{:>4} ms  {line}", self.opened.elapsed().as_millis());
    }

    fn blink(&mut self) {
        self.is_lit = !self.is_lit;
        self.show(if self.is_lit { "█" } else { "_" });
    }
}

/// Returns how many files are in a folder, and how long they are. It is slow work, for the other thread.
fn measure(folder: &Path) -> std::io::Result<(usize, u64)> {
    let (mut files, mut bytes) = (0, 0);
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            let (inside, length) = measure(&entry.path())?;
            files += inside;
            bytes += length;
        } else {
            files += 1;
            bytes += entry.metadata()?.len();
        }
    }
    Ok((files, bytes))
}

/// Asks the disk thread. The reply runs on the thread of the screen.
fn ask(
    disk: &TaskRunner,
    local: &LocalTaskRunner,
    folder: &'static str,
    screen: &Rc<RefCell<Screen>>,
) -> Result<(), Box<dyn Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let screen = Rc::clone(screen);
    let show = move |found: std::io::Result<(usize, u64)>| {
        let mut screen = screen.borrow_mut();
        screen.answers += 1;
        screen.show(&match found {
            Ok((files, bytes)) => format!("{folder}: {files} files, {bytes} bytes"),
            Err(error) => format!("{folder}: {error}"),
        });
    };
    let asked = local.post_and_reply(disk, move || measure(&path), show);
    asked.map_err(|refused| refused.reason().into())
}

/// Counts down, and returns how many answers are on the screen. The scheduler's thread wakes the future, and the
/// screen's thread polls it.
async fn count_down(timers: Scheduler, screen: Rc<RefCell<Screen>>) -> usize {
    for left in (1..=3).rev() {
        screen.borrow().show(&format!("{left} ..."));
        timers.sleep(Duration::from_millis(30)).await;
    }
    screen.borrow().answers
}

fn main() -> Result<(), Box<dyn Error>> {
    let (opened, answers, is_lit) = (Instant::now(), 0, false);
    let screen = Rc::new(RefCell::new(Screen { opened, answers, is_lit }));

    let looper = MessageLoop::prepare()?;
    let (ui, local) = (looper.runner(), looper.local_runner());
    let disk = LoopThread::spawn("disk")?;

    // A series: the cursor blinks every 20 ms until the window closes.
    let (cursor, every) = (Rc::clone(&screen), Period::fixed_rate(Duration::from_millis(20)));
    let blinking =
        local.schedule_periodic(Duration::ZERO, every, move || cursor.borrow_mut().blink())?;

    // A timeout that is cancelled, because the answers come in time.
    let late = ui.post_delayed(Duration::from_secs(5), || println!("the disk does not answer"))?;
    for folder in FOLDERS {
        ask(&disk.runner(), &local, folder, &screen)?;
    }

    // Runs when the loop has nothing else to do, until all answers are there.
    let shown = Rc::clone(&screen);
    looper.add_idle_handler(move || {
        if shown.borrow().answers < FOLDERS.len() {
            return ControlFlow::Continue(());
        }
        shown.borrow().show("(idle, and all answers are here)");
        assert!(late.cancel(), "cancelled, and its closure is dropped");
        ControlFlow::Break(())
    });

    // Futures: one sleeps; the other waits for it and then closes the window.
    let counts = local.spawn_local(count_down(Scheduler::new(), Rc::clone(&screen)))?;
    let (shown, closes) = (Rc::clone(&screen), ui.clone());
    local.spawn_local(async move {
        match counts.await {
            Ok(answers) => shown.borrow().show(&format!("{answers} answers: closing")),
            failed => shown.borrow().show(&format!("no count: {failed:?}")),
        }
        assert!(blinking.cancel());
        closes.quit();
    })?;

    looper.run();
    screen.borrow().show("closed");
    assert!(ui.post(|| ()).is_err(), "a loop that has quit gives tasks back");
    disk.runner().quit();
    disk.join().expect("the panics of tasks are caught");
    Ok(())
}
