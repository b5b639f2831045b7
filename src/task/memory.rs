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

use super::holder::{TaskHolder, Vacancy};
use super::state::FreedWord;

/// How many holders a chunk has.
pub(super) const CHUNK: usize = 1 << CHUNK_BITS;
const CHUNK_BITS: u32 = 10;

/// How many slots there can be in all: 268 million, so that an index leaves four bits free.
const SLOT_BITS: u32 = 28;
const CHUNKS: usize = 1 << (SLOT_BITS - CHUNK_BITS);

/// How many tasks ahead of its use a holder is fetched. Slots come back in the order in which tasks
/// end, so the next one is most likely not in the cache: without this a schedule after fires took
/// 245 ns of CPU time, with it 110.
const AHEAD: usize = 6;

/// How many free slots a magazine holds.
const MAGAZINE: usize = 128;

pub(super) type Chunk = [TaskHolder; CHUNK];

/// All chunks there are. Two megabytes of zeros, of which the system backs what is used.
static DIRECTORY: [AtomicPtr<Chunk>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];

/// A slot that nobody uses: its number, its next generation, and its past outcomes.
#[derive(Clone, Copy)]
pub(crate) struct FreeSlot {
    /// The number in the low 28 bits, the outcomes in the high four.
    index_and_past: u32,
    pub(crate) generation: u32,
}

impl FreeSlot {
    pub(super) fn new(index: u32, freed: FreedWord) -> FreeSlot {
        let past = u32::from(freed.past) << SLOT_BITS;
        FreeSlot { index_and_past: index | past, generation: freed.generation }
    }

    pub(crate) fn index(self) -> u32 {
        self.index_and_past & ((1 << SLOT_BITS) - 1)
    }

    pub(crate) fn past(self) -> u8 {
        (self.index_and_past >> SLOT_BITS) as u8
    }

    pub(super) fn chunk(self) -> usize {
        chunk_of(self.index())
    }
}

fn chunk_of(index: u32) -> usize {
    (index >> CHUNK_BITS) as usize
}

fn place_of(index: u32) -> usize {
    index as usize & (CHUNK - 1)
}

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

type Magazine = Vec<FreeSlot>;

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
    let chunk = DIRECTORY[slot.chunk()].load(Ordering::Acquire); // pairs with the store in `carve`
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

/// What all threads share: full magazines, and the chunks that are still to be cut up.
pub(super) struct Depot {
    full: Vec<Magazine>,
    empty: Vec<Magazine>,
    /// Free slots in `full`.
    free: usize,
    /// Slots of all chunks that there are.
    made: usize,
    /// Places in the directory whose chunk was taken away, with the first generation that may be
    /// used there; M4.
    vacant: Vec<(usize, u32)>,
    /// The first place in the directory that never had a chunk.
    untouched: usize,
    /// A chunk that is being cut up: the next slot, how many are left, and their generation.
    uncut: (u32, usize, u32),
    /// The least that `free` was since [`Depot::mark`]: what nobody has needed for that long.
    low: usize,
    /// How many free slots the last trim could not get rid of.
    pub(super) stuck: usize,
}

static DEPOT: Mutex<Depot> = Mutex::new(Depot {
    full: Vec::new(),
    empty: Vec::new(),
    free: 0,
    made: 0,
    vacant: Vec::new(),
    untouched: 0,
    uncut: (0, 0, 0),
    low: 0,
    stuck: 0,
});

pub(super) fn depot() -> MutexGuard<'static, Depot> {
    lock(&DEPOT)
}

/// Below this many free slots (4 MiB) nothing is worth trimming.
const WORTH_TRIMMING: usize = 64 * 1024;

impl Depot {
    /// A full magazine for an empty one, or an empty one still when no slot is left.
    fn full_for(&mut self, empty: Magazine) -> Magazine {
        if let Some(full) = self.full.pop() {
            self.took(full.len());
            if empty.capacity() != 0 {
                self.empty.push(empty);
            }
            return full;
        }
        let mut fresh = empty;
        fresh.reserve_exact(MAGAZINE);
        while fresh.len() < MAGAZINE {
            match self.cut() {
                Some(slot) => fresh.push(slot),
                None => break,
            }
        }
        fresh.reverse(); // so that they are used in the order of their addresses
        fresh
    }

    /// An empty magazine for a full one.
    fn empty_for(&mut self, full: Magazine) -> Magazine {
        self.put(full);
        self.empty.pop().unwrap_or_else(|| Magazine::with_capacity(MAGAZINE))
    }

    /// Takes in free slots, however many.
    pub(super) fn put(&mut self, slots: Magazine) {
        if !slots.is_empty() {
            self.free += slots.len();
            self.full.push(slots);
        }
    }

    /// One slot, for a thread without a cache.
    fn take_one(&mut self) -> Option<FreeSlot> {
        while let Some(last) = self.full.last_mut() {
            if let Some(slot) = last.pop() {
                self.took(1);
                return Some(slot);
            }
            self.full.pop();
        }
        self.cut()
    }

    /// Some of the free slots, for the trimmer.
    pub(super) fn give_up(&mut self) -> Option<Magazine> {
        let magazine = self.full.pop()?;
        self.took(magazine.len());
        Some(magazine)
    }

    fn took(&mut self, slots: usize) {
        self.free -= slots;
        self.low = self.low.min(self.free);
    }

    /// Begins to watch how much stays free.
    pub(super) fn mark(&mut self) {
        self.low = self.free;
    }

    /// Whether so much is free that it may be worth giving back.
    pub(super) fn is_bloated(&self) -> bool {
        self.is_too_much(self.free)
    }

    /// Whether so much has stayed free since [`Depot::mark`].
    pub(super) fn stayed_bloated(&self) -> bool {
        self.is_too_much(self.low)
    }

    /// More than is in use, and twice what the last trim could not get rid of.
    fn is_too_much(&self, free: usize) -> bool {
        let in_use = self.made - self.free;
        free > in_use.max(WORTH_TRIMMING) && free > 2 * self.stuck
    }

    /// Free slots at present.
    pub(super) fn free(&self) -> usize {
        self.free
    }

    /// A slot that has never been used since its chunk came.
    fn cut(&mut self) -> Option<FreeSlot> {
        if self.uncut.1 == 0 {
            self.uncut = self.carve()?;
        }
        let (index, left, generation) = self.uncut;
        self.uncut = (index + 1, left - 1, generation);
        Some(FreeSlot::new(index, FreedWord { generation, past: 0 }))
    }

    /// Brings a new chunk; `None` when the directory is full.
    fn carve(&mut self) -> Option<(u32, usize, u32)> {
        let (chunk, generation) = match self.vacant.pop() {
            Some(vacant) => vacant,
            None if self.untouched < CHUNKS => {
                self.untouched += 1;
                (self.untouched - 1, 1)
            }
            None => return None,
        };
        // Release: the holders' first words are there before the chunk is.
        DIRECTORY[chunk].store(new_chunk(), Ordering::Release);
        self.made += CHUNK;
        Some((u32::try_from(chunk).ok()? << CHUNK_BITS, CHUNK, generation))
    }

    /// The trimmer has taken this chunk away.
    pub(super) fn lost(&mut self, chunk: usize, next_generation: u32) {
        self.made -= CHUNK;
        if next_generation != u32::MAX {
            self.vacant.push((chunk, next_generation));
        }
    }
}

/// A chunk of holders that never held a task.
fn new_chunk() -> *mut Chunk {
    let holders: Box<[TaskHolder]> = (0..CHUNK).map(|_| TaskHolder::new()).collect();
    Box::into_raw(holders).cast::<Chunk>()
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
    // SAFETY: it was made by `new_chunk` as a boxed slice of `CHUNK` holders; no slot of it is in
    // use (M2) and nobody looks into it (M3). Free holders have no body to drop (H1).
    drop(unsafe {
        Box::from_raw(ptr::slice_from_raw_parts_mut(holders.cast::<TaskHolder>(), CHUNK))
    });
    true
}
