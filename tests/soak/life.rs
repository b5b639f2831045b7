//! A life: threads that schedule, move and cancel on one `dyn Schedule`, and tasks that do the same from inside.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use tickwheel::{
    Cancellable, Clock, DueTask, Executor, MissedTicks, Period, Rejected, Schedule, ScheduleError,
};

use crate::book::{Book, Held, Kind, Page, Record, lock};
use crate::common::{PATIENCE, Random, panic_on_purpose};

/// What one life does and another one does not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    /// The threads that act, beside those of the layer.
    pub(crate) actors: u64,
    /// How often an actor changes the number of tasks.
    pub(crate) phases: u64,
    /// The most tasks.
    pub(crate) crowd: u64,
    /// The longest usual delay.
    pub(crate) delay: Duration,
    /// Tasks, and destructors of closures, panic now and then.
    pub(crate) panics: bool,
    /// No two tasks may run at a time.
    pub(crate) one_at_a_time: bool,
    /// Tasks hold what they are scheduled on.
    pub(crate) tasks_hold_it: bool,
}

impl Habits {
    pub(crate) fn draw(random: &mut Random) -> Habits {
        Habits {
            actors: 1 + random.below(3),
            phases: 1 + random.below(8),
            crowd: [20, 300, 1_500, 5_000][random.below(4) as usize],
            delay: Duration::from_micros([1, 300, 3_000, 20_000][random.below(4) as usize]),
            panics: random.one_in(2),
            one_at_a_time: false,
            tasks_hold_it: random.one_in(3),
        }
    }
}

/// A call that only this layer has, from an actor or from a task.
pub(crate) type Extra = Box<dyn Fn(&mut Random) + Send + Sync>;

pub(crate) struct Life {
    pub(crate) book: Arc<Book>,
    pub(crate) habits: Habits,
    clock: Arc<dyn Clock>,
    schedule: Mutex<Option<Arc<dyn Schedule>>>,
    handles: Mutex<Vec<Held>>,
    extra: Extra,
    busy: AtomicBool,
    /// No more tasks are scheduled.
    is_over: AtomicBool,
    seed: u64,
}

impl Life {
    pub(crate) fn new(
        seed: u64,
        habits: Habits,
        clock: impl Clock,
        schedule: impl Schedule + 'static,
        book: &Arc<Book>,
        extra: Extra,
    ) -> Arc<Life> {
        Arc::new(Life {
            book: Arc::clone(book),
            habits,
            clock: Arc::new(clock),
            schedule: Mutex::new(Some(Arc::new(schedule))),
            handles: Mutex::default(),
            extra,
            busy: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            seed,
        })
    }

    fn schedule(&self) -> Option<Arc<dyn Schedule>> {
        lock(&self.schedule).clone()
    }

    /// Drops the handle to what it schedules on.
    pub(crate) fn let_go(&self) {
        let schedule = lock(&self.schedule).take();
        drop(schedule);
    }

    pub(crate) fn take_handles(&self) -> Vec<Held> {
        std::mem::take(&mut *lock(&self.handles))
    }

    // ----- the actors ----------------------------------------------------------------------

    /// Lets the actors act, and calls `beside` again and again until they have ended; also when one panics.
    pub(crate) fn go_on(self: &Arc<Self>, mut beside: impl FnMut()) {
        thread::scope(|scope| {
            let actors: Vec<_> =
                (0..self.habits.actors).map(|actor| scope.spawn(move || self.act(actor))).collect();
            while !actors.iter().all(thread::ScopedJoinHandle::is_finished) {
                beside();
            }
        });
    }

    fn act(self: &Arc<Self>, actor: u64) {
        let mut random = Random(self.seed ^ (actor + 1) << 40);
        for _ in 0..self.habits.phases {
            let goal = random.below(4) * self.habits.crowd / 3;
            // What is full or closed may stay so, and accepts nothing.
            let mut tries = 2 * self.habits.crowd;
            while lock(&self.handles).len() < goal as usize && tries > 0 && !self.is_over() {
                tries -= 1;
                self.schedule_one(&mut random);
                if random.one_in(6) {
                    self.meddle(&mut random);
                }
            }
            while lock(&self.handles).len() > goal as usize && !self.is_over() {
                self.cancel_one(&mut random);
                if random.one_in(6) {
                    self.meddle(&mut random);
                }
            }
            (self.extra)(&mut random);
            if random.one_in(3) {
                thread::sleep(Duration::from_micros(random.below(2_000))); // so that the others get on, and go to sleep
            }
        }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(SeqCst)
    }

    fn meddle(self: &Arc<Self>, random: &mut Random) {
        match random.below(8) {
            0..3 => self.reset_one(random),
            3 => self.cancel_a_clone(random),
            4 => self.look_at_one(random),
            5 if random.one_in(20) => (self.extra)(random),
            6 => thread::yield_now(),
            _ => {}
        }
    }

    /// Takes a handle out, so that nobody else moves its task.
    fn some_handle(&self, random: &mut Random) -> Option<Held> {
        let mut handles = lock(&self.handles);
        let at = random.below(handles.len().max(1) as u64) as usize;
        (!handles.is_empty()).then(|| handles.swap_remove(at))
    }

    fn cancel_one(&self, random: &mut Random) {
        if let Some(held) = self.some_handle(random) {
            self.book.cancel(&held);
            self.book.check(!held.handle.cancel(), &held.record, "cancelled twice");
        }
    }

    fn cancel_a_clone(&self, random: &mut Random) {
        let handles = lock(&self.handles);
        let held = handles.get(random.below(handles.len().max(1) as u64) as usize).cloned();
        drop(handles);
        held.inspect(|held| _ = self.book.cancel(held));
    }

    fn reset_one(&self, random: &mut Random) {
        if let Some(held) = self.some_handle(random) {
            let delay = self.some_delay(random);
            Book::reset(&held, self.clock.now(), delay, random.one_in(2));
            lock(&self.handles).push(held);
        }
    }

    fn look_at_one(&self, random: &mut Random) {
        if let Some(held) = self.some_handle(random) {
            self.book.look(&held);
            lock(&self.handles).push(held);
        }
    }

    fn some_delay(&self, random: &mut Random) -> Duration {
        let nanos = 1 + self.habits.delay.as_nanos() as u64;
        match random.below(16) {
            0..3 => Duration::ZERO,
            3 => Duration::from_nanos(random.of_any_size(40)),
            4 => Duration::MAX,
            5..8 => Duration::from_secs(3_600 + random.below(3_600)),
            _ => Duration::from_nanos(random.below(nanos)),
        }
    }

    // ----- tasks ---------------------------------------------------------------------------

    fn schedule_one(self: &Arc<Self>, random: &mut Random) {
        let Some(schedule) = self.schedule() else { return };
        let (delay, now) = (self.some_delay(random), self.clock.now());
        let deadline = now.checked_add(delay);
        let kind = if random.one_in(10) { Kind::Series } else { Kind::Once };
        let blasts = self.habits.panics && random.one_in(50);
        let never = Duration::from_secs(1 << 30);
        let page = self.book.open(kind, deadline.unwrap_or(now + never), blasts);
        let record = Arc::clone(&page.record);
        let by_instant = deadline.filter(|_| kind == Kind::Once && random.one_in(3));
        let given = self.book.calmly(|| match (kind, by_instant) {
            (Kind::Once, None) => schedule.schedule_task(delay, self.once(page)),
            (Kind::Once, Some(at)) => schedule.schedule_task_at(at, self.once(page)),
            (Kind::Series, _) => self.schedule_series(&*schedule, delay, page, random),
        });
        self.keep(record, given);
    }

    /// Keeps a handle, or notes that the task was refused. `None` if the call has panicked, because a closure that is
    /// refused belongs to the caller, and so does the panic of its drop.
    pub(crate) fn keep(
        &self,
        record: Arc<Record>,
        given: Option<Result<Cancellable, ScheduleError>>,
    ) {
        match given {
            Some(Ok(handle)) => lock(&self.handles).push(Held { record, handle }),
            Some(Err(ScheduleError::Closed | ScheduleError::Full)) | None => {
                Page::refused(&record);
                self.book.check(record.is_dropped(), &record, "refused, and not dropped");
            }
            Some(Err(other)) => self.book.fault(format!("refused: {other}")),
        }
    }

    fn once(self: &Arc<Self>, page: Page) -> Box<dyn FnOnce() + Send> {
        let (life, clock, hold) = self.captured();
        Box::new(move || {
            let _hold = hold;
            let _running = page.begin(clock.now());
            life.upgrade().inspect(|life| life.in_a_run(&page));
        })
    }

    fn schedule_series(
        self: &Arc<Self>,
        schedule: &dyn Schedule,
        initial: Duration,
        page: Page,
        random: &mut Random,
    ) -> Result<Cancellable, ScheduleError> {
        let (life, clock, hold) = self.captured();
        let length = Duration::from_nanos(1_000 + random.of_any_size(24));
        let missed = [MissedTicks::Burst, MissedTicks::Skip, MissedTicks::Delay];
        let is_gap = random.one_in(2);
        let period = if is_gap {
            Period::fixed_delay(length)
        } else {
            Period::fixed_rate(length).missed(missed[random.below(3) as usize])
        };
        let last = 1 + random.below(30) as u32;
        schedule.schedule_series(
            initial,
            period,
            Box::new(move || {
                let (_, now) = (&hold, clock.now());
                let _running = page.begin(now);
                page.plan(|planned| if is_gap { now } else { planned } + length);
                life.upgrade().inspect(|life| life.in_a_run(&page));
                if page.record.runs() < last {
                    return ControlFlow::Continue(());
                }
                page.record.end_itself();
                ControlFlow::Break(())
            }),
        )
    }

    #[expect(clippy::type_complexity, reason = "what a task captures, beside its page")]
    fn captured(self: &Arc<Self>) -> (Weak<Life>, Arc<dyn Clock>, Option<Arc<dyn Schedule>>) {
        let hold = self.schedule().filter(|_| self.habits.tasks_hold_it);
        (Arc::downgrade(self), Arc::clone(&self.clock), hold)
    }

    fn in_a_run(self: &Arc<Self>, page: &Page) {
        let record = &page.record;
        let mut random = Random(self.seed ^ (record.id as u64) << 20 ^ u64::from(record.runs()));
        let is_alone = !self.habits.one_at_a_time || !self.busy.swap(true, SeqCst);
        self.book.check(is_alone, record, "two tasks at a time");
        match random.below(40) {
            0..3 if !self.is_over() => self.schedule_one(&mut random),
            3 => self.cancel_a_clone(&mut random),
            4..6 => self.meddle(&mut random),
            6 => thread::yield_now(),
            _ => {}
        }
        self.busy.store(false, SeqCst);
        if self.habits.panics && random.one_in(60) {
            record.end_itself();
            panic_on_purpose();
        }
    }

    // ----- the end -------------------------------------------------------------------------

    /// Lets no more tasks come.
    pub(crate) fn call_it_a_day(&self) {
        self.is_over.store(true, SeqCst);
    }

    /// Cancels the tasks that would last too long, and waits until there is no task any more. Calls `beside` in between.
    pub(crate) fn drain(&self, pending: impl Fn() -> usize, mut beside: impl FnMut()) {
        self.call_it_a_day();
        let start = Instant::now();
        while pending() > 0 && !self.book.has_faults() {
            let handles = self.take_handles();
            handles.iter().for_each(|held| _ = self.book.cancel(held));
            beside();
            thread::yield_now();
            assert!(start.elapsed() < PATIENCE, "{} tasks stay pending", pending());
        }
    }
}

// ----- an executor with moods --------------------------------------------------------------

/// An executor that runs, refuses, keeps, drops tasks, or panics. Its mood is changed from outside.
#[derive(Clone, Default)]
pub(crate) struct Moody(Arc<Moods>);

#[derive(Default)]
struct Moods {
    mood: AtomicUsize,
    offers: AtomicUsize,
    kept: Mutex<Vec<DueTask>>,
}

impl Moody {
    pub(crate) fn change(&self, random: &mut Random) {
        // To run is the usual mood, so that a life gets on.
        self.0.mood.store([0, 0, 0, 1, 2, 3, 4, 5][random.below(8) as usize], SeqCst);
        self.run_kept();
    }

    pub(crate) fn calm_down(&self) {
        self.0.mood.store(0, SeqCst);
        self.run_kept();
    }

    fn run_kept(&self) {
        let kept = std::mem::take(&mut *lock(&self.0.kept));
        kept.into_iter().for_each(DueTask::run);
    }
}

impl Executor for Moody {
    fn execute(&self, task: DueTask) -> Result<(), Rejected> {
        let offer = self.0.offers.fetch_add(1, SeqCst);
        match self.0.mood.load(SeqCst) {
            1 => return Err(Rejected::new(task)),
            2 if offer % 3 > 0 => return Err(Rejected::new(task)),
            3 if offer % 7 == 0 => panic_on_purpose(),
            4 if offer % 5 == 0 => drop(task),
            5 => lock(&self.0.kept).push(task),
            _ => task.run(),
        }
        Ok(())
    }
}
