//! The listener: the thread of a worker that hears of timers which other processes have scheduled.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::outage::Part;
use super::shared::{LOOKING, Shared};
use crate::error::Result;
use crate::store::{Listener, Notices, Purpose};

/// After so long without news, the thread looks whether the worker stops. The database is asked, too: nothing else notices a halted one
/// while the other parts of the worker await its answers, for which they have no timeout.
const QUIET: Duration = Duration::from_secs(60);

/// So many notices of a kind within a second are too many, if they can be debounced.
const MANY: u32 = 8;

/// For how long commits tell nothing then. A commit that decided at the end of this, and took another second, is seen by a look
/// ([`LOOKING`]). One that took longer tells what it has.
const UNTOLD: Duration = Duration::from_secs(2);

/// Without a listener, because the store is away, the thread goes on trying to get one.
pub(super) fn start(shared: &Arc<Shared>, listener: Option<Box<dyn Listener>>) -> Result<()> {
    shared.spawn("listener", |shared| listen(shared, listener))
}

fn listen(shared: &Shared, mut listener: Option<Box<dyn Listener>>) {
    let mut notices = listener.as_ref().map_or(Notices::Never, |listener| listener.notices());
    let mut crowds = vec![None; shared.kinds.len()];
    while !shared.is_stopping() {
        let Some(connected) = &mut listener else {
            if !shared.await_turn(Part::Listener) {
                return;
            }
            match shared.timers.store().listen() {
                Ok(Some(again)) => {
                    shared.has_worked(Part::Listener);
                    // What was said in the meantime was not heard, so this looks too.
                    notices = again.notices();
                    shared.look_now();
                    shared.set_told(notices == Notices::AtOnce);
                    listener = Some(again);
                }
                Ok(None) => return shared.has_worked(Part::Listener), // it is polled from now on
                Err(error) => shared.has_failed(Part::Listener, &error),
            }
            continue;
        };
        match connected.wait(QUIET) {
            Ok(heard) => {
                for news in heard {
                    // A worker that stops says so without a kind: it no longer waits for what it was waiting for.
                    if news.kind.is_empty() {
                        shared.look_now();
                    } else if let Some(kind) = shared.kind_named(&news.kind) {
                        if news.more {
                            shared.hear_of_more(kind, news.wake);
                            continue;
                        }
                        shared.hear_of(kind, news.wake);
                        if connected.notices() == Notices::Debounced && is_many(&mut crowds[kind]) {
                            quieten(shared, kind);
                        }
                    }
                }
                if notices != connected.notices() {
                    notices = connected.notices();
                    shared.set_told(notices == Notices::AtOnce);
                }
            }
            Err(error) => {
                shared.has_failed(Part::Listener, &error);
                listener = None;
                shared.set_told(false);
            }
        }
    }
}

/// Counts a notice of a kind. Returns true if it is one too many: once in a second, because it takes a while until all callers
/// know.
fn is_many(crowd: &mut Option<(Instant, u32)>) -> bool {
    let (since, count) = crowd
        .filter(|(since, _)| since.elapsed() < Duration::from_secs(1))
        .unwrap_or((Instant::now(), 0));
    *crowd = Some((since, count + 1));
    count + 1 == MANY
}

/// Looks by itself for a while, and only then tells the commits of others that they need not tell.
fn quieten(shared: &Shared, kind: usize) {
    shared.stay_awake(LOOKING);
    let name = &shared.kinds[kind].name;
    // If it cannot be written, they go on telling.
    _ = shared.timers.lend(Purpose::Worker, |connection| connection.stay_awake(name, UNTOLD));
}
