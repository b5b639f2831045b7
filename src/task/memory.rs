//! Where holders live, for all schedulers of the process.
//!
//! A handle is a slot number and a generation, nothing that is counted, so it may outlive its
//! task, its scheduler, and the slot's next thousand tasks. That needs memory in which a stale
//! handle can look without harm:
//!
//! ```text
//!   slot 0x0002_C0F3
//!        |-- chunk 0xB0 --> DIRECTORY[0xB0] --> [ holder | holder | ... ]  1024 holders, 64 KiB
//!        '-- place 0xF3 ------------------------------------^
//!
//!   free slots:   thread cache (two magazines of 128)  <-- full/empty magazines -->  depot
//! ```
//!
//! A thread takes and gives free slots from and to its own two magazines, without an atomic; a
//! whole magazine goes to or comes from the depot, under a lock that is held for a few
//! instructions. A magazine holds numbers and generations by value, so neither way touches a
//! holder that is not about to be used. The tick thread that frees what a producer fills sends
//! whole magazines back to it that way.
//!
//! - M1 Every slot of a chunk is in exactly one of: a holder that is in use, a thread's magazines,
//!   the depot, the [`trim`](super::trim)mer.
//! - M2 A chunk is only taken away by the trimmer, and only when it has all of its slots in hand.
//!   So while a slot is in use its chunk stays (this is H3's and M3's ground).
//! - M3 Who looks into a chunk without owning a slot of it (a handle, an entry of the wheel, a
//!   task in an executor's queue) first names the chunk in its thread's [`Guard`] and then loads
//!   the directory; the trimmer first takes the chunk out of the directory and then reads all
//!   guards. Both pairs are `SeqCst`: either the looker finds nothing, or the trimmer sees it and
//!   puts the chunk back.
//! - M4 A chunk that comes again starts with generations above all that its place had before.

use std::cell::RefCell;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::depot::{CHUNK, CHUNKS, FreeSlot, MAGAZINE, Magazine, chunk_of, depot, place_of};
use super::holder::{TaskHolder, Vacancy};
use super::state::FreedWord;

/// How many tasks ahead of its use a holder is fetched. Slots come back in the order in which tasks
/// end, so the next one is most likely not in the cache: without this a schedule after fires took
/// 245 ns of CPU time, with it 110.
const AHEAD: usize = 6;

pub(super) type Chunk = [TaskHolder; CHUNK];

/// All chunks there are. Two megabytes of zeros, of which the system backs what is used.
static DIRECTORY: [AtomicPtr<Chunk>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];

/// What a thread is looking into: nothing, one chunk (its number plus one), or anything.
pub(super) struct Guard(AtomicU64);

const NOTHING: u64 = 0;
const ANYTHING: u64 = u64::MAX;

impl Guard {
    fn looks_into(&self, chunk: usize) -> bool {
        let looks = self.0.load(Ordering::SeqCst); // M3
        looks == ANYTHING || looks == chunk as u64 + 1
    }
}

/// The guards of all threads.
static GUARDS: Mutex<Vec<Arc<Guard>>> = Mutex::new(Vec::new());

/// Held by the trimmer while it takes a chunk away, and by a thread without a guard (its
/// thread-locals are gone) while it looks into one.
static REMOVAL: Mutex<()> = Mutex::new(());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread's guard and its two magazines.
struct Cache {
    guard: Arc<Guard>,
    magazines: RefCell<Magazines>,
}

/// Free slots at hand. `loaded` is used; `spare` is full or empty, and is changed for `loaded`
/// when that runs empty or full, so that taking and giving in turn never reaches the depot.
struct Magazines {
    loaded: Magazine,
    spare: Magazine,
}

thread_local! {
    static CACHE: Cache = Cache::new();
}

impl Cache {
    fn new() -> Cache {
        let guard = Arc::new(Guard(AtomicU64::new(NOTHING)));
        lock(&GUARDS).push(Arc::clone(&guard));
        let magazines = Magazines { loaded: Magazine::new(), spare: Magazine::new() };
        Cache { guard, magazines: RefCell::new(magazines) }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let Magazines { loaded, spare } = self.magazines.get_mut();
        let mut depot = depot();
        depot.put(std::mem::take(loaded));
        depot.put(std::mem::take(spare));
        drop(depot);
        lock(&GUARDS).retain(|guard| !Arc::ptr_eq(guard, &self.guard));
    }
}

/// Takes a free slot; `None` when 268 million tasks are pending.
pub(crate) fn vacancy() -> Option<Vacancy> {
    let cached = CACHE.try_with(|cache| cache.magazines.borrow_mut().take());
    let slot = cached.unwrap_or_else(|_| depot().take_one())?;
    let chunk = DIRECTORY[slot.chunk()].load(Ordering::Acquire); // pairs with the store in `place_chunk`
    // SAFETY: M2; we own a slot of the chunk, so it is there, and the place is within it.
    let holder = unsafe { &(*chunk)[place_of(slot.index())] };
    Some(Vacancy::new(slot, NonNull::from(holder)))
}

/// Gives a slot back whose task is over.
pub(super) fn free(index: u32, freed: FreedWord) {
    if freed.generation == u32::MAX {
        return; // A3: the generations of this slot are used up, and it rests for ever
    }
    let slot = FreeSlot::new(index, freed);
    let cached = CACHE.try_with(|cache| cache.magazines.borrow_mut().give(slot));
    if cached.is_err() {
        depot().put(vec![slot]);
    }
}

/// Looks into the holder of a slot that may be anybody's; `None` when its chunk is gone. `look`
/// must not run user code: it would keep the chunk from going.
pub(super) fn with_holder<R>(index: u32, look: impl FnOnce(&TaskHolder) -> R) -> Option<R> {
    let mut look = Some(look);
    let mut looked = || {
        let chunk = DIRECTORY[chunk_of(index)].load(Ordering::SeqCst); // M3
        // SAFETY: M3; the chunk was in the directory after our guard named it, or while we held
        // the lock of removals, so it is not taken away before we are done.
        let holder = unsafe { chunk.as_ref() }.map(|chunk| &chunk[place_of(index)]);
        holder.zip(look.take()).map(|(holder, look)| look(holder))
    };
    let guarded = CACHE.try_with(|cache| {
        let guard = &cache.guard.0;
        // Relaxed: only this thread writes its guard.
        if guard.load(Ordering::Relaxed) != NOTHING {
            return looked(); // within `looking_around`
        }
        // A swap, not a store: on x86 and Arm it is the cheapest store that is in one order with
        // the load of the directory.
        guard.swap(chunk_of(index) as u64 + 1, Ordering::SeqCst);
        let result = looked();
        guard.store(NOTHING, Ordering::Release); // what we read happens before the removal
        result
    });
    guarded.unwrap_or_else(|_| {
        let _removal = lock(&REMOVAL);
        looked()
    })
}

/// Asks for the holder of a slot ahead of its use. A chunk that is gone does no harm.
#[inline]
pub(crate) fn prefetch(index: u32) {
    // Relaxed: nothing is read through the pointer.
    let chunk = DIRECTORY[chunk_of(index)].load(Ordering::Relaxed);
    crate::sync::prefetch(chunk.cast::<TaskHolder>().wrapping_add(place_of(index)));
}

/// Lets the tick thread look into many holders at the price of one guard. `work` must not run
/// user code.
pub(crate) fn looking_around<R>(work: impl FnOnce() -> R) -> R {
    struct Reset<'a>(&'a Guard);
    impl Drop for Reset<'_> {
        fn drop(&mut self) {
            self.0.0.store(NOTHING, Ordering::Release);
        }
    }
    let mut work = Some(work);
    let around = CACHE.try_with(|cache| {
        cache.guard.0.swap(ANYTHING, Ordering::SeqCst); // M3
        let _reset = Reset(&cache.guard);
        work.take().map(|work| work())
    });
    match around {
        Ok(Some(result)) => result,
        // No thread-locals any more: each look takes the lock of removals by itself.
        _ => work.take().map(|work| work()).expect("the work has not been done yet"),
    }
}

impl Magazines {
    fn take(&mut self) -> Option<FreeSlot> {
        if self.loaded.is_empty() {
            std::mem::swap(&mut self.loaded, &mut self.spare);
            if self.loaded.is_empty() {
                self.loaded = depot().full_for(std::mem::take(&mut self.loaded));
            }
        }
        let slot = self.loaded.pop()?;
        if let Some(soon) = self.loaded.iter().nth_back(AHEAD) {
            prefetch(soon.index());
        }
        Some(slot)
    }

    fn give(&mut self, slot: FreeSlot) {
        if self.loaded.len() >= MAGAZINE {
            std::mem::swap(&mut self.loaded, &mut self.spare);
            if self.loaded.len() >= MAGAZINE {
                self.loaded = depot().empty_for(std::mem::take(&mut self.loaded));
            }
        } else if self.loaded.capacity() == 0 {
            self.loaded.reserve_exact(MAGAZINE);
        }
        self.loaded.push(slot);
    }
}

/// Makes a chunk of holders that never held a task, at a place that has none.
pub(super) fn place_chunk(chunk: usize) {
    let holders: Box<[TaskHolder]> = (0..CHUNK).map(|_| TaskHolder::new()).collect();
    // Release: the holders' first words are there before the chunk is.
    DIRECTORY[chunk].store(Box::into_raw(holders).cast::<Chunk>(), Ordering::Release);
}

/// Takes a chunk away, all of whose slots the caller has in hand. False, and the chunk stays, when
/// somebody is just looking into it.
pub(super) fn remove_chunk(chunk: usize) -> bool {
    let _removal = lock(&REMOVAL);
    let holders = DIRECTORY[chunk].swap(ptr::null_mut(), Ordering::SeqCst); // M3
    if lock(&GUARDS).iter().any(|guard| guard.looks_into(chunk)) {
        DIRECTORY[chunk].store(holders, Ordering::SeqCst);
        return false;
    }
    // SAFETY: it was made by `place_chunk` as a boxed slice of `CHUNK` holders; no slot of it is in
    // use (M2) and nobody looks into it (M3). Free holders have no body to drop (H1).
    drop(unsafe {
        Box::from_raw(ptr::slice_from_raw_parts_mut(holders.cast::<TaskHolder>(), CHUNK))
    });
    true
}
