//! What does a scheduler do? This shows a running one in the terminal: its wheel as it turns, how many tasks are
//! pending, how many run, and how late they are.
//!
//! ```text
//! cargo run --release -p tickwheel-demos --bin dashboard                  q or Esc ends it
//! cargo run --release -p tickwheel-demos --bin dashboard -- --frames 40   draws forty frames, and prints the last
//! ```
//!
//! Keys change the load. It needs a terminal of 80 columns and 24 lines, and no colours.

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a picture is not that exact"
)]

mod load;
mod view;
mod watch;

use std::error::Error;
use std::time::{Duration, Instant};
use std::{env, io, process};

use ratatui::Terminal;
use ratatui::backend::{Backend, TestBackend};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tickwheel::{Inline, Scheduler};

use load::Load;
use view::draw;
use watch::{Watch, Watcher};

/// The buckets of the wheel. With ticks of a millisecond it turns once a second.
const BUCKETS: usize = 1024;
/// The time between two frames.
const FRAME: Duration = Duration::from_millis(50);

const USAGE: &str = "\
usage: dashboard [--frames N]
  --frames N   draws N frames into a terminal of 80 x 24 that is not there, and prints the last";

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        process::exit(1);
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next(), arguments.next()) {
        (None, ..) => on_the_terminal(),
        (Some("--frames"), Some(frames), None) => {
            let frames = frames.parse().map_err(|_| format!("{frames} is no number\n{USAGE}"))?;
            on_paper(frames)
        }
        _ => Err(USAGE.into()),
    }
}

/// The scheduler, its observer, and its load.
struct Scene {
    watch: Watch,
    load: Load,
}

impl Scene {
    fn new() -> Result<Scene, Box<dyn Error>> {
        let watcher = Watcher::default();
        let scheduler = Scheduler::builder()
            .executor(Inline)
            .wheel_size(BUCKETS)
            .observer(watcher.clone())
            .build()?;
        Ok(Scene { load: Load::new(scheduler.clone()), watch: Watch::new(scheduler, watcher) })
    }

    /// Goes on by one frame: applies the load of that time, and reads the counters.
    fn step(&mut self, since_last: Duration) {
        self.load.run_for(since_last);
        self.watch.look(since_last);
    }
}

/// Draws on the terminal until a key ends it. `ratatui::init` restores the terminal after a panic, and the end of this
/// function restores it otherwise.
fn on_the_terminal() -> Result<(), Box<dyn Error>> {
    let mut scene = Scene::new()?;
    let mut terminal = ratatui::try_init().map_err(|error| {
        format!("there is no terminal to draw on ({error}): try `--frames 40`\n{USAGE}")
    })?;
    let ended = play(&mut terminal, &mut scene);
    ratatui::restore();
    Ok(ended?)
}

fn play<B: Backend>(terminal: &mut Terminal<B>, scene: &mut Scene) -> io::Result<()> {
    let mut last = Instant::now();
    loop {
        let wait = FRAME.saturating_sub(last.elapsed());
        if event::poll(wait)? {
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => {
                    let is_interrupt = key.modifiers.contains(KeyModifiers::CONTROL)
                        && key.code == KeyCode::Char('c');
                    if is_interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                        return Ok(());
                    }
                    scene.load.key(key.code);
                }
                _ => {}
            }
        }
        let since_last = last.elapsed();
        if since_last >= FRAME {
            last = Instant::now();
            scene.step(since_last);
            terminal.draw(|frame| draw(frame, &scene.watch, &scene.load))?;
        }
    }
}

/// Draws into memory instead of a terminal, and prints the last frame. For tests, and for a look without a terminal.
fn on_paper(frames: usize) -> Result<(), Box<dyn Error>> {
    let mut scene = Scene::new()?;
    let mut terminal = Terminal::new(TestBackend::new(80, 24))?;
    let mut last = Instant::now();
    for _ in 0..frames {
        std::thread::sleep(FRAME.saturating_sub(last.elapsed()));
        let since_last = last.elapsed();
        last = Instant::now();
        scene.step(since_last);
        terminal.draw(|frame| draw(frame, &scene.watch, &scene.load))?;
    }
    let buffer = terminal.backend().buffer();
    for line in buffer.content().chunks(usize::from(buffer.area.width)) {
        let line: String = line.iter().map(ratatui::buffer::Cell::symbol).collect();
        println!("{}", line.trim_end());
    }
    Ok(())
}
