//! A set of handles that are cancelled together.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::platform::impls::impl_debug;
use crate::platform::panics::FirstPanic;
use crate::platform::sync::lock_std;
use crate::{Cancel, Cancellable, PanicHook};

/// A set of handles that are cancelled together: those of a request, a session or a screen.
///
/// Clones are handles to the same set. The set keeps a handle until it is removed or cancelled. From time to time it
/// also drops the handles whose tasks are over, so a set may live for ever and take in task after task. Dropping the
/// set cancels nothing. A set may be part of another set, because it implements [`Cancel`].
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
/// // A cancelled set cancels each handle that is added:
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
    /// By age. A handle may run a user's code when it is asked, cancelled or dropped, so none of these happens under
    /// the lock. `prune` works on a copy of this map.
    handles: BTreeMap<u64, Cancellable>,
    /// With this many handles, the set is pruned.
    prune_at: usize,
    is_cancelled: bool,
}

/// A set with fewer handles is not pruned by `add`.
const MIN_PRUNE: usize = 64;

/// The key of a handle in a [`CompositeCancellable`]. No other handle, in whatever set, ever has the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CompositeKey(u64);

impl CompositeCancellable {
    /// Returns an empty set.
    pub fn new() -> CompositeCancellable {
        CompositeCancellable::default()
    }

    fn set(&self) -> MutexGuard<'_, Set> {
        lock_std(&self.set)
    }

    /// Adds a handle. If the set is cancelled, the handle is cancelled at once.
    ///
    /// Each time that the set has doubled, a call also drops the handles that are done by then.
    pub fn add(&self, handle: Cancellable) -> CompositeKey {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let key = CompositeKey(NEXT.fetch_add(1, Ordering::Relaxed)); // Relaxed, because only the number matters
        let mut set = self.set();
        if set.is_cancelled {
            drop(set);
            handle.cancel();
            return key;
        }
        set.handles.insert(key.0, handle);
        if set.handles.len() >= set.prune_at.max(MIN_PRUNE) {
            set.prune_at = usize::MAX; // no other thread prunes in the meantime
            drop(set);
            self.prune();
        }
        key
    }

    /// Drops the handles that are done. Returns how many are left.
    fn prune(&self) -> usize {
        let hook = PanicHook::default();
        let handles = self.set().handles.clone();
        for (key, handle) in handles {
            // A handle that panics may not be over.
            let is_over = hook.catch(None, || handle.is_done()) == Some(true);
            let removed = if is_over { self.set().handles.remove(&key) } else { None };
            hook.catch(None, || drop((removed, handle))); // the set may have lost it meanwhile, so this may be its last owner
        }
        let mut set = self.set();
        set.prune_at = 2 * set.handles.len();
        set.handles.len()
    }

    /// Removes a handle without cancelling it. Returns `None` if it is not in the set any more: it was removed before,
    /// the set was cancelled, or the handle's task was over and the set has dropped it.
    pub fn remove(&self, key: CompositeKey) -> Option<Cancellable> {
        self.set().handles.remove(&key.0)
    }

    /// Cancels all handles in the set, the oldest first, and from now on each handle that is added. Returns how many
    /// tasks this has prevented from running.
    pub fn cancel(&self) -> usize {
        let mut set = self.set();
        set.is_cancelled = true;
        let handles = std::mem::take(&mut set.handles);
        drop(set);
        let (mut prevented, mut panics) = (0, FirstPanic::default());
        for handle in handles.into_values() {
            // `cancel` and `Drop` of a handle may be a user's, and panic.
            prevented += usize::from(panics.catch(|| handle.cancel()) == Some(true));
            panics.catch(|| drop(handle));
        }
        panics.resume(); // now that all are cancelled
        prevented
    }

    /// Returns true if the set was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.set().is_cancelled
    }

    /// Returns how many handles in the set are not done yet. It asks each handle, and drops those that are done.
    pub fn len(&self) -> usize {
        self.prune()
    }

    /// Returns true if all handles in the set are done. Like [`len`](CompositeCancellable::len), it drops them.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Makes a set a handle, so `Cancellable::from(Arc::new(set))` can be added to another set.
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

impl_debug!(CompositeCancellable, self,
    len: { self.set().handles.len() }, // in a block, so that the lock is free when the formatter runs
    is_cancelled: self.is_cancelled()
);
