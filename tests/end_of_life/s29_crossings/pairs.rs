//! Each promise beside each other one: a task in each place where it can wait, and then each two of the things that can
//! be done with it, in virtual time, against a few lines that say what becomes of it.

use super::*;
use crate::common::{for_each_seed, is_brief};

const MINUTE: Duration = Duration::from_secs(60);

/// Where the task is when the two things are done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the intake: nothing has turned since it was scheduled.
    Lane,
    Wheel,
    /// Its time has come, and nothing has turned since.
    Due,
    /// Its executor has refused it.
    Refused,
    /// Its executor has it, and has not started it.
    Kept,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Cancel,
    PutOff,
    /// To a time before the present deadline, or to now if that has come.
    BringForward,
    /// To a time that has passed.
    BringBack,
    Turn,
    /// The executor takes tasks again, and runs those that it has kept.
    Recover,
    /// The executor refuses from now on.
    Refuse,
    Close,
    /// A stop whose leftovers nobody takes.
    GiveUp,
    /// The leftover moves to another scheduler.
    Move,
    RunLeftover,
    DropLeftover,
}

use Place::*;
use Step::*;

const PLACES: [Place; 5] = [Lane, Wheel, Due, Refused, Kept];
const STEPS: [Step; 12] = [
    Cancel,
    PutOff,
    BringForward,
    BringBack,
    Turn,
    Recover,
    Refuse,
    Close,
    GiveUp,
    Move,
    RunLeftover,
    DropLeftover,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Pending,
    Returned,
    Moved,
    /// It has run, once.
    Ran,
    Cancelled,
    Dropped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Runs,
    Refuses,
    Keeps,
}

/// An executor in different moods, which looks at each task that it is offered.
#[derive(Clone)]
struct Desk {
    mood: Arc<Mutex<Mood>>,
    kept: Keeper,
    clock: ManualClock,
    early: Arc<Mutex<Vec<String>>>,
}

impl Executor for Desk {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        let early = task.deadline().saturating_duration_since(self.clock.now());
        if early > Duration::ZERO || !task.name().contains("pairs") {
            self.early.lock().unwrap().push(format!("{} was offered {early:?} early", task.name()));
        }
        let mood = *self.mood.lock().unwrap();
        match mood {
            Mood::Runs => task.run(),
            Mood::Refuses => return Err(Rejected::new(task)),
            Mood::Keeps => return self.kept.execute(task),
        }
        Ok(())
    }
}

/// One task, its two schedulers, and what should have become of it.
struct Cell {
    clock: ManualClock,
    desk: Desk,
    home: Scheduler,
    driver: Option<Driver>,
    there: (Scheduler, Driver),
    handle: Cancellable,
    runs: Arc<Mutex<Vec<Instant>>>,
    leftover: Option<PendingTask>,
    is_closed: bool,
    state: State,
    deadline: Instant,
    is_series: bool,
    /// The executor has it.
    is_kept: bool,
}

fn scheduler_of(clock: &ManualClock, executor: impl Executor) -> (Scheduler, Driver) {
    // A small wheel, because a debug build looks at all of it when it ends, thousands of times here.
    let builder =
        Scheduler::builder().clock(clock.clone()).precision(Precision::Exact).wheel_size(64);
    builder.max_pending(1).executor(executor).build_driven().unwrap()
}

impl Cell {
    /// `is_own`: the task has an executor of its own.
    fn new(place: Place, is_series: bool, is_own: bool) -> Cell {
        let (clock, kept) = (ManualClock::new(), Keeper::default());
        let mood = match place {
            Refused => Mood::Refuses,
            Kept => Mood::Keeps,
            _ => Mood::Runs,
        };
        let (mood, early) = (Arc::new(Mutex::new(mood)), Arc::default());
        let desk = Desk { mood, kept, clock: clock.clone(), early };
        let (home, driver) = if is_own {
            let (home, driver) = scheduler_of(&clock, Inline);
            (home.with_executor(desk.clone()), driver)
        } else {
            scheduler_of(&clock, desk.clone())
        };
        let there = scheduler_of(&clock, Inline);
        let runs: Arc<Mutex<Vec<Instant>>> = Arc::default();
        let (noted, time) = (Arc::clone(&runs), clock.clone());
        let run = move || noted.lock().unwrap().push(time.now());
        let deadline = clock.now() + MINUTE;
        let handle = if is_series {
            let run = move || {
                run();
                ControlFlow::<()>::Break(())
            };
            home.schedule_repeatedly(MINUTE, HOUR, run).unwrap()
        } else {
            home.schedule_once(MINUTE, run).unwrap()
        };
        if place == Wheel {
            driver.turn();
        } else if place != Lane {
            clock.advance(2 * MINUTE);
        }
        if place == Refused || place == Kept {
            driver.turn();
        }
        Cell {
            is_kept: place == Kept,
            clock,
            desk,
            home,
            driver: Some(driver),
            there,
            handle,
            runs,
            leftover: None,
            is_closed: false,
            state: State::Pending,
            deadline,
            is_series,
        }
    }

    /// What a turn does with the task.
    fn turned(&mut self) {
        let is_due = self.deadline <= self.clock.now();
        if self.state == State::Pending && is_due && !self.is_kept {
            let mood = *self.desk.mood.lock().unwrap();
            match mood {
                Mood::Runs => self.state = State::Ran,
                Mood::Refuses => {}
                Mood::Keeps => self.is_kept = true,
            }
        }
    }

    fn reset(&mut self, to: Instant) {
        let moves = matches!(self.state, State::Pending | State::Returned | State::Moved);
        assert_eq!(self.handle.reset_at(to), moves, "reset_at");
        if moves {
            // A series is moved to now at the earliest.
            self.deadline = if self.is_series { to.max(self.clock.now()) } else { to };
        }
    }

    fn close(&mut self) {
        let Some(driver) = self.driver.take() else { return };
        let mut leftovers = driver.close().into_iter();
        self.leftover = leftovers.next();
        assert!(leftovers.next().is_none());
        assert_eq!(self.leftover.is_some(), self.state == State::Pending, "a leftover");
        if self.state == State::Pending {
            self.state = State::Returned;
        }
        self.is_closed = true;
    }

    fn step(&mut self, step: Step) {
        let now = self.clock.now();
        match step {
            Cancel => {
                let wins = matches!(self.state, State::Pending | State::Returned | State::Moved);
                assert_eq!(self.handle.cancel(), wins, "cancel");
                if wins {
                    self.state = State::Cancelled;
                }
            }
            PutOff => self.reset(now + HOUR),
            BringForward => self.reset(now + MILLI),
            BringBack => self.reset(now.checked_sub(SECOND).unwrap()),
            Turn => {
                self.driver.iter().for_each(|driver| _ = driver.turn());
                self.turned();
            }
            Refuse => *self.desk.mood.lock().unwrap() = Mood::Refuses,
            Recover => {
                *self.desk.mood.lock().unwrap() = Mood::Runs;
                let kept: Vec<_> = self.desk.kept.0.lock().unwrap().drain(..).collect();
                kept.into_iter().for_each(DueTask::run);
                if self.is_kept && self.state == State::Pending && self.deadline <= now {
                    self.state = State::Ran;
                }
                self.is_kept = false;
                // Longer than the longest pause of an executor that has refused.
                match &self.driver {
                    Some(driver) => _ = driver.advance(200 * MILLI),
                    None => self.clock.advance(200 * MILLI),
                }
                self.turned();
            }
            Close => self.close(),
            GiveUp => {
                drop(self.home.stop());
                self.driver.iter().for_each(|driver| _ = driver.turn());
                if self.state == State::Pending {
                    self.state = State::Dropped;
                }
                self.is_closed = true;
                self.close();
            }
            Move => {
                let Some(leftover) = self.leftover.take() else { return };
                let moved = leftover.reschedule(&self.there.0);
                if self.state == State::Returned {
                    assert_eq!(moved.unwrap(), self.handle, "the same task");
                    self.state = State::Moved;
                    self.deadline = self.deadline.max(now); // what remains of its delay goes along
                }
            }
            RunLeftover => {
                let Some(leftover) = self.leftover.take() else { return };
                leftover.run();
                if self.state == State::Returned {
                    self.state = State::Ran;
                }
            }
            DropLeftover => {
                let Some(leftover) = self.leftover.take() else { return };
                drop(leftover);
                if self.state == State::Returned {
                    self.state = State::Dropped;
                }
            }
        }
        self.check();
    }

    fn check(&self) {
        let state = self.state;
        assert_eq!(*self.desk.early.lock().unwrap(), Vec::<String>::new(), "S28, S31");
        let ran = self.runs.lock().unwrap().len();
        assert_eq!(ran, usize::from(state == State::Ran), "runs, {state:?}");
        let is_alive = matches!(state, State::Pending | State::Returned | State::Moved);
        assert_eq!(
            (self.handle.is_done(), self.handle.is_cancelled()),
            (!is_alive, state == State::Cancelled)
        );
        assert_eq!(self.handle.deadline(), is_alive.then_some(self.deadline), "its deadline");
        let pending = (self.home.pending(), self.there.0.pending());
        let expected = (state == State::Pending, state == State::Moved);
        assert_eq!(pending, (usize::from(expected.0), usize::from(expected.1)), "pending");
        if let Some(leftover) = self.leftover.as_ref().filter(|_| state == State::Returned) {
            assert!(leftover.name().contains("pairs"), "S31: {}", leftover.name());
            assert_eq!(leftover.deadline(), self.deadline, "of the leftover");
        }
        if let Some(driver) = self.driver.as_ref().filter(|_| !self.is_closed && !self.is_kept) {
            let next = (state == State::Pending).then_some(self.deadline);
            assert_eq!(driver.next_deadline(), next, "the next deadline");
        }
        let more = self.home.schedule_once(HOUR, || ()).map(|other| assert!(other.cancel()));
        let reason = match state {
            _ if self.is_closed => Err(ScheduleError::Closed),
            State::Pending => Err(ScheduleError::Full),
            _ => Ok(()),
        };
        assert_eq!(more, reason, "S25, S23");
    }

    /// Whatever was done, everybody goes on for a while, and then each task has ended.
    fn end(mut self) {
        self.step(Recover);
        if let Some(driver) = &self.driver {
            driver.advance(3 * HOUR);
        } else {
            self.clock.advance(3 * HOUR);
        }
        self.there.1.turn();
        if matches!(self.state, State::Pending | State::Moved) {
            self.state = State::Ran;
            let ran = *self.runs.lock().unwrap().first().expect("it runs in the end");
            assert!(ran >= self.deadline, "S1: {:?} early", self.deadline.duration_since(ran));
        }
        self.check();
        if self.state == State::Returned {
            drop(self.leftover.take());
            assert!(self.handle.is_done());
        }
    }
}

/// Does these things with a task that waits there.
fn walk(place: Place, is_series: bool, is_own: bool, steps: &[Step]) {
    let walked = std::panic::catch_unwind(|| {
        let mut cell = Cell::new(place, is_series, is_own);
        cell.check();
        steps.iter().for_each(|step| cell.step(*step));
        cell.end();
    });
    assert!(walked.is_ok(), "{place:?}, series {is_series}, own executor {is_own}: {steps:?}");
}

#[test]
fn s01_s31_what_becomes_of_a_task_in_each_place_when_two_things_are_done_with_it() {
    let mut cells = 0;
    // In plain `cargo test` half of them: one-shots of the scheduler's executor, and series of their own.
    let kinds = if is_brief() { vec![0, 3] } else { vec![0, 1, 2, 3] };
    for (place, kind) in
        PLACES.into_iter().flat_map(|place| kinds.iter().map(move |kind| (place, kind)))
    {
        let (is_series, is_own) = (kind % 2 > 0, kind / 2 > 0);
        for (first, second) in
            STEPS.into_iter().flat_map(|first| STEPS.map(|second| (first, second)))
        {
            walk(place, is_series, is_own, &[first, second]);
            walk(place, is_series, is_own, &[first, Close, second]);
            cells += 2;
        }
    }
    assert_eq!(cells, 5 * kinds.len() * 12 * 12 * 2);
}

/// More than two things. `TICKWHEEL_SEED=n` repeats one walk, `TICKWHEEL_RUNS=n` makes so many.
#[test]
fn s01_s31_what_becomes_of_a_task_on_random_walks() {
    for_each_seed(1_000, 1, |seed| {
        let mut random = crate::common::Random(seed);
        let place = PLACES[random.below(5) as usize];
        let (is_series, is_own) = (random.one_in(2), random.one_in(2));
        let steps: Vec<_> =
            (0..3 + random.below(6)).map(|_| STEPS[random.below(12) as usize]).collect();
        walk(place, is_series, is_own, &steps);
    });
}
