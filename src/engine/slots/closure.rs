//! A closure whose type is forgotten: up to 32 bytes lie inline, larger ones in a box.
//!
//! A holder must not grow with what a task captured, and a schedule must not allocate for the
//! usual capture (an `Arc` or two, an id). So a [`Closure`] is four words of room and a pointer to
//! a table of what can be done with them.
//!
//! - CLOSURE-1 For some [`Lodging`], `table` is its table, and `room` holds its guest: what fits, or a box. Only
//!   [`put`] sets both.
//! - CLOSURE-2 The guest is moved out or dropped once: who runs a closure for the last time, takes its guest, or
//!   drops it, never touches it again.

use std::any::TypeId;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit, align_of, size_of};
use std::ops::ControlFlow;
use std::ptr;
use std::task::Waker;

use crate::observe::trace::RunOnce;

/// How many bytes of a closure lie inline.
pub(crate) const INLINE_BYTES: usize = 32;

type Room = [MaybeUninit<u64>; INLINE_BYTES / 8];

/// What can be done with a room; each entry is made for the one type that lies in it.
struct Table {
    /// Moves the value out and calls it; the room is empty afterwards.
    run_once: unsafe fn(*mut Room),
    /// Calls the value in place.
    run: unsafe fn(*mut Room) -> ControlFlow<()>,
    /// Drops the value; the room is empty afterwards.
    drop: unsafe fn(*mut Room),
    /// The type that lies in the room.
    holds: fn() -> TypeId,
    /// The name of the user's closure (S31).
    type_name: fn() -> &'static str,
    /// The name that the value itself knows, if it does.
    own_name: Option<unsafe fn(*const Room) -> &'static str>,
}

/// A task's closure, one-shot or repeating.
pub(crate) struct Closure {
    table: &'static Table,
    room: Room,
    /// It owns something that can be sent, and is never shared.
    _owns: PhantomData<Box<dyn FnOnce() + Send>>,
}

// SAFETY: only closures that are `Send` are put in, and a box of one is `Send` too.
unsafe impl Send for Closure {}

/// Whether a value of this type lies in the room itself.
const fn fits<T>() -> bool {
    size_of::<T>() <= size_of::<Room>() && align_of::<T>() <= align_of::<Room>()
}

/// A way to lie in a room: what lies there, and the table that is made for it.
///
/// # Safety
///
/// The functions of the table are right for a room that holds a guest, and `holds` says its type.
unsafe trait Lodging {
    type Guest: Send + 'static;
    const TABLE: Table;
}

/// What becomes a closure in a holder, and comes back out of it when the task is refused.
///
/// It is written in place. A closure that is made elsewhere and moved in costs a schedule a tenth
/// more: the move loads in wide words what was just stored in narrow ones, and waits for the stores.
pub(crate) trait Content: Sized {
    /// The tick thread wakes it itself, and at the end it is nobody's leftover.
    const IS_WAKER: bool = false;
    /// It repeats.
    const IS_SERIES: bool = false;

    /// Writes itself into the place.
    fn write(self, place: &mut MaybeUninit<Closure>);
    /// What had been written.
    fn take_back(closure: Closure) -> Self;
}

/// A task that runs once.
pub(crate) struct OneShot<S>(pub(crate) S);

/// A task that repeats until it breaks.
pub(crate) struct Series<B>(pub(crate) B);

/// A task that repeats, as a value.
pub(crate) trait RunRepeatedly: Send + 'static {
    /// A value knows a better name than that of its type.
    const IS_NAMED: bool = false;

    /// The name of the user's type.
    fn type_name() -> &'static str;

    fn own_name(&self) -> &'static str {
        Self::type_name()
    }

    fn run(&mut self) -> ControlFlow<()>;
}

/// A closure that repeats, made of one of the user's type `N`.
pub(crate) struct NamedAfter<N, F> {
    f: F,
    _named_after: PhantomData<fn() -> N>,
}

impl<N, F> NamedAfter<N, F> {
    pub(crate) fn new(f: F) -> NamedAfter<N, F> {
        NamedAfter { f, _named_after: PhantomData }
    }
}

impl<N: 'static, F: FnMut() -> ControlFlow<()> + Send + 'static> RunRepeatedly
    for NamedAfter<N, F>
{
    fn type_name() -> &'static str {
        std::any::type_name::<N>()
    }

    #[inline]
    fn run(&mut self) -> ControlFlow<()> {
        (self.f)()
    }
}

impl<B: RunRepeatedly> RunRepeatedly for Box<B> {
    const IS_NAMED: bool = B::IS_NAMED;

    fn type_name() -> &'static str {
        B::type_name()
    }

    fn own_name(&self) -> &'static str {
        (**self).own_name()
    }

    #[inline]
    fn run(&mut self) -> ControlFlow<()> {
        (**self).run()
    }
}

/// A closure that was made of another one, and keeps the name of that; or a box that has lost the type of its closure (S31).
pub(crate) struct Named<T> {
    pub(crate) name: &'static str,
    pub(crate) task: T,
}

impl<F: FnOnce() + Send + 'static> RunOnce for Named<F> {
    const IS_NAMED: bool = true;

    fn own_name(&self) -> &'static str {
        self.name
    }

    #[inline]
    fn run_once(self) {
        (self.task)();
    }
}

impl<F: FnMut() -> ControlFlow<()> + Send + 'static> RunRepeatedly for Named<F> {
    const IS_NAMED: bool = true;

    fn type_name() -> &'static str {
        std::any::type_name::<F>()
    }

    fn own_name(&self) -> &'static str {
        self.name
    }

    #[inline]
    fn run(&mut self) -> ControlFlow<()> {
        (self.task)()
    }
}

/// A waker: to run it is to wake it, and to drop it is not.
pub(crate) struct Wake(pub(crate) Waker);

impl RunOnce for Wake {
    fn run_once(self) {
        self.0.wake();
    }
}

/// What does not fit into the room.
struct Large<S>(Box<S>);

impl<S: RunOnce> RunOnce for Large<S> {
    const IS_NAMED: bool = S::IS_NAMED;

    fn type_name() -> &'static str {
        S::type_name()
    }

    fn own_name(&self) -> &'static str {
        self.0.own_name()
    }

    fn run_once(self) {
        (*self.0).run_once();
    }
}

impl<F: RunOnce> Content for OneShot<F> {
    #[inline]
    fn write(self, place: &mut MaybeUninit<Closure>) {
        if fits::<F>() {
            put::<Once<F>>(self.0, place);
        } else {
            put::<Once<Large<F>>>(Large(Box::new(self.0)), place);
        }
    }

    fn take_back(closure: Closure) -> Self {
        OneShot(if fits::<F>() {
            closure.take::<Once<F>>()
        } else {
            *closure.take::<Once<Large<F>>>().0
        })
    }
}

impl<B: RunRepeatedly> Content for Series<B> {
    const IS_SERIES: bool = true;

    #[inline]
    fn write(self, place: &mut MaybeUninit<Closure>) {
        if fits::<B>() {
            put::<Repeating<B>>(self.0, place);
        } else {
            put::<Repeating<Box<B>>>(Box::new(self.0), place);
        }
    }

    fn take_back(closure: Closure) -> Self {
        Series(if fits::<B>() {
            closure.take::<Repeating<B>>()
        } else {
            *closure.take::<Repeating<Box<B>>>()
        })
    }
}

impl Content for Wake {
    const IS_WAKER: bool = true;

    #[inline]
    fn write(self, place: &mut MaybeUninit<Closure>) {
        put::<Once<Wake>>(self, place);
    }

    fn take_back(closure: Closure) -> Self {
        closure.take::<Once<Wake>>()
    }
}

/// CLOSURE-1: a guest, and the table made for it.
#[inline]
fn put<L: Lodging>(guest: L::Guest, place: &mut MaybeUninit<Closure>) {
    assert!(fits::<L::Guest>()); // a constant: it costs nothing
    let place = place.as_mut_ptr();
    // SAFETY: both are fields of the place, and the guest fits into the room in size and alignment, as
    // asserted. Nothing is dropped: the place held nothing.
    unsafe {
        (&raw mut (*place).table).write(&L::TABLE);
        (&raw mut (*place).room).cast::<L::Guest>().write(guest);
    }
}

impl Closure {
    #[cfg(all(test, not(loom)))]
    fn of(content: impl Content) -> Closure {
        let mut place = MaybeUninit::uninit();
        content.write(&mut place);
        // SAFETY: it has just been written.
        unsafe { place.assume_init() }
    }

    /// Runs a one-shot, and consumes it. A repeating one runs for the last time.
    pub(crate) fn run_once(self) {
        let mut this = ManuallyDrop::new(self);
        let run_once = this.table.run_once;
        // SAFETY: CLOSURE-1; the value is moved out and `self` is forgotten (CLOSURE-2), also on a panic.
        unsafe { run_once(&raw mut this.room) }
    }

    /// Runs a repeating closure. A one-shot only breaks.
    pub(crate) fn run(&mut self) -> ControlFlow<()> {
        // SAFETY: CLOSURE-1; the value stays in place.
        unsafe { (self.table.run)(&raw mut self.room) }
    }

    /// The name of the user's closure: its type, or what whoever boxed it has said (S31).
    pub(crate) fn name(&self) -> &'static str {
        // SAFETY: CLOSURE-1; the function only looks at the value, which is there (CLOSURE-2).
        let own_name =
            self.table.own_name.map(|own_name| unsafe { own_name(&raw const self.room) });
        own_name.unwrap_or_else(self.table.type_name)
    }

    /// The same, for after a run that consumes the closure.
    #[inline]
    pub(crate) fn names(&self) -> Names {
        // SAFETY: as in `name`.
        let own_name =
            self.table.own_name.map(|own_name| unsafe { own_name(&raw const self.room) });
        Names { own_name, table: self.table }
    }

    /// Moves the value out again.
    fn take<L: Lodging>(self) -> L::Guest {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `self` is forgotten (CLOSURE-2).
        unsafe { this.take_in_place::<L>() }
    }

    /// Moves a waker out, from where it lies.
    ///
    /// # Safety
    ///
    /// The closure counts as moved out from now on (CLOSURE-2).
    #[inline]
    pub(super) unsafe fn take_waker(&mut self) -> Waker {
        // SAFETY: as the caller promises.
        unsafe { self.take_in_place::<Once<Wake>>() }.0
    }

    /// # Safety
    ///
    /// The closure counts as moved out from now on (CLOSURE-2).
    #[inline]
    unsafe fn take_in_place<L: Lodging>(&mut self) -> L::Guest {
        // A table may lie at two addresses; then the call tells. At one address lies one table, whose
        // `holds` says one type: so tables of different guests never do.
        let holds_it =
            ptr::eq(self.table, &L::TABLE) || (self.table.holds)() == TypeId::of::<L::Guest>();
        assert!(holds_it, "a closure of another type");
        // SAFETY: the room holds such a guest, as the table says (CLOSURE-1), and the caller forgets it.
        unsafe { self.room.as_ptr().cast::<L::Guest>().read() }
    }
}

/// The name of a closure, for when the closure is gone.
pub(crate) struct Names {
    own_name: Option<&'static str>,
    table: &'static Table,
}

impl Names {
    pub(crate) fn name(self) -> &'static str {
        self.own_name.unwrap_or_else(self.table.type_name)
    }
}

impl Drop for Closure {
    fn drop(&mut self) {
        // SAFETY: CLOSURE-1, and nobody has moved the value out (CLOSURE-2).
        unsafe { (self.table.drop)(&raw mut self.room) }
    }
}

/// The table of a type that is called once.
struct Once<F>(PhantomData<F>);

// SAFETY: each function takes the room for one that holds an `F`.
unsafe impl<F: RunOnce> Lodging for Once<F> {
    type Guest = F;
    const TABLE: Table = Table {
        run_once: |room| {
            // SAFETY: the caller hands over a room that holds an `F` (CLOSURE-1), and forgets it.
            let f = unsafe { room.cast::<F>().read() };
            f.run_once();
        },
        run: |_| ControlFlow::Break(()),
        drop: drop_in_room::<F>,
        holds: TypeId::of::<F>,
        type_name: F::type_name,
        own_name: if F::IS_NAMED { Some(own_name_of_shot::<F>) } else { None },
    };
}

/// The table of a type that is called again and again.
struct Repeating<B>(PhantomData<B>);

// SAFETY: each function takes the room for one that holds a `B`.
unsafe impl<B: RunRepeatedly> Lodging for Repeating<B> {
    type Guest = B;
    const TABLE: Table = Table {
        run_once: |room| {
            // SAFETY: the caller hands over a room that holds a `B` (CLOSURE-1), and forgets it.
            let mut series = unsafe { room.cast::<B>().read() };
            let _ = series.run();
        },
        run: |room| {
            // SAFETY: the caller has the room to itself, and it holds a `B` (CLOSURE-1).
            let series = unsafe { &mut *room.cast::<B>() };
            series.run()
        },
        drop: drop_in_room::<B>,
        holds: TypeId::of::<B>,
        type_name: B::type_name,
        own_name: if B::IS_NAMED { Some(own_name_of_beat::<B>) } else { None },
    };
}

/// # Safety
///
/// The room holds an `F`.
unsafe fn own_name_of_shot<F: RunOnce>(room: *const Room) -> &'static str {
    // SAFETY: as the caller promises.
    unsafe { &*room.cast::<F>() }.own_name()
}

/// # Safety
///
/// The room holds a `B`.
unsafe fn own_name_of_beat<B: RunRepeatedly>(room: *const Room) -> &'static str {
    // SAFETY: as the caller promises.
    unsafe { &*room.cast::<B>() }.own_name()
}

/// # Safety
///
/// The room holds a `T`, and is not used again.
unsafe fn drop_in_room<T>(room: *mut Room) {
    // SAFETY: as the caller promises.
    unsafe { room.cast::<T>().drop_in_place() }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_closure_of_any_size_runs_once_and_is_dropped_once() {
        fn check<const N: usize>() {
            let alive = Arc::new(());
            let ran = Arc::new(AtomicUsize::new(0));
            let make = || {
                let (alive, ran, weight) = (Arc::clone(&alive), Arc::clone(&ran), [7_u8; N]);
                Closure::of(OneShot(move || {
                    let _hold = alive;
                    ran.fetch_add(weight.len() + 1, Ordering::Relaxed);
                }))
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
        Closure::of(OneShot(move || {
            let wide = wide;
            sender.send((wide.0, (&raw const wide).addr() % 64)).expect("the receiver lives");
        }))
        .run_once();
        assert_eq!(receiver.recv(), Ok((3, 0)));
    }

    #[test]
    fn a_repeating_closure_keeps_its_state_until_it_breaks() {
        let mut left = 3;
        let mut closure = Closure::of(Series(NamedAfter::<(), _>::new(move || {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })));
        let runs = (0..10).take_while(|_| closure.run().is_continue()).count();
        assert_eq!(runs, 2);
    }

    #[test]
    fn s31_a_closure_is_called_what_its_user_wrote() {
        fn task() {}
        let name = std::any::type_name_of_val(&task);
        assert_eq!(Closure::of(OneShot(task)).name(), name);
        let boxed: Box<dyn FnOnce() + Send> = Box::new(task);
        let named = Closure::of(OneShot(Named { name: "told", task: boxed }));
        assert_eq!((named.name(), named.names().name()), ("told", "told"));
        let series = NamedAfter::<u8, _>::new(|| ControlFlow::Continue(()));
        assert_eq!(Closure::of(Series(series)).name(), "u8");
        let weight = [1_usize; 100];
        let large = Closure::of(Series(Named {
            name: "heavy",
            task: move || {
                if weight[0] == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            },
        }));
        assert_eq!(large.name(), "heavy");
    }

    #[test]
    fn a_refused_closure_comes_back_as_it_was() {
        fn there_and_back<F: FnOnce() + Send + 'static>(f: F) -> F {
            OneShot::take_back(Closure::of(OneShot(f))).0
        }
        let (sender, receiver) = std::sync::mpsc::channel();
        let small = sender.clone();
        there_and_back(move || small.send(1).expect("the receiver lives"))();
        let weight = [1_usize; 100];
        there_and_back(move || sender.send(weight.len()).expect("the receiver lives"))();
        assert_eq!(receiver.iter().collect::<Vec<_>>(), [1, 100]);
    }
}
