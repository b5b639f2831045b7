//! A closure whose type is erased: up to 32 bytes are stored inline, larger values in a box.
//!
//! A holder must not grow with what a task captures, and scheduling must not allocate for the usual capture (one or
//! two `Arc`s, an id). So a [`Closure`] is 32 bytes of storage and a pointer to a table of functions ([`VTable`]) for
//! the value that the storage holds.
//!
//! - CLOSURE-1 The storage holds a value of the type for which the vtable was made. Only [`put`] sets
//!   the two, and it sets them together.
//! - CLOSURE-2 The value is moved out or dropped once. After `run_once`, a `take` or a drop, nobody touches it again.

use std::any::{TypeId, type_name};
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit, align_of, needs_drop, size_of};
use std::ops::ControlFlow;
use std::task::Waker;

use crate::clock::repeat::Repeat;
use crate::observe::trace::{CurrentSpan, in_a_root_span};

/// The 32 bytes that are stored inline.
type Storage = [MaybeUninit<u64>; 4];

/// A task's closure, one-shot or repeating.
pub(crate) struct Closure {
    vtable: &'static VTable,
    storage: Storage,
    /// The closure owns a value that is `Send`, and does not have to be `Sync`.
    _owns: PhantomData<Box<dyn FnOnce() + Send>>,
}

// ----- what users bring -----------------------------------------------------------------------

/// A task that `schedule_*` accepts. It is written into a holder, and moved out again if the scheduler refuses it. Every
/// closure that runs once is one.
pub(crate) trait Content: Sized + Send + 'static {
    /// The tick thread itself wakes it, and it never becomes a leftover.
    const IS_WAKER: bool = false;
    /// It is counted as a task, also towards the limit.
    const IS_COUNTED: bool = true;
    const IS_SERIES: bool = false;
    /// The value has a name of its own, which is better than the name of its type.
    const IS_NAMED: bool = false;

    /// Returns the name of the user's type.
    fn type_name() -> &'static str {
        type_name::<Self>()
    }

    fn own_name(&self) -> &'static str {
        Self::type_name()
    }

    /// Runs a one-shot.
    fn run_once(mut self) {
        _ = self.run();
    }

    /// Makes the next run of a series. For all others nobody calls it: [`run_once`](Content::run_once) takes the value itself.
    fn run(&mut self) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}

impl<F: FnOnce() + Send + 'static> Content for F {
    #[inline]
    fn run_once(self) {
        self();
    }
}

/// A task that runs until its closure ends the series. Each run has a root span of its own.
pub(crate) struct Series<F>(pub(crate) F);

impl<R: Repeat, F: FnMut() -> R + Send + 'static> Content for Series<F> {
    const IS_SERIES: bool = true;

    fn type_name() -> &'static str {
        type_name::<F>()
    }

    #[inline]
    fn run(&mut self) -> ControlFlow<()> {
        in_a_root_span(|| (self.0)().flow())
    }
}

/// A task with a name that its type does not tell: it wraps another closure, or is a box of one (S31).
pub(crate) struct Named<T> {
    pub(crate) name: &'static str,
    pub(crate) task: T,
}

impl<T: Content> Content for Named<T> {
    const IS_SERIES: bool = T::IS_SERIES;
    const IS_NAMED: bool = true;

    fn own_name(&self) -> &'static str {
        self.name
    }

    #[inline]
    fn run_once(self) {
        self.task.run_once();
    }

    #[inline]
    fn run(&mut self) -> ControlFlow<()> {
        self.task.run()
    }
}

/// A one-shot that runs in the span in which it was scheduled.
pub(crate) struct InSpan<T> {
    pub(crate) span: CurrentSpan,
    pub(crate) task: T,
}

impl<T: Content> Content for InSpan<T> {
    const IS_NAMED: bool = true;

    fn own_name(&self) -> &'static str {
        self.task.own_name()
    }

    fn run_once(self) {
        self.span.in_scope(|| self.task.run_once());
    }
}

/// A waker. It does not run: it is taken out. A drop wakes nobody. Unless it is `COUNTED`, it is counted nowhere.
#[repr(transparent)] // for `take_waker`
pub(crate) struct Wake<const COUNTED: bool>(pub(crate) Waker);

impl<const COUNTED: bool> Content for Wake<COUNTED> {
    const IS_WAKER: bool = true;
    const IS_COUNTED: bool = COUNTED;
}

// ----- how it is stored -----------------------------------------------------------------------

/// The functions for a storage that holds a value of one type.
struct VTable {
    /// Moves the value out and calls it.
    run_once: unsafe fn(*mut Storage),
    /// Calls the value in place.
    run: unsafe fn(*mut Storage) -> ControlFlow<()>,
    /// `None` if there is nothing to do.
    drop: Option<unsafe fn(*mut Storage)>,
    type_id: fn() -> TypeId,
    /// Returns the name of the type of the user's closure (S31).
    type_name: fn() -> &'static str,
    /// Returns the name that the value itself has. `None` if it has none.
    own_name: Option<unsafe fn(*const Storage) -> &'static str>,
}

impl VTable {
    /// The functions are to be called with a storage that holds a `T`.
    const fn of<T: Content>() -> VTable {
        VTable {
            // SAFETY: the storage holds a `T` (CLOSURE-1), and the caller does not use it again (CLOSURE-2).
            run_once: |storage| unsafe { take_out::<T>(storage) }.run_once(),
            // SAFETY: the storage holds a `T` (CLOSURE-1), and the caller has it to itself.
            run: |storage| unsafe { &mut *value_in::<T>(storage) }.run(),
            drop: if fits::<T>() && !needs_drop::<T>() {
                None
            } else if fits::<T>() {
                // SAFETY: the storage holds a `T` (CLOSURE-1), and the caller does not use it again (CLOSURE-2).
                Some(|storage| unsafe { storage.cast::<T>().drop_in_place() })
            } else {
                // SAFETY: as above, in a box.
                Some(|storage| unsafe { storage.cast::<Box<T>>().drop_in_place() })
            },
            type_id: TypeId::of::<T>,
            type_name: T::type_name,
            own_name: if T::IS_NAMED {
                // SAFETY: the storage holds a `T` (CLOSURE-1).
                Some(|storage| unsafe { &*value_in::<T>(storage.cast_mut()) }.own_name())
            } else {
                None
            },
        }
    }
}

/// Returns true if a value of this type is stored inline. All others are in a box.
const fn fits<T>() -> bool {
    size_of::<T>() <= size_of::<Storage>() && align_of::<T>() <= align_of::<Storage>()
}

/// Returns where the value is.
///
/// # Safety
///
/// The storage holds a `T`.
#[inline]
unsafe fn value_in<T>(storage: *mut Storage) -> *mut T {
    // Decided at compile time, for each type.
    if fits::<T>() {
        storage.cast()
    } else {
        // SAFETY: a value that does not fit is in a box, which is a pointer.
        unsafe { storage.cast::<*mut T>().read() }
    }
}

/// Moves the value out.
///
/// # Safety
///
/// The storage holds a `T`, and nobody uses it again (CLOSURE-2).
#[inline]
unsafe fn take_out<T>(storage: *mut Storage) -> T {
    // SAFETY: as the caller promises.
    unsafe {
        if fits::<T>() { storage.cast::<T>().read() } else { *storage.cast::<Box<T>>().read() }
    }
}

/// Writes a value, and the vtable for its type (CLOSURE-1).
#[inline]
pub(super) fn put<T: Content>(value: T, place: &mut MaybeUninit<Closure>) {
    // Written where it stays. To build a `Closure` elsewhere and move it in makes a schedule a tenth slower: the move
    // loads in wide words what was just stored in narrow ones, and waits for the stores.
    let place = place.as_mut_ptr();
    // SAFETY: both are fields of the place, and what is written fits into the storage. The place was not initialised, so
    // nothing is to be dropped.
    unsafe {
        (&raw mut (*place).vtable).write(const { &VTable::of::<T>() });
        let storage = &raw mut (*place).storage;
        if fits::<T>() {
            storage.cast::<T>().write(value);
        } else {
            storage.cast::<Box<T>>().write(Box::new(value));
        }
    }
}

impl Closure {
    /// Runs a one-shot that stays where it is.
    ///
    /// # Safety
    ///
    /// The closure counts as moved out from now on (CLOSURE-2), also if it panics.
    #[inline]
    pub(super) unsafe fn run_once_in_place(&mut self) {
        // SAFETY: the vtable is the one of the value (CLOSURE-1), which the caller does not use again.
        unsafe { (self.vtable.run_once)(&raw mut self.storage) }
    }

    /// Runs a series. A one-shot does not run: it only returns `Break`.
    pub(crate) fn run(&mut self) -> ControlFlow<()> {
        // SAFETY: the vtable is the one of the value (CLOSURE-1), which stays in place.
        unsafe { (self.vtable.run)(&raw mut self.storage) }
    }

    /// Returns false if the closure can be forgotten instead of dropped.
    #[inline]
    pub(super) fn has_drop(&self) -> bool {
        self.vtable.drop.is_some()
    }

    /// Returns what is needed to tell the name of the user's closure, its own or that of its type (S31), also after a run
    /// that consumes the closure.
    #[inline]
    pub(crate) fn names(&self) -> Names {
        // A name that comes from the type alone is not asked for here: it would cost each run one more indirect call.
        // SAFETY: the vtable is the one of the value (CLOSURE-1), which is there (CLOSURE-2) and only read.
        let own_name =
            self.vtable.own_name.map(|own_name| unsafe { own_name(&raw const self.storage) });
        Names { own_name, vtable: self.vtable }
    }

    /// Moves the value out that `put` has stored. Panics if it is of another type.
    pub(super) fn take<T: Content>(self) -> T {
        assert!(self.is_a::<T>(), "a closure of another type");
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the storage holds a `T`, as the vtable says (CLOSURE-1), and `self` is forgotten (CLOSURE-2).
        unsafe { take_out(&raw mut this.storage) }
    }

    /// Moves a waker out of a closure that stays where it is.
    ///
    /// # Safety
    ///
    /// The closure counts as moved out from now on (CLOSURE-2).
    #[inline]
    pub(super) unsafe fn take_waker(&mut self) -> Waker {
        assert!(self.is_a::<Wake<true>>() || self.is_a::<Wake<false>>(), "a waker");
        // SAFETY: the storage holds one of these two, which are stored alike, and the caller does not use it again.
        unsafe { take_out::<Wake<true>>(&raw mut self.storage) }.0
    }

    #[inline]
    fn is_a<T: Content>(&self) -> bool {
        (self.vtable.type_id)() == TypeId::of::<T>()
    }
}

/// The name of a closure that may be gone.
pub(crate) struct Names {
    own_name: Option<&'static str>,
    vtable: &'static VTable,
}

impl Names {
    pub(crate) fn name(self) -> &'static str {
        self.own_name.unwrap_or_else(self.vtable.type_name)
    }
}

impl Drop for Closure {
    fn drop(&mut self) {
        if let Some(drop) = self.vtable.drop {
            // SAFETY: the vtable is the one of the value (CLOSURE-1), which nobody has moved out (CLOSURE-2).
            unsafe { drop(&raw mut self.storage) }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    impl Closure {
        fn of(content: impl Content) -> Closure {
            let mut place = MaybeUninit::uninit();
            put(content, &mut place);
            // SAFETY: it has just been written.
            unsafe { place.assume_init() }
        }

        fn run_once(self) {
            // SAFETY: it is forgotten.
            unsafe { ManuallyDrop::new(self).run_once_in_place() }
        }
    }

    #[test]
    fn a_closure_of_any_size_runs_once_and_is_dropped_once() {
        fn check<const N: usize>() {
            let alive = Arc::new(());
            let ran = Arc::new(AtomicUsize::new(0));
            let make = || {
                let (alive, ran, weight) = (Arc::clone(&alive), Arc::clone(&ran), [7_u8; N]);
                Closure::of(move || {
                    let _hold = alive;
                    ran.fetch_add(weight.len() + 1, Ordering::Relaxed);
                })
            };
            make().run_once();
            drop(make());
            assert_eq!((ran.load(Ordering::Relaxed), Arc::strong_count(&alive)), (N + 1, 1));
        }
        check::<0>();
        check::<16>();
        check::<17>();
        check::<1000>();
    }

    #[test]
    fn a_capture_of_great_alignment_is_boxed_and_whole() {
        #[repr(align(64))]
        struct Wide(u8);
        let (sender, receiver) = std::sync::mpsc::channel();
        let wide = Wide(3);
        Closure::of(move || {
            let wide = wide;
            sender.send((wide.0, (&raw const wide).addr() % 64)).expect("the receiver lives");
        })
        .run_once();
        assert_eq!(receiver.recv(), Ok((3, 0)));
    }

    #[test]
    fn a_repeating_closure_keeps_its_state_until_it_breaks() {
        let mut left = 3;
        let mut closure = Closure::of(Series(move || {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }));
        let runs = (0..10).take_while(|_| closure.run().is_continue()).count();
        assert_eq!(runs, 2);
    }

    #[test]
    fn s31_a_closure_is_called_what_its_user_wrote() {
        fn task() {}
        let name = std::any::type_name_of_val(&task);
        assert_eq!(Closure::of(task).names().name(), name);
        let boxed: Box<dyn FnOnce() + Send> = Box::new(task);
        let named = Closure::of(Named { name: "told", task: boxed });
        assert_eq!(named.names().name(), "told");
        assert_eq!(Closure::of(Series(task)).names().name(), name);
        let weight = [1_usize; 100];
        let task =
            Series(
                move || {
                    if weight[0] == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                },
            );
        let large = Closure::of(Named { name: "heavy", task });
        assert_eq!(large.names().name(), "heavy");
    }

    #[test]
    fn a_refused_closure_comes_back_as_it_was() {
        fn there_and_back<F: FnOnce() + Send + 'static>(f: F) -> F {
            Closure::of(f).take::<F>()
        }
        let (sender, receiver) = std::sync::mpsc::channel();
        let small = sender.clone();
        there_and_back(move || small.send(1).expect("the receiver lives"))();
        let weight = [1_usize; 100];
        there_and_back(move || sender.send(weight.len()).expect("the receiver lives"))();
        assert_eq!(receiver.iter().collect::<Vec<_>>(), [1, 100]);
    }
}
