//! Panics that are intended, and panics that show an error.
//!
//! A task, or a value's `Drop`, that has to panic does so with a [`Blast`], which prints nothing and has a number. Each must be
//! reported to `on_panic` once. Every other panic is a failed assertion, here or in the crate. Somebody may catch it, so it is
//! kept as a complaint, which ends the run.

use std::any::Any;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, set_hook, take_hook};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The payload of an intended panic.
pub(crate) struct Blast(u64);

/// Prints all panics except the intended ones.
pub(crate) fn silence_blasts() {
    let print = take_hook();
    set_hook(Box::new(move |panic| {
        if !panic.payload().is::<Blast>() {
            print(panic);
        }
    }));
}

/// The panics so far.
#[derive(Default)]
pub(crate) struct Reports(Mutex<Told>);

#[derive(Default)]
struct Told {
    blasts: u64,
    unheard: BTreeSet<u64>,
    complaint: Option<String>,
}

impl Reports {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Panics on purpose.
    pub(crate) fn blast(&self) -> ! {
        let number = {
            let told = &mut *self.told();
            told.blasts += 1;
            told.unheard.insert(told.blasts);
            told.blasts
        };
        panic_any(Blast(number))
    }

    /// Notes that an intended panic was reported.
    pub(crate) fn hear(&self, payload: &(dyn Any + Send)) {
        let Some(Blast(number)) = payload.downcast_ref() else {
            return self.complain(&text_of(payload));
        };
        if !self.told().unheard.remove(number) {
            self.complain("one panic was reported twice");
        }
    }

    /// Runs code that must not panic, and keeps a panic that comes.
    pub(crate) fn noting<R>(&self, work: impl FnOnce() -> R) -> Option<R> {
        let done = catch_unwind(AssertUnwindSafe(work));
        done.map_err(|payload| self.complain(&text_of(&*payload))).ok()
    }

    /// The first complaint is the cause of the others.
    fn complain(&self, text: &str) {
        self.told().complaint.get_or_insert_with(|| text.to_owned());
    }

    pub(crate) fn complaint(&self) -> Option<String> {
        self.told().complaint.clone()
    }

    /// From here on no hook is told of panics, because the scheduler is gone.
    pub(crate) fn is_over(&self) {
        self.told().unheard.clear();
    }

    /// Returns the number of panics that nobody was told of.
    pub(crate) fn unheard(&self) -> usize {
        self.told().unheard.len()
    }
}

fn text_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| String::from("a panic that was meant came where none was to come"))
}
