//! What is around each view: the head, the links to the others, forms and buttons, and the pages without a view: login and problems.

use std::time::Duration;

use crate::access::Login;
use crate::action::{Action, SAID, Said};
use crate::html::{Html, html};
use crate::link::Query;
use crate::service::Settings;
use crate::views::{Shown, View};

pub(crate) const STYLE: &str = include_str!("../page.css");
pub(crate) const SCRIPT: &str = include_str!("../page.js");

/// The links above each view.
const LINKS: [(View, &str); 5] = [
    (View::Overview, "Overview"),
    (View::Upcoming, "Upcoming"),
    (View::Running, "Running"),
    (View::Dead, "Dead"),
    (View::Past, "Past"),
];

/// Who looks at what.
pub(crate) struct Frame<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) query: &'a Query,
    pub(crate) login: Option<&'a Login>,
    pub(crate) may_act: bool,
    /// Timers are on several databases.
    pub(crate) is_sharded: bool,
}

impl Frame<'_> {
    /// Writes the whole page. A browser with scripts asks for it again after `refresh`; with zero it does not.
    pub(crate) fn whole(&self, view: Shown, refresh: Duration) -> Html {
        let refresh = if view.is_live { refresh } else { Duration::ZERO };
        let mut out = self.head(&view.title);
        html!(out; "<main>");
        if let Some((words, count)) = Said::words(self.query) {
            html!(out; r#"<p class="note" role="status">"# {words});
            if let Some(count) = count {
                html!(out; {count});
            }
            html!(out; "</p>");
        }
        if let Some(missing) = view.missing {
            html!(out; r#"<p class="note" role="alert"><b>A part of the timers is missing here.</b> "# {missing} "</p>");
        }
        out.append(&view.page);
        html!(out; "</main>");
        Frame::foot(out, refresh)
    }

    /// Writes a page that says why there is nothing else.
    pub(crate) fn problem(&self, problem: &str) -> Html {
        let mut out = self.head("Problem");
        html!(out; r#"<main><div class="card narrow" role="alert"><h2>That did not work</h2><p>"# {problem}
            r#"</p><p><a href=""# [self.query.clone().without(&["do"]).link()] r#"">Try again</a></p></div></main>"#);
        Frame::foot(out, Duration::ZERO)
    }

    /// Writes the page that asks for the token, and leads to where somebody wanted to go.
    pub(crate) fn login(&self, wrong: Option<&str>, back: &Query) -> Html {
        let mut out = self.head("Log in");
        let back = back.clone().without(&["do"]).link();
        html!(out; r#"<main><form class="card narrow" method="post" action=""# [Query::default().with("do", Action::Login.name()).link()]
            r#""><h2>Log in</h2>"#);
        if let Some(wrong) = wrong {
            html!(out; r#"<p class="error" role="alert">"# {wrong} "</p>");
        }
        html!(out; r#"<p><label for="token">The token of this page</label></p><p class="do"><input type="hidden" name="back" value=""# [back]
            r#""><input hidden autocomplete="username" value=""# [self.settings.title] r#""><input id="token" name="token" type="password" autocomplete="current-password" required autofocus>"#
            r#"<button class="strong">Log in</button></p><p class="none">Came here by a link, and logged in before? <a href=""# [back]
            r#"">Go on</a></p></form></main>"#);
        Frame::foot(out, Duration::ZERO)
    }

    fn head(&self, title: &str) -> Html {
        let mut out = Html::default();
        html!(out; r#"<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">"#
            r#"<meta name="robots" content="noindex"><title>"# {title} " · " {self.settings.title}
            r#"</title><link rel="icon" href="data:,"><style>"#);
        out.raw(STYLE);
        html!(out; r#"</style></head><body><header><h1><a href=""# [Query::new("").link()] r#"">"# {self.settings.title} "</a></h1>");
        if let Some(login) = self.login {
            let here = self.query.get("view").unwrap_or_default();
            html!(out; r#"<nav aria-label="Views">"#);
            for (view, name) in LINKS {
                let kind = self.query.chosen("kind").filter(|_| view != View::Overview);
                html!(out; r#"<a href=""# [Query::new(view.name()).with_some("kind", kind).link()] r#"""#);
                if view.name() == here {
                    html!(out; r#" aria-current="page""#);
                }
                html!(out; ">" {name} "</a>");
            }
            html!(out; r#"</nav><form class="find" role="search"><input type="hidden" name="view" value="find"><input name="kind" value=""#
                [self.query.get("kind").unwrap_or_default()]
                r#"" placeholder="Kind" aria-label="Kind, or empty for all" size="12"><input name="prefix" value=""#
                [self.query.get("prefix").unwrap_or_default()]
                r#"" placeholder="Key, or its begin" aria-label="Key, or its begin" size="18"><button>Find</button></form>"#);
            html!(out; r#"<div class="visitor">"# {login.visitor.name});
            if !self.may_act {
                html!(out; r#" <span class="state">read only</span>"#);
            }
            if login.has_cookie {
                self.form(
                    &mut out,
                    &Query::default().with("do", Action::Logout.name()),
                    &Query::default(),
                    |out| {
                        html!(out; "<button>Log out</button>");
                    },
                );
            }
            html!(out; "</div>");
        }
        html!(out; "</header>");
        out
    }

    fn foot(mut out: Html, refresh: Duration) -> Html {
        html!(out; "<footer>All times are UTC, by the database's clock.</footer><script data-every=\"" [refresh.as_millis()] "\">");
        out.raw(SCRIPT);
        html!(out; "</script></body></html>");
        out
    }

    /// Returns what a link to a timer says of its database.
    pub(crate) fn shard(&self, shard: usize) -> Option<usize> {
        self.is_sharded.then_some(shard)
    }

    /// Returns the link to this view, without what it says of an action.
    pub(crate) fn here(&self) -> Query {
        self.query.clone().without(&SAID)
    }

    /// Writes a form, with what its request has to have (ACCESS-3), and where the browser goes afterwards.
    pub(crate) fn form(
        &self,
        out: &mut Html,
        action: &Query,
        back: &Query,
        fields: impl FnOnce(&mut Html),
    ) {
        let code = self.login.and_then(|login| login.form.as_deref()).unwrap_or_default();
        html!(out; r#"<form method="post" action=""# [action.link()] r#""><input type="hidden" name="form" value=""# [code]
            r#""><input type="hidden" name="back" value=""# [back.link()] r#"">"#);
        fields(out);
        html!(out; "</form>");
    }

    /// Writes a button that does it at once, for those who may.
    pub(crate) fn button(&self, out: &mut Html, name: &'static str, action: &Query) {
        if self.may_act {
            self.form(out, action, &self.here(), |out| html!(out; "<button>" {name} "</button>"));
        }
    }

    /// Writes a link to the page that asks first.
    pub(crate) fn ask_first(&self, out: &mut Html, name: &'static str, action: &Query) {
        if self.may_act {
            let ask =
                action.clone().with("view", View::Confirm.name()).with("back", self.here().link());
            html!(out; r#"<a class="button grave" href=""# [ask.link()] r#"">"# {name} "</a>");
        }
    }
}

/// Writes a kind or a key, which may be empty, and does not change the order of what is beside it.
pub(crate) fn name(out: &mut Html, name: &str) {
    if name.is_empty() {
        html!(out; r#"<bdi class="empty">(empty)</bdi>"#);
    } else {
        html!(out; "<bdi>" {name} "</bdi>");
    }
}

/// Writes the begin of a text.
pub(crate) fn short(out: &mut Html, text: &str, most: usize) {
    let end = text.char_indices().nth(most).map_or(text.len(), |(end, _)| end);
    html!(out; {&text[..end]});
    if end < text.len() {
        html!(out; " …");
    }
}
