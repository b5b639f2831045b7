//! How do I give a thread its own work, timers and replies? A user interface, of sorts: one thread owns
//! the screen, and nobody else touches it. Files are counted on another thread, and the answers come back.
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
use tickwheel::{Period, ScheduleExt};

const FOLDERS: [&str; 4] = ["src", "tests", "examples", "no such folder"];

/// What the screen shows. It is not `Send`: it belongs to the thread of the loop.
struct Screen {
    opened: Instant,
    lines: Vec<String>,
}

impl Screen {
    fn show(&mut self, line: String) {
        println!("{:>4} ms  {line}", self.opened.elapsed().as_millis());
        self.lines.push(line);
    }
}

/// Slow work, for the other thread: how many files are in a folder, and how long they are.
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

/// Asks the disk thread; the reply runs here, where the screen is.
fn ask(
    disk: &TaskRunner,
    local: &LocalTaskRunner,
    folder: &'static str,
    screen: &Rc<RefCell<Screen>>,
) -> Result<(), Box<dyn Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let screen = Rc::clone(screen);
    let show = move |found: std::io::Result<(usize, u64)>| {
        screen.borrow_mut().show(match found {
            Ok((files, bytes)) => format!("{folder}: {files} files, {bytes} bytes"),
            Err(error) => format!("{folder}: {error}"),
        });
    };
    let asked = local.post_and_reply(disk, move || measure(&path), show);
    asked.map_err(|refused| refused.reason().into())
}

fn main() -> Result<(), Box<dyn Error>> {
    let screen = Rc::new(RefCell::new(Screen { opened: Instant::now(), lines: Vec::new() }));

    let looper = MessageLoop::prepare()?;
    let (ui, local) = (looper.runner(), looper.local_runner());
    let disk = LoopThread::spawn("disk")?;

    // A timer: every 20 ms the cursor blinks, five times.
    let mut blinks = 0;
    let every = Period::fixed_rate(Duration::from_millis(20));
    ui.schedule_periodic(Duration::from_millis(20), every, move || {
        blinks += 1;
        println!("         {}", if blinks % 2 == 1 { "█" } else { "_" });
        if blinks == 5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;

    // A timeout that is called off, because the answer comes in time.
    let late = ui.post_delayed(Duration::from_secs(5), || println!("the disk does not answer"))?;

    for folder in FOLDERS {
        ask(&disk.runner(), &local, folder, &screen)?;
    }

    // Once nothing is to do: how far it is. When all have answered, the window closes.
    let (shown, closes) = (Rc::clone(&screen), ui.clone());
    let closing = local.clone();
    looper.add_idle_handler(move || {
        let answers = shown.borrow().lines.len();
        if answers < FOLDERS.len() {
            return ControlFlow::Continue(());
        }
        println!("         (idle, and all {answers} answers are here)");
        assert!(late.cancel(), "called off, and its closure is gone");
        close_soon(&closing, closes.clone());
        ControlFlow::Break(())
    });

    looper.run();
    println!("{:>4} ms  closed", screen.borrow().opened.elapsed().as_millis());
    assert!(ui.post(|| ()).is_err(), "a loop that has quit gives tasks back");
    disk.runner().quit();
    disk.join().expect("the panics of tasks are caught");
    Ok(())
}

/// Lets the cursor blink to its end.
fn close_soon(local: &LocalTaskRunner, ui: TaskRunner) {
    let posted = local.post_delayed(Duration::from_millis(120), move || ui.quit());
    posted.expect("the loop runs");
}
