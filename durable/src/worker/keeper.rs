//! The keeper of a worker: removes attempts from the history, and dead timers, when they are older than they are to be kept.
//!
//! It is a task on the threads for calls, and has a connection as calls have. So it is no thread of its own, and none that claims, runs
//! or writes outcomes, and nothing of the worker waits for it.
//!
//! - KEEPER-1 A task removes one batch, of a thousand at most, and schedules the next one after a pause of twice as long as it took. So
//!   one call of others waits for one batch, and the database has two thirds of the time for others. A store takes milliseconds for a
//!   batch, waits for nobody, and passes over what another worker's keeper has locked.
//! - KEEPER-2 It ends with the worker, at the next batch. What an error leaves behind, the next pass finds: all that is too old stays
//!   so.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use super::shared::Shared;
use crate::error::{Error, Result};
use crate::store::{Connection, Purge, Purpose};

/// How many rows a batch has at most.
const BATCH: u32 = 1000;

/// How often there is a pass over all kinds, at least and at most. In between it is as often as the shortest time for which something
/// is kept.
const PASSES: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(1));

struct Keeper {
    shared: Weak<Shared>,
    /// What is left to do in this pass, the last first.
    left: Vec<Chore>,
    /// The database has refused something, which was said.
    is_refused: bool,
}

/// Something to remove, as far as the last batch has come.
enum Chore {
    Attempts(usize, Duration, Option<(String, SystemTime)>),
    Dead(usize, Duration, i64),
}

/// Starts the keeper, if something is not kept for ever.
pub(super) fn start(shared: &Arc<Shared>) {
    let keeper = Keeper { shared: Arc::downgrade(shared), left: Vec::new(), is_refused: false };
    if let Some(pass) = time_to_pass(shared) {
        keeper.run_after(shared, pass);
    }
}

fn chores(shared: &Shared) -> Vec<Chore> {
    let kinds = 0..shared.kinds.len();
    let attempts = |kind| shared.history_of(kind).map(|keep| Chore::Attempts(kind, keep, None));
    let dead = |kind| shared.keeps_dead(kind).map(|keep| Chore::Dead(kind, keep, i64::MIN));
    kinds.flat_map(|kind| attempts(kind).into_iter().chain(dead(kind))).collect()
}

/// Returns when the next pass is. `None`: there is nothing to do.
fn time_to_pass(shared: &Shared) -> Option<Duration> {
    let (Chore::Attempts(_, keep, _) | Chore::Dead(_, keep, _)) =
        chores(shared).into_iter().min_by_key(|chore| match chore {
            Chore::Attempts(_, keep, _) | Chore::Dead(_, keep, _) => *keep,
        })?;
    Some(keep.clamp(PASSES.1, PASSES.0))
}

impl Keeper {
    fn run_after(self, shared: &Shared, pause: Duration) {
        // It is refused when the last handle of the timers is gone.
        _ = shared.timers.threads().schedule(pause, move || self.run());
    }

    /// Removes a batch, and comes again (KEEPER-1).
    fn run(mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        if shared.is_stopping() {
            return; // KEEPER-2
        }
        if self.left.is_empty() {
            self.left = chores(&shared);
        }
        let began = Instant::now();
        let done = self.left.pop().map_or(Ok(None), |chore| {
            shared.timers.lend(Purpose::Call, |connection| chore.go_on(&shared, connection))
        });
        match done {
            Ok(more) => self.left.extend(more),
            // Others of this worker use the connection too, and tell of its errors.
            Err(error @ Error::Refused(_)) if !self.is_refused => {
                self.is_refused = true;
                shared.report(&error);
            }
            Err(_) => {}
        }
        let pause = if self.left.is_empty() { time_to_pass(&shared) } else { None };
        self.run_after(&shared, pause.unwrap_or_else(|| began.elapsed() * 2));
    }
}

impl Chore {
    /// Removes a batch. Returns what is left to do.
    fn go_on(self, shared: &Shared, connection: &mut dyn Connection) -> Result<Option<Chore>> {
        Ok(match self {
            Chore::Attempts(kind, keep, from) => {
                let before = connection.now()?.checked_sub(keep).unwrap_or(SystemTime::UNIX_EPOCH);
                let of = Purge::new(Some(&shared.kinds[kind].name), before);
                let purged = connection.purge_history(&Purge { from, limit: BATCH, ..of })?;
                purged.last.map(|last| Chore::Attempts(kind, keep, Some(last)))
            }
            Chore::Dead(kind, keep, after) => {
                let name = &shared.kinds[kind].name;
                let (_, last) = connection.purge_dead(name, keep, after, BATCH)?;
                last.map(|last| Chore::Dead(kind, keep, last))
            }
        })
    }
}
