//! How do I turn a message loop from a loop that I have already? A game draws sixty frames a second. The time that is
//! left between two frames goes to the message loop, and a thread that loads resources posts to it.
//!
//! The frame loop waits on a channel: until its next frame, or until the message loop's waker says that a task can run
//! at once. A reactor such as `mio` has a `Waker` for the same purpose.
//!
//! `cargo run --example embedded_loop`

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::message_loop::{MessageLoop, Next, TaskRunner};

const FRAME: Duration = Duration::from_micros(16_667);
const FRAMES: u32 = 24;

/// Tells the frame loop that the message loop wants a turn.
struct WantsTurn(SyncSender<()>);

impl Wake for WantsTurn {
    fn wake(self: Arc<Self>) {
        _ = self.0.try_send(()); // a full channel holds a wake-up already
    }
}

/// Turns the message loop until `end`, and waits when it has nothing to do. Returns the number of turns, and true if
/// the loop has quit.
fn turn_until(end: Instant, looper: &MessageLoop, rings: &Receiver<()>) -> (u32, bool) {
    let mut turns = 0;
    loop {
        turns += 1;
        let until = match looper.turn() {
            Next::Now => Instant::now(),
            Next::At(at) => at.min(end),
            Next::Idle => end,
            Next::Quit => return (turns, true),
        };
        if Instant::now() >= end {
            return (turns, false);
        }
        _ = rings.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

/// Loads resources on a thread of its own, and posts each to the game as soon as it is loaded.
fn load(game: TaskRunner) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        for (name, takes) in [("sky", 40), ("trees", 90), ("music", 60)] {
            thread::sleep(Duration::from_millis(takes));
            let loaded = Instant::now();
            let shown =
                move || println!("  {name} is here, {:?} after it was loaded", loaded.elapsed());
            if game.post(shown).is_err() {
                return; // the game is over
            }
        }
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let (ring, rings) = sync_channel(1);
    let waker = Waker::from(Arc::new(WantsTurn(ring)));
    let looper = MessageLoop::builder().wake_with(waker).prepare()?;
    let loader = load(looper.runner());

    // A spell that wears off: a task of this thread, which may capture values that are not `Send`.
    let is_invisible = Rc::new(Cell::new(true));
    let spell = Rc::clone(&is_invisible);
    looper.local_runner().post_delayed(Duration::from_millis(250), move || {
        spell.set(false);
        println!("  the spell wears off");
    })?;

    let start = Instant::now();
    for frame in 1..=FRAMES {
        let hero = if is_invisible.get() { '.' } else { '@' };
        let at = frame as usize;
        println!("{:>3} ms  {}{hero}", start.elapsed().as_millis(), " ".repeat(at));
        if frame == FRAMES {
            looper.runner().quit_safely(); // tasks that are due still run
        }
        let (turns, has_quit) = turn_until(start + FRAME * frame, &looper, &rings);
        if has_quit {
            println!("the loop has quit after {turns} turns of the last frame");
        }
    }
    loader.join().expect("it does not panic");
    Ok(())
}
