//! A set of handles that are cancelled together.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Cancel, Cancellable, PanicHook};

/// Handles that are cancelled together: those of a request, of a session, of a screen.
///
/// Clones are the same set. It keeps a handle until it is removed or cancelled, or its task is over: then it lets the
/// handle go by itself, later, so a set may live for ever and take in task after task. Dropping the set cancels
/// nothing. A set can be in another: see [`Cancel`].
///
/// ```
/// use std::time::Duration;
/// use tickwheel::Scheduler;
/// use tickwheel::rx::CompositeCancellable;
///
/// let scheduler = Scheduler::new();
/// let session = CompositeCancellable::new();
/// let ping = session.add(scheduler.schedule_once(Duration::from_secs(10), || println!("ping"))?);
/// session.add(scheduler.schedule_once(Duration::from_secs(60), || println!("gone"))?);
/// let ping = session.remove(ping).expect("still in it");
/// assert_eq!(session.cancel(), 1);
/// assert!(!ping.is_cancelled());
/// // Too late for what comes now:
/// let late = scheduler.schedule_once(Duration::from_secs(10), || println!("late"))?;
/// session.add(late.clone());
/// assert!(late.is_cancelled());
/// # Ok::<(), tickwheel::ScheduleError>(())
/// ```
#[doc(alias = "CompositeDisposable")]
#[derive(Clone, Default)]
pub struct CompositeCancellable {
    set: Arc<Mutex<Set>>,
}

#[derive(Default)]
struct Set {
    /// By age. No handle is asked, cancelled or dropped under the lock: that may be a user's code. So a look at all
    /// of them is made at a copy of this map.
    handles: BTreeMap<u64, Arc<Cancellable>>,
    /// The set is looked through when it has so many handles.
    look_at: usize,
    is_cancelled: bool,
}

/// A set with fewer handles is not looked through.
const SMALL: usize = 64;

/// Names a handle in a [`CompositeCancellable`]. It never names another one, of whatever set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CompositeKey(u64);

impl CompositeKey {
    fn next() -> CompositeKey {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        CompositeKey(NEXT.fetch_add(1, Ordering::Relaxed)) // it only has to be another one
    }
}

impl CompositeCancellable {
    /// An empty set.
    pub fn new() -> CompositeCancellable {
        CompositeCancellable::default()
    }

    fn set(&self) -> MutexGuard<'_, Set> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a handle. A set that was cancelled cancels it at once.
    ///
    /// Now and then, each time that the set has doubled, a call lets the handles go that are done by then.
    pub fn add(&self, handle: Cancellable) -> CompositeKey {
        let key = CompositeKey::next();
        let mut set = self.set();
        if set.is_cancelled {
            drop(set);
            handle.cancel();
            return key;
        }
        set.handles.insert(key.0, Arc::new(handle));
        let is_crowded = set.handles.len() >= set.look_at.max(SMALL);
        if is_crowded {
            set.look_at = usize::MAX; // one thread looks
        }
        drop(set);
        if is_crowded {
            self.prune();
        }
        key
    }

    /// Lets the handles go that are done. Returns how many are left.
    fn prune(&self) -> usize {
        let handles = self.set().handles.clone();
        let mut over = Vec::new();
        for (key, handle) in handles {
            // A handle that panics is not known to be over.
            if PanicHook::default().catch(|| handle.is_done()) == Some(true) {
                over.push((key, handle));
            }
        }
        let mut set = self.set();
        over.iter().for_each(|(key, _)| _ = set.handles.remove(key));
        let left = set.handles.len();
        set.look_at = 2 * left;
        drop(set);
        over.into_iter().for_each(|(_, handle)| _ = PanicHook::default().catch(|| drop(handle)));
        left
    }

    /// Lets a handle go, without cancelling it. `None` when it is not in the set: removed before, or cancelled, or
    /// its task was over and the set has let it go.
    pub fn remove(&self, key: CompositeKey) -> Option<Cancellable> {
        let handle = self.set().handles.remove(&key.0)?;
        // Another thread may be looking at it.
        Some(Arc::try_unwrap(handle).unwrap_or_else(|shared| (*shared).clone()))
    }

    /// Cancels all that are in it, the oldest first, and all that will be added. How many of them it
    /// prevented from running.
    pub fn cancel(&self) -> usize {
        let mut set = self.set();
        set.is_cancelled = true;
        let handles = std::mem::take(&mut set.handles);
        drop(set);
        let (mut prevented, mut first_panic) = (0, None);
        for handle in handles.into_values() {
            // A handle may be a user's, and so its `cancel` and its `Drop`.
            let won = catch_unwind(AssertUnwindSafe(|| handle.cancel()));
            let dropped = catch_unwind(AssertUnwindSafe(|| drop(handle)));
            prevented += usize::from(matches!(won, Ok(true)));
            for panic in won.err().into_iter().chain(dropped.err()) {
                let later =
                    if first_panic.is_none() { first_panic.replace(panic) } else { Some(panic) };
                PanicHook::default().catch(|| drop(later));
            }
        }
        match first_panic {
            Some(panic) => resume_unwind(panic), // now that all are cancelled
            None => prevented,
        }
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.set().is_cancelled
    }

    /// Returns how many handles are in it that are not done yet. It asks each of them, and lets go those that are.
    pub fn len(&self) -> usize {
        self.prune()
    }

    /// Returns true if no handle is in it that is not done yet. As [`len`](CompositeCancellable::len).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A set is cancelled as one: `Cancellable::from(Arc::new(set))` can be in another set.
impl Cancel for CompositeCancellable {
    fn cancel(&self) -> bool {
        CompositeCancellable::cancel(self) > 0
    }

    fn is_cancelled(&self) -> bool {
        CompositeCancellable::is_cancelled(self)
    }

    fn is_done(&self) -> bool {
        CompositeCancellable::is_cancelled(self)
    }
}

impl fmt::Debug for CompositeCancellable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompositeCancellable")
            .field("len", &self.set().handles.len())
            .field("is_cancelled", &self.is_cancelled())
            .finish()
    }
}
