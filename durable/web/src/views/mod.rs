//! The views: what each shows. `frame.rs` has what is around all of them.

mod frame;
mod lists;
mod overview;
mod timer;

use crate::html::Html;
use crate::sight::{Result, Sight};
pub(crate) use frame::{Frame, SCRIPT, STYLE};

/// What a link asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// All kinds, or one of them, with its pictures.
    Overview,
    /// Timers that wait, by the time at which they wake, whatever their kinds.
    Upcoming,
    Running,
    Dead,
    /// Attempts that have ended, the newest first.
    Past,
    /// Timers whose key begins with a text.
    Find,
    /// One timer, with its payload and its attempts.
    Timer,
    /// Asks before something is done that cannot be undone.
    Confirm,
}

impl View {
    pub(crate) const ALL: [View; 8] = [
        View::Overview,
        View::Upcoming,
        View::Running,
        View::Dead,
        View::Past,
        View::Find,
        View::Timer,
        View::Confirm,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            View::Overview => "",
            View::Upcoming => "upcoming",
            View::Running => "running",
            View::Dead => "dead",
            View::Past => "past",
            View::Find => "find",
            View::Timer => "timer",
            View::Confirm => "confirm",
        }
    }

    pub(crate) fn of(name: &str) -> Option<View> {
        View::ALL.into_iter().find(|view| view.name() == name)
    }
}

/// A view before the frame is put around it.
pub(crate) struct Shown {
    pub(crate) title: String,
    pub(crate) page: Html,
    /// Why a part of it is missing.
    pub(crate) missing: Option<String>,
    /// False: what it was to show is not there.
    pub(crate) is_there: bool,
    /// It shows what changes by itself, and has no field that somebody fills in.
    pub(crate) is_live: bool,
}

/// Writes a view.
pub(crate) async fn show(view: View, frame: &Frame<'_>, sight: &Sight) -> Result<Shown> {
    match view {
        View::Overview => overview::show(frame, sight).await,
        View::Upcoming | View::Running | View::Dead | View::Find => {
            lists::show(view, frame, sight).await
        }
        View::Past => lists::past(frame, sight).await,
        View::Timer => timer::show(frame, sight).await,
        View::Confirm => timer::confirm(frame, sight).await,
    }
}
