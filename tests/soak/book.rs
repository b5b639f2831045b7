//! The book of a life: a record of each task, and what is wrong with it.
//!
//! A task captures a [`Page`]. The page writes into the record of its task: the runs, and the drop of the closure. The caller
//! writes the rest: a cancel that won, a refusal, a return. Tasks run where a panic is caught, so a fault is noted, and
//! [`Book::settle`] tells it.
//!
//! - A one-shot that was accepted runs once, or was cancelled, returned or dropped. It never does two of these.
//! - Nothing starts before its deadline, by the clock of the layer, until leftovers are run.
//! - BOOK-3 After a cancel has won, nothing starts, and the closure is dropped.
//! - In the end each closure is dropped, each handle is done, and a handle is cancelled if a cancel has won.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tickwheel::{Cancellable, TaskPanic};

use crate::common::{panic_on_purpose, until};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Once,
    Series,
}

#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) id: usize,
    pub(crate) kind: Kind,
    /// Nothing may start before that. `None` for a series that was moved: the run before may still begin to write.
    not_before: Mutex<Option<Instant>>,
    runs: AtomicU32,
    is_running: AtomicBool,
    is_cancelled: AtomicBool,
    runs_after_cancel: AtomicU32,
    is_refused: AtomicBool,
    /// It has broken its series, or panicked.
    has_ended_itself: AtomicBool,
    is_dropped: AtomicBool,
}

impl Record {
    pub(crate) fn runs(&self) -> u32 {
        self.runs.load(SeqCst)
    }

    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused.load(SeqCst)
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(SeqCst)
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.is_dropped.load(SeqCst)
    }

    pub(crate) fn end_itself(&self) {
        self.has_ended_itself.store(true, SeqCst);
    }

    /// Returns true if it was accepted, and was dropped before its run, or before the end of its series.
    pub(crate) fn was_dropped_early(&self) -> bool {
        let has_ended = match self.kind {
            Kind::Once => self.runs() > 0,
            Kind::Series => self.has_ended_itself.load(SeqCst),
        };
        !has_ended && !self.is_cancelled() && !self.is_refused()
    }
}

/// A task whose handle is known.
#[derive(Clone)]
pub(crate) struct Held {
    pub(crate) record: Arc<Record>,
    pub(crate) handle: Cancellable,
}

#[derive(Default)]
pub(crate) struct Book {
    records: Mutex<Vec<Arc<Record>>>,
    faults: Mutex<Vec<String>>,
    /// How many closures there are.
    pub(crate) alive: AtomicUsize,
    /// Leftovers are run, at any time.
    is_timeless: AtomicBool,
}

impl Book {
    /// Opens a page for a task that is about to be scheduled.
    pub(crate) fn open(self: &Arc<Self>, kind: Kind, not_before: Instant, blasts: bool) -> Page {
        let mut records = lock(&self.records);
        let record = Arc::new(Record {
            id: records.len(),
            kind,
            not_before: Mutex::new(Some(not_before)),
            runs: AtomicU32::new(0),
            is_running: AtomicBool::new(false),
            is_cancelled: AtomicBool::new(false),
            runs_after_cancel: AtomicU32::new(0),
            is_refused: AtomicBool::new(false),
            has_ended_itself: AtomicBool::new(false),
            is_dropped: AtomicBool::new(false),
        });
        records.push(Arc::clone(&record));
        self.alive.fetch_add(1, SeqCst);
        Page { record, book: Arc::clone(self), blasts }
    }

    pub(crate) fn fault(&self, text: String) {
        let mut faults = lock(&self.faults);
        if faults.len() < 10 {
            faults.push(text);
        }
    }

    /// From now on tasks may be run before their deadlines.
    pub(crate) fn forget_time(&self) {
        self.is_timeless.store(true, SeqCst);
    }

    /// Notes a fault unless it is so.
    pub(crate) fn check(&self, is_so: bool, record: &Record, what: &str) {
        if !is_so {
            self.fault(format!("{what}: {record:?}"));
        }
    }

    /// Notes the panic of a task, a hook or a destructor, unless it was on purpose.
    pub(crate) fn hear(&self, panic: &TaskPanic<'_>) {
        let text = panic.message().unwrap_or("no text");
        if !text.contains("on purpose") {
            self.fault(format!("a panic of {}: {text}", panic.name()));
        }
    }

    /// Calls something that may drop a closure on this thread, and catches the panics that are on purpose.
    pub(crate) fn calmly<R>(&self, call: impl FnOnce() -> R) -> Option<R> {
        let called = catch_unwind(AssertUnwindSafe(call));
        called.map_err(|panic| self.hear(&TaskPanic::new(&*panic))).ok()
    }

    // ----- what callers do -----------------------------------------------------------------

    /// Cancels a task, and checks the answer (BOOK-3).
    pub(crate) fn cancel(&self, held: &Held) -> bool {
        let Held { record, handle } = held;
        let has_won = handle.cancel();
        if has_won {
            let is_second = record.is_cancelled.swap(true, SeqCst);
            self.check(!is_second, record, "two cancels have won");
            self.check(
                handle.is_cancelled() && handle.is_done(),
                record,
                "cancelled, and not told",
            );
            if record.kind == Kind::Once {
                self.check(record.runs() == 0, record, "cancelled, and has run");
                self.check(record.is_dropped(), record, "cancelled, and not dropped");
            }
        }
        has_won
    }

    /// Moves a task. Nobody else moves it at the same time.
    pub(crate) fn reset(held: &Held, now: Instant, delay: Duration, as_instant: bool) {
        let Held { record, handle } = held;
        let Some(deadline) = now.checked_add(delay) else { return };
        let before = *lock(&record.not_before);
        let earlier = before.map(|before| before.min(deadline));
        *lock(&record.not_before) = if record.kind == Kind::Once { earlier } else { None };
        let has_moved = if as_instant { handle.reset_at(deadline) } else { handle.reset(delay) };
        if record.kind == Kind::Once && has_moved {
            *lock(&record.not_before) = Some(deadline);
        }
    }

    /// Looks at a handle without changing anything.
    pub(crate) fn look(&self, held: &Held) {
        let Held { record, handle } = held;
        let was_cancelled = record.is_cancelled();
        let is_over = handle.is_done();
        let (_, deadline) = (handle.is_cancelled(), handle.deadline());
        self.check(!was_cancelled || is_over, record, "cancelled, and not done");
        self.check(!is_over || handle.deadline().is_none(), record, "done, and has a deadline");
        if is_over {
            self.check(!handle.reset(Duration::ZERO), record, "done, and was moved");
            self.check(!handle.cancel(), record, "done, and was cancelled");
        }
        let _ = (deadline, format!("{handle:?}"));
    }

    // ----- the end -------------------------------------------------------------------------

    /// Waits until each closure is dropped, and checks all records and the handles that are left. Returns how many tasks
    /// were dropped early, by whomever.
    pub(crate) fn settle(&self, held: &[Held]) -> usize {
        until("the drop of each closure", || self.alive.load(SeqCst) == 0 || self.has_faults());
        let records = std::mem::take(&mut *lock(&self.records));
        for record in &records {
            let may_run = !record.is_refused();
            self.check(may_run || record.runs() == 0, record, "refused, and has run");
            self.check(may_run || !record.is_cancelled(), record, "refused, and cancelled");
            self.check(record.is_dropped(), record, "not dropped");
            if record.kind == Kind::Once {
                let runs = record.runs() + u32::from(record.is_cancelled());
                self.check(runs <= 1, record, "two ends");
            }
        }
        for held in held {
            let Held { record, handle } = held;
            let mut is_done = handle.is_done();
            if !is_done && !self.has_faults() {
                until("the handle's end", || handle.is_done());
                is_done = true;
            }
            self.check(is_done, record, "over, and not done");
            self.check(
                !record.is_cancelled() || handle.is_cancelled(),
                record,
                "cancelled, not told",
            );
            let has_run = record.kind == Kind::Once && record.runs() > 0;
            self.check(!has_run || !handle.is_cancelled(), record, "has run, and says cancelled");
            self.look(held);
        }
        self.tell();
        records.iter().filter(|record| record.was_dropped_early()).count()
    }

    pub(crate) fn count(&self, what: impl Fn(&Record) -> bool) -> usize {
        lock(&self.records).iter().filter(|record| what(record)).count()
    }

    pub(crate) fn has_faults(&self) -> bool {
        !lock(&self.faults).is_empty()
    }

    /// Panics if there was a fault.
    pub(crate) fn tell(&self) {
        let faults = std::mem::take(&mut *lock(&self.faults));
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }
}

/// What a task captures.
pub(crate) struct Page {
    pub(crate) record: Arc<Record>,
    pub(crate) book: Arc<Book>,
    blasts: bool,
}

impl Page {
    /// The caller's word that the task was not accepted.
    pub(crate) fn refused(record: &Record) {
        record.is_refused.store(true, SeqCst);
    }

    /// A run begins, and ends with what is returned. `now` is the time of the layer's clock, read in the run.
    #[must_use]
    pub(crate) fn begin(&self, now: Instant) -> Running<'_> {
        let Page { record, book, .. } = self;
        let is_second = record.is_running.swap(true, SeqCst);
        book.check(!is_second, record, "two runs at a time");
        let runs = record.runs.fetch_add(1, SeqCst) + 1;
        book.check(record.kind == Kind::Series || runs == 1, record, "ran twice");
        // A run of a series may have started before the cancel, and come here after it.
        if record.is_cancelled() {
            let late = record.runs_after_cancel.fetch_add(1, SeqCst) + 1;
            let most = u32::from(record.kind == Kind::Series);
            book.check(late <= most, record, "ran after a cancel");
        }
        let not_before = *lock(&record.not_before);
        let not_before = not_before.filter(|_| !book.is_timeless.load(SeqCst));
        if not_before.is_some_and(|not_before| now < not_before) {
            book.fault(format!("early, at {now:?}: {record:?}"));
        }
        Running(record)
    }

    /// The deadline of the next run of a series, if it goes by the planned times.
    pub(crate) fn plan(&self, next: impl FnOnce(Instant) -> Instant) {
        let mut not_before = lock(&self.record.not_before);
        *not_before = not_before.map(next);
    }
}

/// A run that is in progress.
pub(crate) struct Running<'a>(&'a Record);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.is_running.store(false, SeqCst);
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let is_second = self.record.is_dropped.swap(true, SeqCst);
        self.book.check(!is_second, &self.record, "dropped twice");
        self.book.alive.fetch_sub(1, SeqCst);
        if self.blasts && !std::thread::panicking() {
            panic_on_purpose();
        }
    }
}
