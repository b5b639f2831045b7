//! The listener: the thread of a worker that hears of timers which other processes have scheduled.

use std::sync::Arc;
use std::time::Duration;

use super::outage::Part;
use super::shared::Shared;
use crate::error::Result;
use crate::store::Listener;

/// After so long without news, the thread looks whether the worker stops.
const QUIET: Duration = Duration::from_secs(60);

pub(super) fn start(shared: &Arc<Shared>, listener: Box<dyn Listener>) -> Result<()> {
    shared.spawn("listener", |shared| listen(shared, listener))
}

fn listen(shared: &Shared, listener: Box<dyn Listener>) {
    let mut listener = Some(listener);
    while !shared.is_stopping() {
        let Some(connected) = &mut listener else {
            if !shared.await_turn(Part::Listener) {
                return;
            }
            match shared.timers.store().listen() {
                Ok(Some(again)) => {
                    shared.has_worked(Part::Listener);
                    listener = Some(again);
                    // What was said in the meantime was not heard, so this looks too.
                    shared.set_told(true);
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
                        shared.expect(kind, news.wake);
                    }
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
